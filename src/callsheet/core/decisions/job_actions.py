"""Actions on a job: cancel, pause, resume, approve, require approval, retry, refund, delete; and its timers.

The record of an ended run never changes: a retry opens a new run, or creates a new job.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.cascade import (
    cascade,
    current_stage,
    definition_of,
    finish,
    open_stage,
    open_tasks,
    stages,
    withdraw,
)
from callsheet.core.decisions.files import check_files_unused, check_workflow_files, forget_outputs, relink_files
from callsheet.core.decisions.lease import end_backoff, expire_lease, mark_call_unanswered
from callsheet.core.decisions.money import refund_consumed, reserve, wallet_of
from callsheet.core.decisions.submit import (
    check_active_jobs,
    check_enabled,
    check_not_deleted,
    copy_job,
    create_run,
    get_active_tenant,
)
from callsheet.core.decisions.transitions import move_job, move_stage, move_task_silently
from callsheet.core.model.clock import seconds
from callsheet.core.model.commands import (
    Approve,
    Balance,
    Cancel,
    Delete,
    JobCommand,
    JobState,
    Pause,
    Refund,
    RequireApproval,
    Resume,
    Retry,
    TickJob,
    TickTask,
)
from callsheet.core.model.errors import BadInput, Conflict, NotFound
from callsheet.core.model.ids import child_id
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Call, Document, Job, Run, Stage, Task, Wallet
from callsheet.core.model.state_machines import JOB, STAGE, TASK
from callsheet.core.model.workflow_definition import StageSpec, check_range
from callsheet.core.policy.redaction import redact_error
from callsheet.core.policy.request_validation import check_key
from callsheet.core.working_set import WorkingSet

_NO_ANNOTATIONS: dict[str, Any] = {"labels": None, "metadata": None, "trace": None}


def get_job(ws: WorkingSet, command: JobCommand) -> Job:
    """Return the job of a command. A deleted job, or a job of another tenant, is not found."""
    job = ws.find(Job, command.job_id)
    if job is None or job.tenant != command.tenant or job.deleted_at is not None:
        raise NotFound("job", command.job_id[:80])
    return job


def get_stage(ws: WorkingSet, job: Job, key: str) -> Stage:
    """Return a stage of a job by its id."""
    if key not in ws.get_fact(facts.STAGES_OF_JOB, job.id):
        raise NotFound("stage", key[:80])
    return ws.get(Stage, key)


def job_state(ws: WorkingSet, job: Job, *, changed: bool = True) -> JobState:
    """Return the current state of a job."""
    return JobState(ws.stored_job(job), changed)


def cancel(ws: WorkingSet, command: Cancel) -> JobState:
    """Cancel a job. Workers of its running tasks are notified, and lose their leases when the grace period ends."""
    job = get_job(ws, command)
    if job.status == "canceled":
        return job_state(ws, job, changed=False)
    JOB.step(job.status, "cancel", command.actor)
    grace = definition_of(ws, job).cancel_grace_seconds if command.grace_seconds is None else command.grace_seconds
    check_range("grace_seconds", grace, 0, ws.limits.lease_seconds_max)
    reason = redact_error(command.reason, ws.limits.message_chars_max)
    before, already_requested = job, job.cancel_requested_at is not None
    if already_requested:
        due_at = min(job.cancel_due_at or ws.now, ws.now + seconds(grace))
        job = replace(job, cancel_due_at=due_at, due_at=min(job.due_at or due_at, due_at))
    else:
        due_at = ws.now + seconds(grace)
        job = replace(job, cancel_requested_at=ws.change_time(job), cancel_reason=reason, cancel_due_at=due_at)
        job = replace(job, due_at=min(job.due_at or due_at, due_at))
    stage = current_stage(ws, job)
    if grace == 0 or stage is None or not stage.tasks_running:
        finish(ws, job, "cancel", command.actor, "canceled", job.cancel_reason)
        return job_state(ws, job)
    if job != before:
        ws.put(job)
    if not already_requested:
        withdraw(ws, job)
        _make_calls_due(ws, job)
        ws.emit(job, "job.cancel_requested", command.actor, {"reason": reason})
    return job_state(ws, job, changed=not already_requested)


def _make_calls_due(ws: WorkingSet, job: Job) -> None:
    """Make the provider calls of a job due, so that the collector forwards the cancel."""
    stage = current_stage(ws, job)
    for task in open_tasks(ws, stage) if stage else []:
        if task.status == "running" and task.token_hash is None:
            call = ws.get(Call, child_id(task.id, task.attempts))
            ws.put(replace(call, collect_at=ws.now))


def pause(ws: WorkingSet, command: Pause) -> JobState:
    """Pause a job: no more tasks are claimed; running tasks finish and their results count."""
    job = get_job(ws, command)
    if job.status == "paused":
        return job_state(ws, job, changed=False)
    JOB.step(job.status, "pause", command.actor)
    if job.cancel_requested_at is not None:
        raise Conflict("cancel_requested", "The job is being canceled and cannot be paused: retry it after it ended.")
    withdraw(ws, job)
    return job_state(ws, move_job(ws, job, "pause", command.actor, {}))


def resume(ws: WorkingSet, command: Resume) -> JobState:
    """Resume a paused job: as running if it had started, else as queued, or as pending until its start time."""
    job = get_job(ws, command)
    if job.status in {"pending", "queued", "running"}:
        return job_state(ws, job, changed=False)
    if job.started_at is not None:
        event = "continue"
    else:
        event = "postpone" if job.start_at is not None and job.start_at > ws.now else "resume"
    job = move_job(ws, job, event, command.actor, {})
    _open_current_stage(ws, job)
    return job_state(ws, job)


def _open_current_stage(ws: WorkingSet, job: Job) -> None:
    stage = current_stage(ws, job)
    if stage is not None and stage.status in {"pending", "running"}:
        open_stage(ws, job, stage)


def approve(ws: WorkingSet, command: Approve) -> JobState:
    """Approve a waiting stage and record who approved it."""
    job = get_job(ws, command)
    stage = get_stage(ws, job, command.stage_id)
    if not command.approver.strip():
        raise BadInput("approver_required", "`approver` is empty: name the person who approves the stage.")
    if stage.status in {"pending", "running", "completed"} and stage.approved_at is not None:
        return job_state(ws, job, changed=False)
    before = job.stages_completed + 1
    if stage.status == "waiting" and stage.no != before:
        message = f"Stage {before} is not completed yet: approve stage {stage.no} after it."
        raise Conflict("previous_stage_open", message)
    stage = move_stage(
        ws, job, stage, "approve", command.actor, approved_by=command.approver[:255], approved_at=ws.change_time(job)
    )
    open_stage(ws, job, stage)
    cascade(ws, job.id)
    return job_state(ws, job)


def require_approval(ws: WorkingSet, command: RequireApproval) -> JobState:
    """Make a stage wait for an approval before more of its tasks are claimed."""
    job = get_job(ws, command)
    if job.finished_at is not None:
        raise Conflict("job_ended", f"The job is {job.status}. Only a job that has not ended can require an approval.")
    stage = get_stage(ws, job, command.stage_id)
    if stage.status == "waiting" or (stage.status == "created" and stage.approval):
        return job_state(ws, job, changed=False)
    STAGE.step(stage.status, "require_approval", command.actor)
    if stage.status == "created":
        ws.put(replace(stage, approval=1))
        ws.emit(job, "stage.approval_required", command.actor, {"stage_no": stage.no}, entity_id=stage.id)
        return job_state(ws, job)
    withdraw(ws, job)
    move_stage(ws, job, stage, "require_approval", command.actor, approval=1, approved_by=None, approved_at=None)
    return job_state(ws, job)


def retry(ws: WorkingSet, command: Retry) -> JobState:
    """Retry an ended job: open its next run, or with `retry_as=new_job` submit a copy of it."""
    job = get_job(ws, command)
    if command.idempotency_key is not None:
        check_key(command.idempotency_key, ws.limits)
    if previous := _find_previous_retry(ws, job, command):
        return previous
    JOB.step(job.status, "retry", command.actor)
    definition = definition_of(ws, job)
    check_enabled(ws.get_fact(facts.CURRENT_DEFINITION, job.workflow) or definition)
    check_workflow_files(ws, definition)
    wallet = wallet_of(ws, job.tenant, job.user_id)
    check_active_jobs(ws, get_active_tenant(ws, job.tenant), wallet)
    opened_at = job.start_at or ws.get(Run, (job.id, job.run)).opened_at
    new_deadline_at = None if job.deadline_at is None else ws.change_time(job) + job.deadline_at - opened_at
    if command.retry_as == "new_job":
        new_job = copy_job(ws, job, command.id, retry_dedup_key(command), new_deadline_at)
        reserve(ws, wallet, new_job, command.actor)
        body = ws.find(Document, (job.id, "input"))
        create_run(ws, new_job, definition, _stage_specs(ws, job), body.body if body else None, command)
        if new_job.dedup_key:
            ws.set_fact(facts.JOB_BY_IDEMPOTENCY_KEY, new_job.dedup_key, new_job)
        return job_state(ws, new_job)
    reopened = replace(job, run=job.run + 1)
    relink_files(ws, reopened)
    reserve(ws, wallet, reopened, command.actor)
    dedup_key = retry_dedup_key(command)
    ws.put(Run(job.id, reopened.run, job.tenant, dedup_key or command.id, job.price, ws.change_time(job)))
    if dedup_key:
        ws.set_fact(facts.RUN_EXISTS, (job.id, dedup_key), value=True)
    reopened = move_job(
        ws, reopened, "retry", command.actor, {"price": job.price}, start_at=None, deadline_at=new_deadline_at,
        started_at=None,
        finished_at=None, cancel_requested_at=None, cancel_reason=None, cancel_due_at=None, error_code=None,
        error_message=None,
    )  # fmt: skip
    reopened = move_job(ws, reopened, "release", "system", {})
    _reset_unfinished(ws, reopened)
    cascade(ws, reopened.id)
    return job_state(ws, reopened)


def _stage_specs(ws: WorkingSet, job: Job) -> list[StageSpec]:
    """Return the specs of all stages of a job, including inline and appended ones."""
    specs = []
    for stage in stages(ws, job):
        bodies = [ws.find(Document, (key, "input")) for key in ws.get_fact(facts.TASKS_OF_STAGE, stage.id)]
        inputs = [msgspec.json.decode(body.body) if body else None for body in bodies]
        specs.append(
            StageSpec(
                name=stage.name, kind=stage.kind, inputs=inputs, approval=bool(stage.approval), provider=stage.provider
            )
        )
    return specs


def retry_dedup_key(command: Retry) -> str | None:
    """Return the stored form of a retry's idempotency key, if it has one."""
    return None if command.idempotency_key is None else f"retry/{command.job_id}/{command.idempotency_key}"


