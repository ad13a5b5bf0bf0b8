"""Explains why a job waits: reads the facts, and converts the explanation to the API's struct."""

from typing import Any

from callsheet.api.explanation import Constraint, JobExplanation, ProgressEstimate, StartEstimate
from callsheet.core.model import rows
from callsheet.core.model.capped_count import cap_count
from callsheet.core.model.clock import SECOND
from callsheet.core.model.ids import child_id
from callsheet.core.policy.explanation.blocking_reasons import Constraint as CoreConstraint
from callsheet.core.policy.explanation.blocking_reasons import LimitUsage, Observation
from callsheet.core.policy.explanation.duration_estimate import SAMPLES_MAX
from callsheet.core.policy.explanation.job_explanation import Explanation, explain, first_ready
from callsheet.core.policy.explanation.kind_capacity import count_unavailable
from callsheet.core.policy.fair_order import queue_of
from callsheet.core.policy.task_start_limits import LimitedQueue, limits_of
from callsheet.core.policy.visibility import Viewer
from callsheet.engine.limit_use import UseCount
from callsheet.queries.context import QueryContext
from callsheet.queries.jobs import find_job
from callsheet.queries.render import to_datetime


async def explain_job(context: QueryContext, viewer: Viewer, job_id: str) -> JobExplanation:
    """Return the constraints on a job, its position in the queue, and estimates of its start and end."""
    job = await find_job(context, viewer, job_id)
    stage = await _current_stage(context, job)
    tasks, facts = await _load_facts(context, job, stage)
    return _view(job, stage, explain(job, stage, tasks, facts), facts.now)


# -- reading


async def _current_stage(context: QueryContext, job: rows.Job) -> rows.Stage | None:
    found = await context.reads.lookup("stages_of", id=job.id)
    return rows.Stage(*found[job.stages_completed]) if job.stages_completed < len(found) else None


async def _load_facts(
    context: QueryContext, job: rows.Job, stage: rows.Stage | None
) -> tuple[list[rows.Task], Observation]:
    """Read what the explanation needs; an ended job needs nothing."""
    if stage is None or job.finished_at is not None:
        return [], Observation(await context.reads.current_time())
    queue = queue_of(stage.kind, job.workflow, stage.provider)
    clock, open_tasks, queues, sharing = await context.reads.lookup_many([
        ("clock", {}), ("open_tasks", {"ids": [stage.id]}), ("queues_with_limits", {"ids": [queue]}),
        ("queues_sharing", {"kinds": [stage.kind], "workflows": [job.workflow], "providers": [stage.provider]}),
    ])  # fmt: skip
    tasks = [rows.Task(*row) for row in open_tasks]
    running = [task for task in tasks if task.status == "running"]
    now = context.reads.engine_time(clock[0][0])
    limits = [limit for row in queues for limit in limits_of(LimitedQueue(*row), context.limits)]
    use = UseCount(limits, [rows.Queue(*row) for row in sharing], now)
    reads, most = context.reads, context.settings.scan_rows_max
    ahead, running_count, lease_count, last, durations, attempts, calls, fleet, *counts = await reads.scan_many([
        ("count_tasks_ahead", _position_params(queue, first_ready(tasks), most + 1)),
        ("count_running", {"ids": [queue], "most": most + 1}),
        ("live_leases_of_kind", {"kind": stage.kind, "now": now, "most": most}),
        ("last_completed_of_kind", {"kind": stage.kind}),
        ("durations", {"queue": queue, "count": SAMPLES_MAX}),
        ("attempts", {"keys": [(task.id, task.attempts) for task in running] or [("", 0)]}),
        ("calls", {"ids": [child_id(task.id, task.attempts) for task in running if task.has_call]}),
        ("scale_fleet", {}),
        *use.named_queries(),
    ])  # fmt: skip
    tasks_ahead, queue_running = cap_count(ahead[0][0], most), cap_count(running_count[0][0], most)
    return tasks, Observation(
        now, tasks_ahead.value, queue_running.value, lease_count[0][0], last[0][0],
        [LimitUsage(limit, *used) for limit, used in use.add_up(counts).items()],
        [row[0] for row in durations], {a.task_id: a.leased_at for a in (rows.Attempt(*row) for row in attempts)},
        {call.task_id: call for call in (rows.Call(*row) for row in calls)},
        count_unavailable((rows.Worker(*row) for row in fleet), stage.kind),
        tasks_ahead.is_capped, queue_running.is_capped,
    )  # fmt: skip


def _position_params(queue: str, task: rows.Task | None, most: int) -> dict[str, Any]:
    """Return the parameters that count the tasks ahead of one. Without a task, nothing is ahead."""
    priority, tenant, user_rank, key = (
        (task.priority, task.tenant, task.user_rank, task.id) if task else (2**31, "", 0, "")
    )
    return {
        "queue": queue, "priority": priority, "tenant": tenant, "user_rank": user_rank, "id": key, "most": most,
    }  # fmt: skip


# -- rendering


def _view(job: rows.Job, stage: rows.Stage | None, why: Explanation, now: int) -> JobExplanation:
    start, remaining = why.start, why.remaining
    visible_stage = stage if job.finished_at is None else None
    return JobExplanation(
        job.id, job.status, job.progress, visible_stage.no if visible_stage else None, visible_stage.name
        if visible_stage else None,
        [_constraint(constraint) for constraint in why.constraints], why.position, why.position_is_capped,
        StartEstimate(
            None if start.wait is None else to_datetime(now + start.wait),
            _seconds(start.wait), _seconds(start.p50), _seconds(start.p90), start.samples, start.reason,
        ),
        ProgressEstimate(
            remaining.percent, _seconds(remaining.p50), _seconds(remaining.p90), remaining.samples,
            remaining.reason,
        ),
    )  # fmt: skip


def _constraint(constraint: CoreConstraint) -> Constraint:
    return Constraint(
        constraint.code, constraint.message, constraint.tasks, to_datetime(constraint.active_since_at),
        to_datetime(constraint.active_until_at), constraint.of, constraint.name,
        constraint.running, constraint.running_is_capped, constraint.running_max,
        constraint.started, constraint.started_in_window_max, constraint.within_seconds,
        constraint.ahead, constraint.ahead_is_capped, constraint.progress, constraint.workers,
    )  # fmt: skip


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else round(micros / SECOND, 3)
