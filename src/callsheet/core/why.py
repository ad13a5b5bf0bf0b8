"""Why a job is where it is: which constraints hold it, its place in the queue, and when it may start or end.

Given rows and numbers that reads counted, this only explains; nothing here decides.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from callsheet.core.constraints import RULES, Constraint, Seen, full, ready_in
from callsheet.core.counting import counted
from callsheet.core.estimate import SAMPLES_MIN, Past
from callsheet.core.rows import Job, Stage, Task

_FULL = 100


class Start(Struct, frozen=True):
    """When the next task may start: microseconds from now, with the durations that this rests on."""

    reason: str
    wait: int | None = None
    p50: int | None = None
    p90: int | None = None
    samples: int = 0


class Remaining(Struct, frozen=True):
    """How far a job may be, and how much longer its running tasks may take."""

    reason: str
    percent: int | None = None
    p50: int | None = None
    p90: int | None = None
    samples: int = 0


class Explanation(Struct, frozen=True):
    """The answer to why."""

    constraints: list[Constraint]
    position: int | None
    start: Start
    remaining: Remaining


def explain(job: Job, stage: Stage | None, tasks: Sequence[Task], seen: Seen) -> Explanation:
    """Explain a job by its current stage and the tasks of it that have not ended."""
    held = [found for rule in RULES for found in rule(job, stage, tasks, seen)]
    position = seen.ahead + 1 if ready_in(job, stage, tasks) else None
    return Explanation(held, position, _start(job, held, position, seen), _remaining(job, stage, tasks, seen))


def first_ready(tasks: Iterable[Task]) -> Task | None:
    """Return the task that a claim would be offered first."""
    return min((task for task in tasks if task.ready), key=lambda t: (-t.priority, t.rank, t.id), default=None)


# -- when it may start


_NO_START = {
    "ended": "The job has ended.",
    "canceling": "The job is being canceled.",
    "paused": "It starts when somebody resumes it.",
    "no_stages": "It starts when it has a stage.",
    "no_tasks": "It starts when its stage has tasks.",
    "approval": "It starts when somebody approves it.",
}


def _start(job: Job, held: Sequence[Constraint], position: int | None, seen: Seen) -> Start:
    codes = {found.code: found for found in held}
    for code, reason in _NO_START.items():
        if code in codes:
            return Start(reason)
    if position is not None:
        return _in_turn(position, "no_worker" in codes, seen)
    moment = codes.get("scheduled") or codes.get("backoff")
    if moment is not None and not {"running", "provider"} & codes.keys():
        wait = max((moment.until_at or 0) - seen.now, 0)
        return Start("Not before this moment; what will be in the queue by then is not known.", wait)
    return Start("It has started." if job.started_at else "It is about to be queued.")


def _in_turn(position: int, unattended: bool, seen: Seen) -> Start:  # noqa: FBT001 - one caller
    past = Past(seen.durations)
    if unattended:
        return Start("No worker takes this kind of task now.", samples=past.samples)
    paced = max((counted.limit.wait(position, *counted[1:], seen.now) for counted in seen.limits), default=0)
    if not past.enough:
        if paced:
            return Start(
                "Not before its rate lets it; what else is in front is not counted.", paced, samples=past.samples
            )
        return Start(_too_few(past), samples=past.samples)
    places = max(seen.running, 1)
    before = position if seen.running or seen.live or full(seen) else position - 1
    text = f"{places} of its queue at a time, each as long as the last {past.samples} took."
    if paced:
        text += " Not before its rate lets it."
    return Start(text, max(past.until_start(before, places), paced), past.p50, past.p90, past.samples)


# -- how far it may be


def _remaining(job: Job, stage: Stage | None, tasks: Sequence[Task], seen: Seen) -> Remaining:
    running = [task for task in tasks if task.status == "running"]
    past = Past(seen.durations)
    if stage is None or not running:
        return Remaining("Nothing of it runs now.", samples=past.samples)
    if not past.enough:
        return Remaining(_too_few(past), samples=past.samples)
    elapsed = [max(seen.now - seen.leased_at.get(task.id, seen.now), 0) for task in running]
    said = any(task.progress for task in running)
    done = sum(t.progress if said else past.percent(e) for t, e in zip(running, elapsed, strict=True))
    whole = (_FULL * stage.tasks_completed + done) // stage.tasks_total
    percent = min(max((_FULL * job.stages_completed + whole) // job.stages_total, job.progress), _FULL - 1)
    rest = [past.remaining(one) for one in elapsed]
    if any(one is None for one in rest):
        text = f"It takes longer than any of the last {past.samples} did."
        return Remaining(text, percent, samples=past.samples)
    more = len(tasks) > len(running) or stage.no < job.stages_total
    text = "Until its running tasks have ended; others follow." if more else "Until it has ended."
    p50, p90 = (max(one[n] for one in rest if one is not None) for n in (0, 1))
    return Remaining(text, percent, p50, p90, past.samples)


def _too_few(past: Past) -> str:
    were = "was" if past.samples == 1 else "were"
    return f"{counted(past.samples, 'task')} of its queue {were} completed so far; an estimate takes {SAMPLES_MIN}."
