"""What people do to a job while it lives and after: cancel, pause, resume, approve, hold, retry, refund, delete."""

from typing import Any

import msgspec
from msgspec.structs import replace

from callsheet.core.cascade import cascade, current, finish, open_stage, open_tasks, recipe_of, stages, withdraw
from callsheet.core.clock import seconds
from callsheet.core.commands import (
    Approve,
    Balance,
    Cancel,
    Delete,
    Hold,
    JobCommand,
    JobState,
    Pause,
    Refund,
    Resume,
    Retry,
    TickJob,
    TickTask,
)
from callsheet.core.counting import counted
from callsheet.core.errors import BadInput, Conflict, Unknown
from callsheet.core.files import check_lent, check_named, use_again
from callsheet.core.ids import child
from callsheet.core.lease import answer_lost, backoff_over, lapse
from callsheet.core.machine import JOB, STAGE, TASK
from callsheet.core.money import give_back, reserve, wallet_of
from callsheet.core.moves import move_job, move_stage, shift
from callsheet.core.recipe import StageSpec, in_range
from callsheet.core.redact import clean
from callsheet.core.rows import Call, Document, Job, Run, Stage, Task, Wallet
from callsheet.core.submit import active_tenant, check_cap, check_enabled, check_key, check_there, copy_of, plant
from callsheet.core.working import WorkingSet

_NO_NOTES: dict[str, Any] = {"labels": None, "metadata": None, "trace": None}


def job_of(ws: WorkingSet, command: JobCommand) -> Job:
    """Return the job a command is about; another tenant's job, and a deleted one, looks absent."""
    job = ws.find(Job, command.job_id)
    if job is None or job.tenant != command.tenant or job.deleted_at is not None:
        raise Unknown("job", command.job_id[:80])
    return job


def stage_of(ws: WorkingSet, job: Job, key: str) -> Stage:
    """Return a stage of a job."""
    if key not in ws.fact("stages", job.id):
        raise Unknown("stage", key[:80])
    return ws.get(Stage, key)


def state(ws: WorkingSet, job: Job, *, changed: bool = True) -> JobState:
    """Say where a job is now."""
    now = ws.get(Job, job.id)
    return JobState(now.id, now.status, now.run, now.cancel_requested_at is not None, changed)


def cancel(ws: WorkingSet, command: Cancel) -> JobState:
    """Stop at once what has not started; ask what runs to stop, and revoke its lease when the grace is over."""
    job = job_of(ws, command)
    if job.status == "canceled":
        return state(ws, job, changed=False)
    JOB.step(job.status, "cancel", command.actor)
    grace = recipe_of(ws, job).cancel_grace_seconds if command.grace_seconds is None else command.grace_seconds
    in_range("grace_seconds", grace, 0, ws.limits.lease_seconds_max)
    reason = clean(command.reason, ws.limits.message_chars_max)
    before, asked = job, job.cancel_requested_at is not None
    if asked:
        due_at = min(job.cancel_due_at or ws.now, ws.now + seconds(grace))
        job = replace(job, cancel_due_at=due_at, due_at=min(job.due_at or due_at, due_at))
    else:
        due_at = ws.now + seconds(grace)
        job = replace(job, cancel_requested_at=ws.at(job), cancel_reason=reason, cancel_due_at=due_at)
        job = replace(job, due_at=min(job.due_at or due_at, due_at))
    stage = current(ws, job)
    if grace == 0 or stage is None or not stage.tasks_running:
        finish(ws, job, "cancel", command.actor, "canceled", job.cancel_reason)
        return state(ws, job)
    if job != before:
        ws.put(job)
    if not asked:
        withdraw(ws, job)
        _tell_calls(ws, job)
        ws.emit(job, "job.cancel_requested", command.actor, {"reason": reason})
    return state(ws, job, changed=not asked)


def _tell_calls(ws: WorkingSet, job: Job) -> None:
    """Make the provider calls of a job due, so that the collector passes the cancel on."""
    stage = current(ws, job)
    for task in open_tasks(ws, stage) if stage else []:
        if task.status == "running" and task.token_hash is None:
            call = ws.get(Call, child(task.id, task.attempts))
            ws.put(replace(call, collect_at=ws.now))


def pause(ws: WorkingSet, command: Pause) -> JobState:
    """Hand out nothing more; what runs goes on and its results count."""
    job = job_of(ws, command)
    if job.status == "paused":
        return state(ws, job, changed=False)
    JOB.step(job.status, "pause", command.actor)
    if job.cancel_requested_at is not None:
        raise Conflict("cancel_requested", "The job is being canceled: it cannot be paused.")
    withdraw(ws, job)
    return state(ws, move_job(ws, job, "pause", command.actor, {}))


def resume(ws: WorkingSet, command: Resume) -> JobState:
    """Go on where the job was: running if it had begun, else queued, or waiting for its hour."""
    job = job_of(ws, command)
    if job.status in {"pending", "queued", "running"}:
        return state(ws, job, changed=False)
    if job.started_at is not None:
        event = "continue"
    else:
        event = "postpone" if job.start_at is not None and job.start_at > ws.now else "resume"
    job = move_job(ws, job, event, command.actor, {})
    _offer_current(ws, job)
    return state(ws, job)


