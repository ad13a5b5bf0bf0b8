"""Reasons why a job does not run: each rule reads rows and counts and returns the constraints it finds, in order.

The limit of active jobs per user is not among them: it refuses a submit and never delays an accepted job. Other
tenants appear in counts only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from callsheet.core.decisions.cascade import accepts_claims
from callsheet.core.model.clock import SECOND
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Call, Job, Stage, Task
from callsheet.core.policy.explanation.kind_capacity import UnavailableWorkers
from callsheet.core.policy.task_start_limits import Limit

NO_WORKER_SECONDS = 5
"""Idle workers poll every few seconds: if a task was claimable for longer, no worker serves its kind."""


class LimitUsage(NamedTuple):
    """A limit and its current use."""

    limit: Limit
    counted: int
    oldest: int | None = None
    """For a rate: when the first start within the period happened."""

    @property
    def full(self) -> bool:
        return self.counted >= self.limit.maximum


class Observation(NamedTuple):
    """Rows and counts that were read at one moment."""

    now: int
    ahead: int = 0
    """Tasks ahead of the job's first waiting task in the same queue."""
    running: int = 0
    """Running tasks of the queue."""
    live_leases: int = 0
    """Leases of the kind that have not expired."""
    last_completed_at: int | None = None
    """When a task of the kind was last completed."""
    limits: Sequence[LimitUsage] = ()
    durations: Sequence[int] = ()
    leased_at: Mapping[str, int] = {}
    """When the running attempts were leased, by task."""
    calls: Mapping[str, Call] = {}
    """The provider calls of running attempts, by task."""
    unavailable: UnavailableWorkers = UnavailableWorkers()
    """Workers that offer the kind but may not claim it."""
    ahead_is_capped: bool = False
    """Whether more tasks are ahead than were counted."""
    running_is_capped: bool = False
    """Whether more tasks of the queue run than were counted."""


class Constraint(Struct, frozen=True, omit_defaults=True):
    """One reason why a job, or some of its tasks, does not run."""

    code: str
    message: str
    tasks: int = 0
    """Number of tasks concerned; 0 for the whole job."""
    active_since_at: int | None = None
    active_until_at: int | None = None
    of: str | None = None
    name: str | None = None
    running: int | None = None
    running_is_capped: bool = False
    running_max: int | None = None
    started: int | None = None
    started_in_window_max: int | None = None
    within_seconds: int | None = None
    ahead: int | None = None
    ahead_is_capped: bool = False
    progress: int | None = None
    workers: int | None = None


# -- the rules, in the order of the answer

Constraints = list[Constraint]


def _ended(job: Job, _stage: Stage | None, _tasks: Sequence[Task], _observation: Observation) -> Constraints:
    if job.finished_at is None:
        return []
    return [Constraint("ended", f"The job has ended: it is {job.status}.", active_since_at=job.finished_at)]


def _canceling(job: Job, stage: Stage | None, _tasks: Sequence[Task], observation: Observation) -> Constraints:
    if job.finished_at is not None or job.cancel_requested_at is None:
        return []
    left = _time_left(job.cancel_due_at, observation.now)
    text = f"It is being canceled: its workers have {left} to stop, then their leases are revoked."
    running = stage.tasks_running if stage else 0
    return [
        Constraint(
            "canceling",
            text,
            active_since_at=job.cancel_requested_at,
            active_until_at=job.cancel_due_at,
            running=running,
        )
    ]


def _paused(job: Job, _stage: Stage | None, _tasks: Sequence[Task], _observation: Observation) -> Constraints:
    if job.status != "paused":
        return []
    return [Constraint("paused", "It is paused: resume it to continue. Running tasks finish and their results count.")]


def _scheduled(job: Job, _stage: Stage | None, _tasks: Sequence[Task], observation: Observation) -> Constraints:
    if job.status != "pending" or job.start_at is None:
        return []
    return [Constraint("scheduled", f"It is scheduled: it is queued in {_time_left(job.start_at, observation.now)}.",
                       active_until_at=job.start_at)]  # fmt: skip