def _find_previous_retry(ws: WorkingSet, job: Job, command: Retry) -> JobState | None:
    """Return the result of an earlier execution of this retry, or of one with the same idempotency key."""
    dedup_key = retry_dedup_key(command)
    if command.retry_as == "new_run":
        last = ws.find(Run, (job.id, job.run)) if ws.retrying else None
        own = last is not None and last.command_id == command.id
        return job_state(ws, job) if own or (dedup_key and ws.get_fact(facts.RUN_EXISTS, (job.id, dedup_key))) else None
    existing = ws.get_fact(facts.JOB_BY_IDEMPOTENCY_KEY, dedup_key) if dedup_key else None
    if ws.retrying:
        existing = existing or ws.find(Job, command.id)
    if existing is None:
        return None
    check_not_deleted(existing)
    return JobState(ws.stored_job(existing), changed=False)


def _reset_unfinished(ws: WorkingSet, job: Job) -> None:
    """Reset the stages and tasks that are not completed; completed tasks keep their results."""
    for stage in stages(ws, job):
        if stage.status == "completed":
            continue
        for key in ws.get_fact(facts.TASKS_OF_STAGE, stage.id):
            task = ws.get(Task, key)
            if task.status in TASK.terminal and task.status != "completed":
                move_task_silently(
                    ws, task, "reset", "system", attempts_counted=0, requeues=0, progress=0, message=None,
                    ready_at=None, worker_id=None, error_code=None, error_message=None, finished_at=None,
                )  # fmt: skip
        ws.set_fact(facts.OPEN_TASKS_OF_STAGE, stage.id, ws.get_fact(facts.TASKS_OF_STAGE, stage.id))
        reset = ws.get(Stage, stage.id)
        move_stage(ws, job, reset, "reset", "system", approved_by=None, approved_at=None, finished_at=None)