def _offer_current(ws: WorkingSet, job: Job) -> None:
    stage = current(ws, job)
    if stage is not None and stage.status in {"pending", "running"}:
        open_stage(ws, job, stage)


def approve(ws: WorkingSet, command: Approve) -> JobState:
    """Let a waiting stage go on, in the name of a person."""
    job = job_of(ws, command)
    stage = stage_of(ws, job, command.stage_id)
    if not command.approver.strip():
        raise BadInput("approver_required", "An approval names who gives it.")
    if stage.status in {"pending", "running", "completed"} and stage.approved_at is not None:
        return state(ws, job, changed=False)
    before = job.stages_completed + 1
    if stage.status == "waiting" and stage.no != before:
        raise Conflict("previous_stage_open", f"Stage {before} is not completed: stage {stage.no} cannot go on.")
    stage = move_stage(
        ws, job, stage, "approve", command.actor, approved_by=command.approver[:255], approved_at=ws.at(job)
    )
    open_stage(ws, job, stage)
    cascade(ws, job.id)
    return state(ws, job)


def hold(ws: WorkingSet, command: Hold) -> JobState:
    """Make a stage wait for approval before it hands out anything more."""
    job = job_of(ws, command)
    if job.finished_at is not None:
        raise Conflict("job_ended", f"The job is {job.status}.")
    stage = stage_of(ws, job, command.stage_id)
    if stage.status == "waiting" or (stage.status == "created" and stage.gate):
        return state(ws, job, changed=False)
    STAGE.step(stage.status, "hold", command.actor)
    if stage.status == "created":
        ws.put(replace(stage, gate=1))
        ws.emit(job, "stage.gated", command.actor, {"stage_no": stage.no}, entity_id=stage.id)
        return state(ws, job)
    withdraw(ws, job)
    move_stage(ws, job, stage, "hold", command.actor, approved_by=None, approved_at=None)
    return state(ws, job)


def retry(ws: WorkingSet, command: Retry) -> JobState:
    """Open run n+1 beside the untouched record of run n, or make a new job like the old one."""
    job = job_of(ws, command)
    if command.idempotency_key is not None:
        check_key(command.idempotency_key, ws.limits)
    if own := _opened_before(ws, job, command):
        return own
    JOB.step(job.status, "retry", command.actor)
    recipe = recipe_of(ws, job)
    check_enabled(ws.fact("current_recipe", job.workflow))
    check_named(ws, recipe)
    wallet = wallet_of(ws, job.tenant, job.user_id)
    check_cap(ws, active_tenant(ws, job.tenant), wallet)
    opened_at = job.start_at or ws.get(Run, (job.id, job.run)).opened_at
    lasting = None if job.deadline_at is None else ws.now + job.deadline_at - opened_at
    if command.retry_as == "new_job":
        fresh = copy_of(ws, job, command.id, retry_idem(command), lasting)
        reserve(ws, wallet, fresh, command.actor)
        body = ws.find(Document, (job.id, "input"))
        plant(ws, fresh, recipe, _specs(ws, job), body.body if body else None, command)
        if fresh.idem:
            ws.set_fact("idem", fresh.idem, fresh)
        return state(ws, fresh)
    again = replace(job, run=job.run + 1)
    use_again(ws, again)
    reserve(ws, wallet, again, command.actor)
    idem = retry_idem(command)
    ws.put(Run(job.id, again.run, job.tenant, idem or command.id, job.price, ws.at(job)))
    if idem:
        ws.set_fact("run_named", (job.id, idem), value=True)
    again = move_job(
        ws, again, "retry", command.actor, {"price": job.price}, start_at=None, deadline_at=lasting, started_at=None,
        finished_at=None, cancel_requested_at=None, cancel_reason=None, cancel_due_at=None, error_code=None,
        error_message=None,
    )  # fmt: skip
    again = move_job(ws, again, "release", "system", {})
    _reset(ws, again)
    cascade(ws, again.id)
    return state(ws, again)


def _specs(ws: WorkingSet, job: Job) -> list[StageSpec]:
    """Describe a job's stages as they are, with those that it brought or got later."""
    specs = []
    for stage in stages(ws, job):
        bodies = [ws.find(Document, (key, "input")) for key in ws.fact("tasks", stage.id)]
        inputs = [msgspec.json.decode(body.body) if body else None for body in bodies]
        specs.append(
            StageSpec(name=stage.name, kind=stage.kind, inputs=inputs, gate=bool(stage.gate), provider=stage.provider)
        )
    return specs


def retry_idem(command: Retry) -> str | None:
    """Return the name under which a retry is known, if it has a key."""
    return None if command.idempotency_key is None else f"retry/{command.job_id}/{command.idempotency_key}"