def _empty(job: Job, stage: Stage | None, _tasks: Sequence[Task], _observation: Observation) -> Constraints:
    if job.finished_at is not None:
        return []
    if stage is None:
        return [Constraint("no_stages", "It has no stages yet: add one.")]
    if not stage.tasks_total:
        return [Constraint("no_tasks", f"Stage {stage.no} ({stage.name}) has no tasks yet: add some.", name=stage.name)]
    return []


def _approval(job: Job, stage: Stage | None, _tasks: Sequence[Task], _observation: Observation) -> Constraints:
    if job.finished_at is not None or stage is None or stage.status != "waiting":
        return []
    return [Constraint("approval", f"Stage {stage.no} ({stage.name}) waits for approval.",
                       name=stage.name, active_since_at=job.waiting_at)]  # fmt: skip


def _backoff(_job: Job, _stage: Stage | None, tasks: Sequence[Task], observation: Observation) -> Constraints:
    waiting = [task for task in tasks if _is_backing_off(task)]
    if not waiting:
        return []
    available_at = min(task.ready_at or 0 for task in waiting)
    delay = _time_left(available_at, observation.now)
    text = f"{_count_tasks(waiting)} failed and will be retried: the first in {delay}."
    return [Constraint("backoff", text, len(waiting), active_until_at=available_at)]


def _running_limit(job: Job, stage: Stage | None, tasks: Sequence[Task], observation: Observation) -> Constraints:
    ready = count_ready(job, stage, tasks)
    return [
        Constraint(
            "running_limit",
            f"{limit.of.capitalize()} {limit.name} has {pluralize(count, 'running task')}; at most {limit.maximum} "
            "may run at once: the next one starts when one ends.",
            ready, of=limit.of, name=limit.name, running=count, running_max=limit.maximum,
        )
        for limit, count, _ in full(observation)
        if ready and limit.seconds == 0
    ]  # fmt: skip


def _rate_limit(job: Job, stage: Stage | None, tasks: Sequence[Task], observation: Observation) -> Constraints:
    ready = count_ready(job, stage, tasks)
    found = []
    for limit, count, oldest in full(observation):
        if ready and limit.seconds:
            available_at = limit.headroom(count, oldest, observation.now).available_at
            text = (
                f"{pluralize(count, 'task')} of {limit.of} {limit.name} started in the last {limit.period}, "
                f"which is the limit: the next one may start in {_time_left(available_at, observation.now)}."
            )
            found.append(Constraint(
                "rate_limit", text, ready, active_until_at=available_at, of=limit.of, name=limit.name, started=count,
                started_in_window_max=limit.maximum, within_seconds=limit.seconds,
            ))  # fmt: skip
    return found


