"""Cascade rules: how a change to a task moves its stage and its job.

When all tasks of a stage are completed, the stage completes. A failed task fails its stage and its job. The next
stage opens, or waits for its approval. When all stages are completed, the job completes.

The rules read counts, never all rows, and are applied until none matches. They run inside the decision that caused
the change, so a job is never left between two stages.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.files import release_outputs
from callsheet.core.decisions.money import settle
from callsheet.core.decisions.transitions import move_job, move_stage, move_task_silently
from callsheet.core.model.ids import child_id
from callsheet.core.model.rows import Attempt, Call, Job, Run, Stage, Task
from callsheet.core.model.state_machines import JOB, STAGE, TASK, Actor
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.core.policy.fair_order import queue_task
from callsheet.core.working_set import WorkingSet

_FULL = 100
LEASE_CLEARED: dict[str, Any] = {"ready": 0, "due_at": None, "token_hash": None, "lease_expires_at": None}


def cascade(ws: WorkingSet, job_id: str) -> Job:
    """Apply the rules until none matches, and return the job."""
    job = ws.get(Job, job_id)
    for _ in range(4 * job.stages_total + 8):
        job = ws.get(Job, job_id)
        if job.finished_at is not None:
            return job
        stage = current_stage(ws, job)
        for rule in RULES:
            if rule(ws, job, stage):
                break
        else:
            return job
    message = f"the cascade rules of job {job_id} did not reach a fixed point"
    raise AssertionError(message)


def stages(ws: WorkingSet, job: Job) -> list[Stage]:
    """Return a job's stages in order."""
    return [ws.get(Stage, key) for key in ws.get_fact(facts.STAGES_OF_JOB, job.id)]


def open_tasks(ws: WorkingSet, stage: Stage) -> list[Task]:
    """Return the tasks of a stage that have not ended."""
    found = (ws.get(Task, key) for key in ws.get_fact(facts.OPEN_TASKS_OF_STAGE, stage.id))
    return [task for task in found if task.status not in TASK.terminal]


def current_stage(ws: WorkingSet, job: Job) -> Stage | None:
    """Return the first stage that is not completed."""
    if job.stages_completed >= job.stages_total:
        return None
    return ws.get(Stage, ws.get_fact(facts.STAGES_OF_JOB, job.id)[job.stages_completed])


def definition_of(ws: WorkingSet, job: Job) -> WorkflowDefinition:
    """Return the version of the workflow definition that the job was submitted with."""
    return ws.get_fact(facts.DEFINITION, (job.workflow, job.workflow_version))


# -- the rules


def _fail_stage(ws: WorkingSet, job: Job, stage: Stage | None) -> bool:
    if stage is None or not stage.tasks_failed or stage.status in STAGE.terminal:
        return False
    move_stage(ws, job, stage, "fail", "system", finished_at=ws.change_time(job))
    finish(ws, job, "fail", "system", job.error_code, job.error_message)
    return True