def refund(ws: WorkingSet, command: Refund) -> Balance:
    """Refund the credits that an ended run consumed. A run is refunded at most once."""
    job = get_job(ws, command)
    no = job.run if command.run is None else command.run
    run = ws.find(Run, (job.id, no)) if 1 <= no <= job.run else None
    if run is None:
        raise NotFound("run", str(no))
    if not command.reason.strip():
        raise BadInput("reason_required", "`reason` is empty: say why the credits are refunded.")
    if run.status == "open":
        raise Conflict("run_not_ended", f"Run {no} has not ended: refund it after it ended, or cancel the job.")
    if not run.consumed:
        refunded = f"its price of {pluralize(run.refunded, 'credit')} was refunded when it ended"
        message = f"Run {no} consumed no credits: {refunded if run.refunded else 'it was free'}."
        raise Conflict("nothing_to_refund", message)
    dedup_key = f"refund/{job.id}/{no}"
    wallet = ws.get(Wallet, job.wallet_id)
    if ws.get_fact(facts.LEDGER_AMOUNT, dedup_key) is not None:
        return Balance(wallet.balance, wallet.reserved, replay=True)
    reason = redact_error(command.reason, ws.limits.message_chars_max)
    wallet = refund_consumed(ws, wallet, job, run, dedup_key, reason, command.actor)
    ws.set_fact(facts.LEDGER_AMOUNT, dedup_key, run.consumed)
    ws.emit(job, "job.refunded", command.actor, {"refunded_run": no, "refunded": run.consumed})
    return Balance(wallet.balance, wallet.reserved)


