"""What may hold a job, told in order: each rule looks at rows and counts, and says what it sees.

A cap on a user's active jobs is never a reason: it refuses a job when it is submitted and holds none that was accepted.
Other tenants show up in counts only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from callsheet.core.cascade import offers
from callsheet.core.clock import SECOND
from callsheet.core.counting import counted
from callsheet.core.crew import Absent
from callsheet.core.limiting import Limit
from callsheet.core.rows import Call, Job, Stage, Task

QUIET_SECONDS = 5
"""A worker that waits for work looks every few seconds: a task that was free to take for longer has none."""
AHEAD_MAX = 10_000
"""Tasks in front are counted up to here."""


class Counted(NamedTuple):
    """A limit, and what counts towards it now."""

    limit: Limit
    counted: int
    oldest: int | None = None
    """When the first of those that count started, if it is a rate."""

    @property
    def full(self) -> bool:
        return self.counted >= self.limit.most


class Seen(NamedTuple):
    """What was read and counted at one moment."""

    now: int
    ahead: int = 0
    """Tasks in front of the first waiting one, in its queue."""
    running: int = 0
    """Running tasks of its queue."""
    live: int = 0
    """Leases of its kind that have not run out."""
    last_at: int | None = None
    """When a task of its kind was last completed."""
    limits: Sequence[Counted] = ()
    durations: Sequence[int] = ()
    leased_at: Mapping[str, int] = {}
    """When the running tries began, by task."""
    calls: Mapping[str, Call] = {}
    """The provider calls of running tries, by task."""
    absent: Absent = Absent()
    """Workers of the fleet that could do its kind, and may not."""


class Constraint(Struct, frozen=True, omit_defaults=True):
    """One thing that holds a job, or some of its tasks."""

    code: str
    message: str
    tasks: int = 0
    """How many of its tasks it is about; 0 is the whole job."""
    since_at: int | None = None
    until_at: int | None = None
    of: str | None = None
    name: str | None = None
    running: int | None = None
    running_max: int | None = None
    started: int | None = None
    started_max: int | None = None
    within_seconds: int | None = None
    ahead: int | None = None
    progress: int | None = None
    workers: int | None = None


# -- the constraints, in the order in which they are told

Found = list[Constraint]


def _ended(job: Job, _stage: Stage | None, _tasks: Sequence[Task], _seen: Seen) -> Found:
    if job.finished_at is None:
        return []
    return [Constraint("ended", f"The job has ended: it is {job.status}.", since_at=job.finished_at)]


def _canceling(job: Job, stage: Stage | None, _tasks: Sequence[Task], seen: Seen) -> Found:
    if job.finished_at is not None or job.cancel_requested_at is None:
        return []
    left = _until(job.cancel_due_at, seen.now)
    text = f"It is being canceled: its workers have {left} to stop, then their leases are revoked."
    running = stage.tasks_running if stage else 0
    return [
        Constraint("canceling", text, since_at=job.cancel_requested_at, until_at=job.cancel_due_at, running=running)
    ]


def _paused(job: Job, _stage: Stage | None, _tasks: Sequence[Task], _seen: Seen) -> Found:
    if job.status != "paused":
        return []
    return [Constraint("paused", "It is paused: resume it to go on. What runs already is finished and counts.")]


def _scheduled(job: Job, _stage: Stage | None, _tasks: Sequence[Task], seen: Seen) -> Found:
    if job.status != "pending" or job.start_at is None:
        return []
    return [Constraint("scheduled", f"It is scheduled: it is queued in {_until(job.start_at, seen.now)}.",
                       until_at=job.start_at)]  # fmt: skip


def _empty(job: Job, stage: Stage | None, _tasks: Sequence[Task], _seen: Seen) -> Found:
    if job.finished_at is not None:
        return []
    if stage is None:
        return [Constraint("no_stages", "It has no stages yet: add one.")]
    if not stage.tasks_total:
        return [Constraint("no_tasks", f"Stage {stage.no} ({stage.name}) has no tasks yet: add some.", name=stage.name)]
    return []


def _approval(job: Job, stage: Stage | None, _tasks: Sequence[Task], _seen: Seen) -> Found:
    if job.finished_at is not None or stage is None or stage.status != "waiting":
        return []
    return [Constraint("approval", f"Stage {stage.no} ({stage.name}) waits until somebody approves it.",
                       name=stage.name, since_at=job.waiting_at)]  # fmt: skip


def _backoff(_job: Job, _stage: Stage | None, tasks: Sequence[Task], seen: Seen) -> Found:
    waiting = [task for task in tasks if _backs_off(task)]
    if not waiting:
        return []
    until = min(task.ready_at or 0 for task in waiting)
    text = f"{_tasks_of(waiting)} failed and will be tried again: the first in {_until(until, seen.now)}."
    return [Constraint("backoff", text, len(waiting), until_at=until)]


def _running_limit(job: Job, stage: Stage | None, tasks: Sequence[Task], seen: Seen) -> Found:
    ready = ready_in(job, stage, tasks)
    return [
        Constraint(
            "running_limit",
            f"{limit.of.capitalize()} {limit.name} has {counted(count, 'running task')}, and may have {limit.most}: "
            "the next one starts when one ends.",
            ready, of=limit.of, name=limit.name, running=count, running_max=limit.most,
        )
        for limit, count, _ in full(seen)
        if ready and limit.seconds == 0
    ]  # fmt: skip


def _rate_limit(job: Job, stage: Stage | None, tasks: Sequence[Task], seen: Seen) -> Found:
    ready = ready_in(job, stage, tasks)
    found = []
    for limit, count, oldest in full(seen):
        if ready and limit.seconds:
            until = limit.room(count, oldest, seen.now).until
            text = (
                f"{counted(count, 'task')} of {limit.of} {limit.name} started in the last {limit.stretch}, "
                f"which is all that may: the next one may start in {_until(until, seen.now)}."
            )
            found.append(Constraint(
                "rate_limit", text, ready, until_at=until, of=limit.of, name=limit.name, started=count,
                started_max=limit.most, within_seconds=limit.seconds,
            ))  # fmt: skip
    return found


def _no_worker(job: Job, stage: Stage | None, tasks: Sequence[Task], seen: Seen) -> Found:
    ready = ready_in(job, stage, tasks)
    if not ready or seen.live or full(seen):
        return []
    since = max(_free_since(job, tasks), seen.last_at or 0)
    if seen.now - since < QUIET_SECONDS * SECOND:
        return []
    kind = next(task.kind for task in tasks if task.ready)
    quiet = counted((seen.now - since) // SECOND, "second")
    text = f"Nobody works on kind {kind}, and nobody has taken this in the last {quiet}: " + (
        f"of its workers {seen.absent}." if any(seen.absent) else "is a worker of this kind running?"
    )
    return [Constraint("no_worker", text, ready, since_at=since, of="kind", name=kind, workers=0)]


def _queued(job: Job, stage: Stage | None, tasks: Sequence[Task], seen: Seen) -> Found:
    ready = ready_in(job, stage, tasks)
    if not ready:
        return []
    if seen.ahead:
        count = f"more than {AHEAD_MAX}" if seen.ahead >= AHEAD_MAX else str(seen.ahead)
        text = f"It waits in the queue behind {count} other {'task' if seen.ahead == 1 else 'tasks'}."
    else:
        text = "It is next in its queue."
    return [Constraint("queued", text, ready, since_at=_free_since(job, tasks), ahead=seen.ahead, running=seen.running)]


def _provider(_job: Job, _stage: Stage | None, tasks: Sequence[Task], seen: Seen) -> Found:
    found: dict[tuple[str, bool], list[Call]] = {}
    for task in tasks:
        call = _handed(task, seen)
        if call is not None:
            found.setdefault((call.provider, call.ref is not None), []).append(call)
    return [
        Constraint(
            "provider",
            f"{_tasks_of(calls)} {_is(calls)} at the provider {name} and asked about regularly."
            if known
            else f"Whether {name} accepted {_tasks_of(calls).lower()} is not known: it is looked up, never sent twice.",
            len(calls), since_at=min(call.submitted_at or call.intended_at for call in calls),
            until_at=min(call.deadline_at for call in calls), of="provider", name=name,
        )
        for (name, known), calls in sorted(found.items())
    ]  # fmt: skip


def _running(_job: Job, _stage: Stage | None, tasks: Sequence[Task], seen: Seen) -> Found:
    running = [task for task in tasks if task.status == "running" and _handed(task, seen) is None]
    if not running:
        return []
    workers = len({task.worker_id for task in running})
    text = f"{_tasks_of(running)} {_is(running)} running on {workers} {'worker' if workers == 1 else 'workers'}."
    since = min(seen.leased_at.get(task.id) or task.started_at or task.created_at for task in running)
    progress = sum(task.progress for task in running) // len(running)
    return [Constraint("running", text, len(running), since_at=since, progress=progress, workers=workers)]


RULES: tuple[Callable[[Job, Stage | None, Sequence[Task], Seen], Found], ...] = (
    _ended, _canceling, _paused, _scheduled, _empty, _approval, _running_limit, _rate_limit, _no_worker, _queued,
    _backoff, _provider, _running,
)  # fmt: skip
CODES = (
    "ended", "canceling", "paused", "scheduled", "no_stages", "no_tasks", "approval", "running_limit", "rate_limit",
    "no_worker", "queued", "backoff", "provider", "running",
)  # fmt: skip
"""Every code; they are stable."""


# -- words


def ready_in(job: Job, stage: Stage | None, tasks: Sequence[Task]) -> int:
    """Count the tasks that a claim would be offered."""
    if stage is None or not offers(job, stage):
        return 0
    return sum(task.ready for task in tasks)


def full(seen: Seen) -> list[Counted]:
    return [counted for counted in seen.limits if counted.full]


def _free_since(job: Job, tasks: Sequence[Task]) -> int:
    """Return since when, at the least, the first task has been free to take: nothing happened to the job since."""
    return max(job.updated_at, *((task.ready_at or 0) for task in tasks if task.ready), 0)


def _backs_off(task: Task) -> bool:
    return task.status == "retried" and not task.ready and task.due_at is not None


def _handed(task: Task, seen: Seen) -> Call | None:
    """Return the call of a task that no worker holds any more."""
    return seen.calls.get(task.id) if task.status == "running" and task.token_hash is None else None


def _until(at: int | None, now: int) -> str:
    left = max((at or now) - now, 0) // SECOND
    return counted(left, "second") if left else "less than a second"


def _tasks_of(some: Sequence[object]) -> str:
    return counted(len(some), "task")


def _is(some: Sequence[object]) -> str:
    return "is" if len(some) == 1 else "are"
