"""Why a job is where it is: the reads behind the explanation, and how it looks to a client."""

from typing import Any

from msgspec import Struct

from callsheet.core import rows
from callsheet.core.clock import SECOND
from callsheet.core.constraints import AHEAD_MAX, Counted, Seen
from callsheet.core.constraints import Constraint as Held
from callsheet.core.crew import absent
from callsheet.core.estimate import SAMPLES_MAX
from callsheet.core.ids import child
from callsheet.core.limiting import Limited, limits_of
from callsheet.core.order import queue_of
from callsheet.core.why import Explanation, explain, first_ready
from callsheet.engine.offers import counting
from callsheet.http.house import House
from callsheet.http.jobs import job_row
from callsheet.http.request import Request
from callsheet.http.route import WATCHERS, Answer, Route
from callsheet.http.views import moment

_COUNTED_MAX = 10_000


class Constraint(Struct, frozen=True):
    """One thing that holds the job: a stable code, a sentence, and its numbers; what does not apply is null."""

    code: str
    message: str
    tasks: int
    """How many tasks it is about; 0 is the whole job."""
    since_at: str | None
    until_at: str | None
    of: str | None
    """What a limit is of, or who is missing: `workflow`, `kind`, `provider`."""
    name: str | None
    running: int | None
    running_max: int | None
    started: int | None
    """Tasks that count towards a rate: they started within its stretch of time."""
    started_max: int | None
    within_seconds: int | None
    ahead: int | None
    progress: int | None
    workers: int | None


class StartEstimate(Struct, frozen=True):
    """When the job, or its next task, may start: a guess from what tasks of its queue took; null without a basis."""

    estimate: bool
    estimated_start_at: str | None
    estimated_seconds: float | None
    duration_seconds_p50: float | None
    duration_seconds_p90: float | None
    samples: int
    reason: str


class ProgressEstimate(Struct, frozen=True):
    """How far the job may be, for kinds that report nothing: a guess from past durations; null without a basis."""

    estimate: bool
    percent: int | None
    remaining_seconds_p50: float | None
    remaining_seconds_p90: float | None
    samples: int
    reason: str


class Why(Struct, frozen=True):
    """What holds a job, its place in its queue, and when it may start and end."""

    job_id: str
    status: str
    progress: int
    stage_no: int | None
    stage: str | None
    constraints: list[Constraint]
    position: int | None
    start: StartEstimate
    remaining: ProgressEstimate


async def get_why(house: House, request: Request) -> Answer:
    job = await job_row(house, request)
    stage = await _current(house, job)
    tasks, seen = await _seen(house, job, stage)
    return Answer(_view(job, stage, explain(job, stage, tasks, seen), seen.now))


# -- reading


async def _current(house: House, job: rows.Job) -> rows.Stage | None:
    found = await house.reads.fetch("stages_of", id=job.id)
    return rows.Stage(*found[job.stages_completed]) if job.stages_completed < len(found) else None


async def _seen(house: House, job: rows.Job, stage: rows.Stage | None) -> tuple[list[rows.Task], Seen]:
    """Read what the explanation needs; an ended job needs nothing."""
    if stage is None or job.finished_at is not None:
        ((now,),) = await house.reads.fetch("clock")
        return [], Seen(now)
    queue = queue_of(stage.kind, job.workflow, stage.provider)
    clock, open_tasks, queues, sharing = await house.reads.fetch_all([
        ("clock", {}), ("open_tasks", {"ids": [stage.id]}), ("queues_limited", {"ids": [queue]}),
        ("queues_sharing", {"kinds": [stage.kind], "workflows": [job.workflow], "providers": [stage.provider]}),
    ])  # fmt: skip
    tasks = [rows.Task(*row) for row in open_tasks]
    running = [task for task in tasks if task.status == "running"]
    now = clock[0][0]
    limits = [limit for row in queues for limit in limits_of(Limited(*row), house.engine.settings.limits)]
    beside = [rows.Queue(*row) for row in sharing]
    ahead, taken, live, last, durations, attempts, calls, fleet, *counts = await house.scans.fetch_all([
        ("ahead", _place(queue, first_ready(tasks))),
        ("running_in", {"ids": [queue], "most": _COUNTED_MAX}),
        ("leases_of_kind", {"kind": stage.kind, "most": _COUNTED_MAX}),
        ("last_of_kind", {"kind": stage.kind}),
        ("durations", {"queue": queue, "count": SAMPLES_MAX}),
        ("attempts", {"keys": [(task.id, task.attempts) for task in running] or [("", 0)]}),
        ("calls", {"ids": [child(task.id, task.attempts) for task in running if task.called]}),
        ("scale_fleet", {}),
        *(counting(limit, beside, now) for limit in limits),
    ])  # fmt: skip
    return tasks, Seen(
        now, ahead[0][0], taken[0][0], live[0][0], last[0][0],
        [Counted(limit, *counted) for limit, (counted,) in zip(limits, counts, strict=True)],
        [row[0] for row in durations], {a.task_id: a.leased_at for a in (rows.Attempt(*row) for row in attempts)},
        {call.task_id: call for call in (rows.Call(*row) for row in calls)},
        absent((rows.Worker(*row) for row in fleet), stage.kind),
    )  # fmt: skip


def _place(queue: str, task: rows.Task | None) -> dict[str, Any]:
    """Return what counts the tasks in front of one; before the first place there is nobody."""
    priority, rank, key = (task.priority, task.rank, task.id) if task else (2**31, 0, "")
    return {"queue": queue, "priority": priority, "rank": rank, "id": key, "most": AHEAD_MAX}


# -- rendering


def _view(job: rows.Job, stage: rows.Stage | None, why: Explanation, now: int) -> Why:
    start, left = why.start, why.remaining
    shown = stage if job.finished_at is None else None
    return Why(
        job.id, job.status, job.progress, shown.no if shown else None, shown.name if shown else None,
        [_constraint(held) for held in why.constraints], why.position,
        StartEstimate(
            True, None if start.wait is None else moment(now + start.wait),  # noqa: FBT003 - the label
            _seconds(start.wait), _seconds(start.p50), _seconds(start.p90), start.samples, start.reason,
        ),
        ProgressEstimate(
            True, left.percent, _seconds(left.p50), _seconds(left.p90), left.samples, left.reason,  # noqa: FBT003
        ),
    )  # fmt: skip


def _constraint(held: Held) -> Constraint:
    return Constraint(
        held.code, held.message, held.tasks, moment(held.since_at), moment(held.until_at), held.of, held.name,
        held.running, held.running_max, held.started, held.started_max, held.within_seconds, held.ahead,
        held.progress, held.workers,
    )  # fmt: skip


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else round(micros / SECOND, 3)


ROUTES = (
    Route(
        "GET", "/v1/jobs/{job_id}/why", get_why, WATCHERS, "Ask why a job waits", Why, problems=("404 job_not_found",),
        details="Names every constraint that holds the job or its open tasks: `ended`, `canceling`, `paused`, "
        "`scheduled`, `no_stages`, `no_tasks`, `approval`, `running_limit`, `rate_limit`, `no_worker`, `queued`, "
        "`backoff`, `provider`, `running`. `position` is its place in the queue of its kind and workflow. `start` and "
        "`remaining` are estimates from the newest completed tasks of that queue, and say so. A cap on a user's "
        "active jobs never holds an accepted job: it refuses the submit. Of other tenants there are only counts.",
    ),
)  # fmt: skip
