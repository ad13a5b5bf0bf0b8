"""State transitions: the only functions that change the status of a job, stage or task.

Each checks the move against its state machine, puts the row and emits the event.
"""

from typing import Any

from msgspec.structs import replace

from callsheet.core.model.rows import Event, Job, Stage, Task
from callsheet.core.model.state_machines import JOB, STAGE, TASK, Actor
from callsheet.core.working_set import WorkingSet

EVENT_NAMES = {
    "submit": "created", "schedule": "created", "block": "blocked", "release": "released", "start": "started",
    "preflight": "started", "pause": "paused", "resume": "resumed", "continue": "resumed", "postpone": "resumed",
    "complete": "completed", "fail": "failed", "expire": "expired", "cancel": "canceled", "stop": "canceled",
    "retry": "retried", "open": "opened", "require_approval": "waiting", "approve": "approved", "lease": "leased",
}  # fmt: skip
"""The last part of the stored event's type: `job.started`, `stage.approved`, `task.leased`."""

JOB_EVENT_TYPES = {event: f"job.{past}" for event, past in EVENT_NAMES.items()}

_COUNT_COLUMNS = {
    "running": "tasks_running", "completed": "tasks_completed", "failed": "tasks_failed", "canceled": "tasks_canceled",
}  # fmt: skip


def due(job: Job) -> int | None:
    """Return when the next timer of a job is due."""
    if job.finished_at is not None:
        return None
    timers = (job.start_at if job.status == "pending" else None, job.deadline_at, job.cancel_due_at)
    return min((at for at in timers if at is not None), default=None)


_SAME_DUE_STATUSES = frozenset({"queued", "running", "paused"})
"""Moves between these statuses do not change when a job is due."""


def move_job(ws: WorkingSet, job: Job, event: str, actor: Actor, data: dict[str, Any], **changes: Any) -> Job:
    """Move a job and emit the event."""
    source = job.status
    target = JOB.step(source, event, actor)
    after = replace(job, status=target, **changes)
    if source not in _SAME_DUE_STATUSES or target not in _SAME_DUE_STATUSES:
        after = replace(after, due_at=None if after.finished_at is not None else due(after))
    ws.put(after)
    ws.emit(after, JOB_EVENT_TYPES[event], actor, data, source=source, target=target)
    return after


def job_status_after(event: Event) -> str | None:
    """Return the job's status after an event, or None if the event does not change it."""
    return event.target if event.type.startswith("job.") else None


def move_stage(ws: WorkingSet, job: Job, stage: Stage, event: str, actor: Actor, **changes: Any) -> Stage:
    """Move a stage and emit the event."""
    target = STAGE.step(stage.status, event, actor)
    after = replace(stage, status=target, **changes)
    ws.put(after)
    if "waiting" in {stage.status, target}:
        ws.put(replace(ws.get(Job, job.id), waiting_at=ws.change_time(job) if target == "waiting" else None))
    if event != "reset":
        ws.emit(
            job, f"stage.{EVENT_NAMES[event]}", actor, {"stage_no": stage.no},
            entity_id=stage.id, source=stage.status, target=target,
        )  # fmt: skip
    return after


def move_task_silently(
    ws: WorkingSet, task: Task, event: str, actor: Actor, delivered: int = 0, **changes: Any
) -> Task:
    """Move a task and update the counts of its stage, without an event: the stage's event covers it."""
    target = TASK.step(task.status, event, actor)
    after = replace(task, status=target, **changes)
    ws.put(after)
    leaving, entering = _COUNT_COLUMNS.get(task.status), _COUNT_COLUMNS.get(target)
    if leaving or entering:
        stage = ws.get(Stage, task.stage_id)
        counts = {"delivered": stage.delivered + delivered}
        if leaving:
            counts[leaving] = getattr(stage, leaving) - 1
        if entering:
            counts[entering] = getattr(stage, entering) + 1
        ws.put(replace(stage, **counts))
    return after


def move_task(
    ws: WorkingSet, job: Job, task: Task, event: str, actor: Actor, data: dict[str, Any], **changes: Any
) -> Task:
    """Move a task, update the counts of its stage and emit the event."""
    after = move_task_silently(ws, task, event, actor, **changes)
    ws.emit(
        job, f"task.{EVENT_NAMES[event]}", actor, {"task_no": task.no, "attempt": after.attempts, **data},
        entity_id=task.id, source=task.status, target=after.status,
    )  # fmt: skip
    return after