def _complete_stage(ws: WorkingSet, job: Job, stage: Stage | None) -> bool:
    if stage is None or stage.status not in {"pending", "running"}:
        return False
    if not stage.tasks_total or stage.tasks_completed < stage.tasks_total:
        return False
    move_stage(ws, job, stage, "complete", "system", finished_at=ws.change_time(job))
    done = job.stages_completed + 1
    ws.put(replace(job, stages_completed=done, progress=max(job.progress, _FULL * done // job.stages_total)))
    return True


def _cancel_job(ws: WorkingSet, job: Job, stage: Stage | None) -> bool:
    if job.cancel_requested_at is None or stage is None or stage.tasks_running:
        return False
    finish(ws, job, "stop", "worker", "canceled", job.cancel_reason)
    return True


def _open_next_stage(ws: WorkingSet, job: Job, stage: Stage | None) -> bool:
    if stage is None or stage.status != "created":
        return False
    if stage.approval and stage.approved_at is None:
        move_stage(ws, job, stage, "require_approval", "system")
    else:
        open_stage(ws, job, move_stage(ws, job, stage, "open", "system"))
    return True


def _complete_job(ws: WorkingSet, job: Job, _stage: Stage | None) -> bool:
    if not job.stages_total or job.stages_completed < job.stages_total or job.status == "pending":
        return False
    if job.status == "queued":  # a retry of a run whose tasks are all completed
        job = move_job(ws, job, "preflight", "system", {"preflight": True}, started_at=ws.change_time(job))
    finish(ws, job, "complete", "system", None, None, outputs=_last_stage(ws, job).tasks_completed)
    return True


RULES: tuple[Callable[[WorkingSet, Job, Stage | None], bool], ...] = (
    _fail_stage, _complete_stage, _complete_job, _cancel_job, _open_next_stage,
)  # fmt: skip


# -- making tasks claimable


def open_stage(ws: WorkingSet, job: Job, stage: Stage) -> None:
    """Open the tasks of a stage, and make them claimable if the job accepts claims."""
    for task in open_tasks(ws, stage):
        opened = move_task_silently(ws, task, "open", "system") if task.status == "created" else task
        make_claimable(ws, job, stage, opened)


def accepts_claims(job: Job, stage: Stage) -> bool:
    """Return whether workers may claim tasks of this stage."""
    return (
        job.status in {"queued", "running"}
        and job.cancel_requested_at is None
        and stage.status in {"pending", "running"}
    )


def make_claimable(ws: WorkingSet, job: Job, stage: Stage, task: Task) -> None:
    """Make a waiting task claimable now, or schedule it for the end of its backoff."""
    if task.status not in {"pending", "retried"} or not accepts_claims(job, stage):
        return
    if task.ready_at is not None and task.ready_at > ws.now:
        ws.put(replace(task, ready=0, due_at=task.ready_at))
        return
    ws.put(queue_task(ws, replace(task, due_at=None)))
    ws.woken_kinds.add(task.kind)


def withdraw(ws: WorkingSet, job: Job) -> None:
    """Remove the waiting tasks of a job from the queue."""
    stage = current_stage(ws, job)
    if stage is None:
        return
    for task in open_tasks(ws, stage):
        if task.status in {"pending", "retried"} and (task.ready or task.due_at is not None):
            ws.leave_queue(task)
            ws.put(replace(task, ready=0, due_at=None))


# -- the end of a run


def finish(
    ws: WorkingSet, job: Job, event: str, actor: Actor, code: str | None, message: str | None, **data: object
) -> Job:
    """End the current run: move the job, cancel what is open, settle the credits, close the run's record."""
    final_status = JOB.target(event)
    run = ws.get(Run, (job.id, job.run))
    change_time = ws.change_time(job)
    if event != "complete":
        job = _cancel_children(ws, job, change_time)
    settlement = settle(ws, job, run, final_status, definition_of(ws, job).refunds, _delivered_percent(ws, job))
    started = job.started_at
    if started is None and final_status in {"failed", "expired"}:
        started = change_time
    progress = _FULL if final_status == "completed" else job.progress
    data |= {"price": run.price, "consumed": settlement.consumed, "refunded": settlement.refunded}
    if code:
        data |= {"code": code, "message": message}
    after = move_job(
        ws, job, event, actor, data, started_at=started, finished_at=change_time, progress=progress,
        cancel_due_at=None, waiting_at=None, error_code=code, error_message=message,
    )  # fmt: skip
    record = replace(
        run, status=final_status, consumed=settlement.consumed, refunded=settlement.refunded, started_at=started,
        finished_at=change_time, error_code=code, error_message=message,
    )  # fmt: skip
    ws.put(record)
    active = ws.facts.get((facts.ACTIVE_JOB_COUNT, job.wallet_id))
    if active is not None:
        ws.set_fact(facts.ACTIVE_JOB_COUNT, job.wallet_id, active - 1)
    return after


def _last_stage(ws: WorkingSet, job: Job) -> Stage:
    return ws.get(Stage, ws.get_fact(facts.STAGES_OF_JOB, job.id)[-1])


def _delivered_percent(ws: WorkingSet, job: Job) -> int:
    if not job.stages_total or job.stages_completed < job.stages_total:
        return _FULL
    last = _last_stage(ws, job)
    return -(-last.delivered // last.tasks_total)


def _cancel_children(ws: WorkingSet, job: Job, change_time: int) -> Job:
    """Cancel the open stages and tasks of a job. Revokes leases and ends provider calls; completed tasks stay."""
    for stage in stages(ws, job):
        if stage.status == "completed":
            continue
        for task in open_tasks(ws, stage):
            if task.status == "running":
                job = _revoke_lease(ws, job, task, change_time)
            ws.leave_queue(task)
            move_task_silently(ws, task, "cancel", "system", finished_at=change_time, **LEASE_CLEARED)
        if stage.status not in STAGE.terminal:
            move_stage(ws, job, ws.get(Stage, stage.id), "cancel", "system", finished_at=change_time)
    return job


def _revoke_lease(ws: WorkingSet, job: Job, task: Task, change_time: int) -> Job:
    attempt = ws.get(Attempt, (task.id, task.attempts))
    ws.put(replace(attempt, ended_at=max(change_time, attempt.leased_at), outcome="canceled", uncounted=1))
    call = ws.find(Call, child_id(task.id, task.attempts)) if task.has_call else None
    if call is not None and call.ended_at is None:
        ws.put(replace(call, status="ended", ended_at=change_time, outcome="canceled", collect_at=None))
    return release_outputs(ws, job, attempt)
