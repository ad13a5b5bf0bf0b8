"""Explanation of a job's state: its constraints, its position in the queue, and estimates of its start and end.

It explains rows and counts that were read before; nothing here decides.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Job, Stage, Task
from callsheet.core.policy.explanation.blocking_reasons import RULES, Constraint, Observation, count_ready, full
from callsheet.core.policy.explanation.duration_estimate import SAMPLES_MIN, PastDurations

_PERCENT_MAX = 100


class StartEstimate(Struct, frozen=True):
    """Estimated start of the next task, in microseconds from now, and the durations behind it."""

    reason: str
    wait: int | None = None
    p50: int | None = None
    p90: int | None = None
    samples: int = 0


class RemainingEstimate(Struct, frozen=True):
    """Estimated progress of a job, and the remaining time of its running tasks."""

    reason: str
    percent: int | None = None
    p50: int | None = None
    p90: int | None = None
    samples: int = 0


class Explanation(Struct, frozen=True):
    """Why a job does not run, and when it may start and end."""

    constraints: list[Constraint]
    position: int | None
    position_is_capped: bool
    start: StartEstimate
    remaining: RemainingEstimate


def explain(job: Job, stage: Stage | None, tasks: Sequence[Task], observation: Observation) -> Explanation:
    """Explain a job from its current stage and the stage's open tasks."""
    constraints = [found for rule in RULES for found in rule(job, stage, tasks, observation)]
    position = observation.ahead + 1 if count_ready(job, stage, tasks) else None
    return Explanation(
        constraints,
        position,
        position is not None and observation.ahead_is_capped,
        _estimate_start(job, constraints, position, observation),
        _estimate_remaining(job, stage, tasks, observation),
    )


def first_ready(tasks: Iterable[Task]) -> Task | None:
    """Return the task that would be claimed first."""
    return min((task for task in tasks if task.ready), key=lambda t: (-t.priority, t.user_rank, t.id), default=None)


# -- estimated start


_NO_START = {
    "ended": "The job has ended.",
    "canceling": "The job is being canceled.",
    "paused": "It starts after it is resumed.",
    "no_stages": "It starts when it has a stage.",
    "no_tasks": "It starts when its stage has tasks.",
    "approval": "It starts after its approval.",
}


def _estimate_start(
    job: Job, constraints: Sequence[Constraint], position: int | None, observation: Observation
) -> StartEstimate:
    codes = {found.code: found for found in constraints}
    for code, reason in _NO_START.items():
        if code in codes:
            return StartEstimate(reason)
    if position is not None:
        return _estimate_queued_start(position, "no_worker" in codes, observation)
    moment = codes.get("scheduled") or codes.get("backoff")
    if moment is not None and not {"running", "provider"} & codes.keys():
        wait = max((moment.active_until_at or 0) - observation.now, 0)
        return StartEstimate("Not earlier than this; the length of the queue at that time is not known.", wait)
    return StartEstimate("It has started." if job.started_at else "It is about to be queued.")


def _estimate_queued_start(position: int, no_worker: bool, observation: Observation) -> StartEstimate:  # noqa: FBT001 - one caller
    history = PastDurations(observation.durations)
    if no_worker:
        return StartEstimate("No worker serves this kind of task now.", samples=history.samples)
    rate_wait = max(
        (counted.limit.wait(position, *counted[1:], observation.now) for counted in observation.limits), default=0
    )
    if not history.has_enough_samples:
        if rate_wait:
            return StartEstimate(
                "Not earlier than its rate limit allows; other tasks ahead are not included.",
                rate_wait,
                samples=history.samples,
            )
        return StartEstimate(_too_few_samples(history), samples=history.samples)
    parallel = max(observation.running, 1)
    before = position if observation.running or observation.live_leases or full(observation) else position - 1
    text = f"Assumes {parallel} of its queue at a time, and the durations of the last {history.samples}."
    if observation.ahead_is_capped:
        text += f" A lower bound: more than {pluralize(observation.ahead, 'task', verb='is')} ahead."
    if rate_wait:
        text += " Not earlier than its rate limit allows."
    return StartEstimate(
        text, max(history.estimate_wait(before, parallel), rate_wait), history.p50, history.p90, history.samples
    )


# -- estimated progress


def _estimate_remaining(
    job: Job, stage: Stage | None, tasks: Sequence[Task], observation: Observation
) -> RemainingEstimate:
    running = [task for task in tasks if task.status == "running"]
    history = PastDurations(observation.durations)
    if stage is None or not running:
        return RemainingEstimate("None of its tasks is running.", samples=history.samples)
    if not history.has_enough_samples:
        return RemainingEstimate(_too_few_samples(history), samples=history.samples)
    elapsed = [max(observation.now - observation.leased_at.get(task.id, observation.now), 0) for task in running]
    reports_progress = any(task.progress for task in running)
    done = sum(t.progress if reports_progress else history.percent(e) for t, e in zip(running, elapsed, strict=True))
    stage_percent = (_PERCENT_MAX * stage.tasks_completed + done) // stage.tasks_total
    percent = min(
        max((_PERCENT_MAX * job.stages_completed + stage_percent) // job.stages_total, job.progress), _PERCENT_MAX - 1
    )
    left = [history.remaining(one) for one in elapsed]
    if any(one is None for one in left):
        text = f"It has taken longer than each of the last {history.samples}."
        return RemainingEstimate(text, percent, samples=history.samples)
    more = len(tasks) > len(running) or stage.no < job.stages_total
    text = "Time until its running tasks end; more tasks follow." if more else "Time until it ends."
    p50, p90 = (max(one[n] for one in left if one is not None) for n in (0, 1))
    return RemainingEstimate(text, percent, p50, p90, history.samples)


def _too_few_samples(history: PastDurations) -> str:
    completed = pluralize(history.samples, "task")
    return f"{completed} of its queue completed so far; an estimate needs at least {SAMPLES_MIN}."