def delete(ws: WorkingSet, command: Delete) -> JobState:
    """Delete a job: cancel it if it is open, then remove its documents and annotations. Ids and ledger stay."""
    job = ws.find(Job, command.job_id)
    if job is not None and job.tenant == command.tenant and job.deleted_at is not None:
        return job_state(ws, job, changed=False)
    job = get_job(ws, command)
    check_files_unused(ws, job)
    if job.finished_at is None:
        job = replace(job, cancel_requested_at=job.cancel_requested_at or ws.change_time(job), cancel_reason="Deleted.")
        job = finish(ws, job, "cancel", command.actor, "canceled", job.cancel_reason)
    forget_outputs(ws, job)
    ws.put(replace(job, deleted_at=ws.change_time(job), output_bytes=0, **_NO_ANNOTATIONS))
    for stage in stages(ws, job):
        ws.put(replace(stage, **_NO_ANNOTATIONS))
        for key in ws.get_fact(facts.TASKS_OF_STAGE, stage.id):
            ws.put(replace(ws.get(Task, key), message=None, **_NO_ANNOTATIONS))
    ws.purge(job.id)
    ws.emit(job, "job.deleted", command.actor)
    return job_state(ws, job)


# -- timers


def tick_job(ws: WorkingSet, command: TickJob) -> None:
    """Apply what is due for a job: the end of a cancel's grace period, its deadline, or its start time."""
    job = ws.find(Job, command.job_id)
    if job is None or job.due_at is None or job.due_at > ws.now:
        return
    if job.cancel_due_at is not None and job.cancel_due_at <= ws.now:
        finish(ws, job, "stop", "system", "canceled", job.cancel_reason)
    elif job.deadline_at is not None and job.deadline_at <= ws.now:
        expire(ws, job, "deadline_exceeded", "The job did not end before its deadline.")
    else:
        _open_current_stage(ws, move_job(ws, job, "release", "system", {}))


def expire(ws: WorkingSet, job: Job, code: str, text: str) -> None:
    """Expire a job. A job that never started is moved to running first, in the same transaction."""
    if job.started_at is None:
        job = move_job(ws, job, "preflight", "system", {"preflight": True}, started_at=ws.change_time(job))
    finish(ws, job, "expire", "system", code, text)


def tick_task(ws: WorkingSet, command: TickTask) -> None:
    """Apply what is due for a task: its lease has expired, or its backoff has ended."""
    task = ws.find(Task, command.task_id)
    if task is None or task.due_at is None or task.due_at > ws.now:
        return
    job = ws.get(Job, task.job_id)
    if task.status != "running":
        end_backoff(ws, job, task)
    elif not mark_call_unanswered(ws, task):
        expire_lease(ws, job, task)