def _no_worker(job: Job, stage: Stage | None, tasks: Sequence[Task], observation: Observation) -> Constraints:
    ready = count_ready(job, stage, tasks)
    if not ready or observation.live_leases or full(observation):
        return []
    since = max(_claimable_since(job, tasks), observation.last_completed_at or 0)
    if observation.now - since < NO_WORKER_SECONDS * SECOND:
        return []
    kind = next(task.kind for task in tasks if task.ready)
    waited = pluralize((observation.now - since) // SECOND, "second")
    text = f"No worker runs tasks of kind {kind}, and none has claimed this one in the last {waited}: " + (
        f"of its workers {observation.unavailable}." if any(observation.unavailable) else "start a worker of this kind."
    )
    return [Constraint("no_worker", text, ready, active_since_at=since, of="kind", name=kind, workers=0)]


def _queued(job: Job, stage: Stage | None, tasks: Sequence[Task], observation: Observation) -> Constraints:
    ready = count_ready(job, stage, tasks)
    if not ready:
        return []
    if observation.ahead:
        count = f"{'more than ' * observation.ahead_is_capped}{observation.ahead}"
        text = f"It is queued after {count} other {'task' if observation.ahead == 1 else 'tasks'}."
    else:
        text = "It is next in its queue."
    return [
        Constraint(
            "queued",
            text,
            ready,
            active_since_at=_claimable_since(job, tasks),
            ahead=observation.ahead,
            ahead_is_capped=observation.ahead_is_capped,
            running=observation.running,
            running_is_capped=observation.running_is_capped,
        )
    ]


def _provider(_job: Job, _stage: Stage | None, tasks: Sequence[Task], observation: Observation) -> Constraints:
    found: dict[tuple[str, bool], list[Call]] = {}
    for task in tasks:
        call = _provider_call(task, observation)
        if call is not None:
            found.setdefault((call.provider, call.ref is not None), []).append(call)
    return [
        Constraint(
            "provider",
            f"{_count_tasks(calls)} {_is_or_are(calls)} running at the provider {name}; the server polls it."
            if accepted
            else f"It is unknown whether {name} accepted {_count_tasks(calls)}: the server looks it up.",
            len(calls), active_since_at=min(call.submitted_at or call.intended_at for call in calls),
            active_until_at=min(call.deadline_at for call in calls), of="provider", name=name,
        )
        for (name, accepted), calls in sorted(found.items())
    ]  # fmt: skip


def _running(_job: Job, _stage: Stage | None, tasks: Sequence[Task], observation: Observation) -> Constraints:
    running = [task for task in tasks if task.status == "running" and _provider_call(task, observation) is None]
    if not running:
        return []
    workers = len({task.worker_id for task in running})
    text = (
        f"{_count_tasks(running)} {_is_or_are(running)} running on {workers} {'worker' if workers == 1 else 'workers'}."
    )
    since = min(observation.leased_at.get(task.id) or task.started_at or task.created_at for task in running)
    progress = sum(task.progress for task in running) // len(running)
    return [Constraint("running", text, len(running), active_since_at=since, progress=progress, workers=workers)]


RULES: tuple[Callable[[Job, Stage | None, Sequence[Task], Observation], Constraints], ...] = (
    _ended, _canceling, _paused, _scheduled, _empty, _approval, _running_limit, _rate_limit, _no_worker, _queued,
    _backoff, _provider, _running,
)  # fmt: skip
CODES = (
    "ended", "canceling", "paused", "scheduled", "no_stages", "no_tasks", "approval", "running_limit", "rate_limit",
    "no_worker", "queued", "backoff", "provider", "running",
)  # fmt: skip
"""All codes. They are stable."""


def count_ready(job: Job, stage: Stage | None, tasks: Sequence[Task]) -> int:
    """Count the claimable tasks."""
    if stage is None or not accepts_claims(job, stage):
        return 0
    return sum(task.ready for task in tasks)


def full(observation: Observation) -> list[LimitUsage]:
    return [counted for counted in observation.limits if counted.full]


def _claimable_since(job: Job, tasks: Sequence[Task]) -> int:
    """Return a time since which the first task has been claimable: the job has not changed since then."""
    return max(job.updated_at, *((task.ready_at or 0) for task in tasks if task.ready), 0)


def _is_backing_off(task: Task) -> bool:
    return task.status == "retried" and not task.ready and task.due_at is not None


def _provider_call(task: Task, observation: Observation) -> Call | None:
    """Return the provider call of a task whose worker has handed it off."""
    return observation.calls.get(task.id) if task.status == "running" and task.token_hash is None else None


def _time_left(at: int | None, now: int) -> str:
    left = max((at or now) - now, 0) // SECOND
    return pluralize(left, "second") if left else "less than a second"


def _count_tasks(items: Sequence[object]) -> str:
    return pluralize(len(items), "task")


def _is_or_are(items: Sequence[object]) -> str:
    return "is" if len(items) == 1 else "are"