def _opened_before(ws: WorkingSet, job: Job, command: Retry) -> JobState | None:
    """Return what the same retry has opened: the one that is run again, or one that was sent with the same key."""
    idem = retry_idem(command)
    if command.retry_as == "new_run":
        last = ws.find(Run, (job.id, job.run)) if ws.again else None
        own = last is not None and last.command_id == command.id
        return state(ws, job) if own or (idem and ws.fact("run_named", (job.id, idem))) else None
    made: Job | None = ws.fact("idem", idem) if idem else None
    if ws.again:
        made = made or ws.find(Job, command.id)
    if made is None:
        return None
    check_there(made)
    return JobState(made.id, made.status, made.run, made.cancel_requested_at is not None, changed=False)


def _reset(ws: WorkingSet, job: Job) -> None:
    """Plan again what was not completed; completed tasks keep their results."""
    for stage in stages(ws, job):
        if stage.status == "completed":
            continue
        for key in ws.fact("tasks", stage.id):
            task = ws.get(Task, key)
            if task.status in TASK.terminal and task.status != "completed":
                shift(
                    ws, task, "reset", "system", attempts_charged=0, requeues=0, progress=0, message=None,
                    ready_at=None, worker_id=None, error_code=None, error_message=None, finished_at=None,
                )  # fmt: skip
        ws.set_fact("open_tasks", stage.id, ws.fact("tasks", stage.id))
        reset = ws.get(Stage, stage.id)
        move_stage(ws, job, reset, "reset", "system", approved_by=None, approved_at=None, finished_at=None)


def refund(ws: WorkingSet, command: Refund) -> Balance:
    """Give back what an ended run has consumed, once; what went back by itself does not go back again."""
    job = job_of(ws, command)
    no = job.run if command.run is None else command.run
    run = ws.find(Run, (job.id, no)) if 1 <= no <= job.run else None
    if run is None:
        raise Unknown("run", str(no))
    if not command.reason.strip():
        raise BadInput("reason_required", "A refund needs a reason: say why the credits go back.")
    if run.status == "open":
        raise Conflict("run_open", f"Run {no} has not ended: what it costs is settled when it does.")
    if not run.consumed:
        back = counted(run.returned, "credit")
        raise Conflict("nothing_to_refund", f"Run {no} kept nothing: {back} went back when it ended.")
    idem = f"refund/{job.id}/{no}"
    wallet = ws.get(Wallet, job.wallet_id)
    if ws.fact("entry", idem) is not None:
        return Balance(wallet.balance, wallet.held, replay=True)
    reason = clean(command.reason, ws.limits.message_chars_max)
    wallet = give_back(ws, wallet, job, run, idem, reason, command.actor)
    ws.set_fact("entry", idem, run.consumed)
    ws.emit(job, "job.refunded", command.actor, {"refunded_run": no, "refunded": run.consumed})
    return Balance(wallet.balance, wallet.held)


def delete(ws: WorkingSet, command: Delete) -> JobState:
    """Take a job out of sight: stop it first if it lives, then drop its texts. Ids, money and evidence stay."""
    job = ws.find(Job, command.job_id)
    if job is not None and job.tenant == command.tenant and job.deleted_at is not None:
        return state(ws, job, changed=False)
    job = job_of(ws, command)
    check_lent(ws, job)
    if job.finished_at is None:
        job = replace(job, cancel_requested_at=job.cancel_requested_at or ws.at(job), cancel_reason="Deleted.")
        job = finish(ws, job, "cancel", command.actor, "canceled", job.cancel_reason)
    ws.put(replace(job, deleted_at=ws.at(job), **_NO_NOTES))
    for stage in stages(ws, job):
        ws.put(replace(stage, **_NO_NOTES))
        for key in ws.fact("tasks", stage.id):
            ws.put(replace(ws.get(Task, key), message=None, **_NO_NOTES))
    ws.purge(job.id)
    ws.emit(job, "job.deleted", command.actor)
    return state(ws, job)


# -- the clock


def tick_job(ws: WorkingSet, command: TickJob) -> None:
    """Do what a job's moment asks for: the end of its grace, its deadline, its hour."""
    job = ws.find(Job, command.job_id)
    if job is None or job.due_at is None or job.due_at > ws.now:
        return
    if job.cancel_due_at is not None and job.cancel_due_at <= ws.now:
        finish(ws, job, "stop", "system", "canceled", job.cancel_reason)
    elif job.deadline_at is not None and job.deadline_at <= ws.now:
        expire(ws, job, "deadline_exceeded", "The job did not end before its deadline.")
    else:
        _offer_current(ws, move_job(ws, job, "release", "system", {}))


def expire(ws: WorkingSet, job: Job, code: str, text: str) -> None:
    """End a job that ran out of time; one that never started passes through running in the same instant."""
    if job.started_at is None:
        job = move_job(ws, job, "preflight", "system", {"preflight": True}, started_at=ws.at(job))
    finish(ws, job, "expire", "system", code, text)


def tick_task(ws: WorkingSet, command: TickTask) -> None:
    """Do what a task's moment asks for: its lease ran out, or its wait is over."""
    task = ws.find(Task, command.task_id)
    if task is None or task.due_at is None or task.due_at > ws.now:
        return
    job = ws.get(Job, task.job_id)
    if task.status != "running":
        backoff_over(ws, job, task)
    elif not answer_lost(ws, task):
        lapse(ws, job, task)
