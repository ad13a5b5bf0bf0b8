"""The command registry: every command with its decision and what the decision needs loaded.

`add_needs` names what to load first, `add_follow_up_needs` what to load once those rows are known. Both only save
round trips: a decision that needs anything else raises `NotLoaded`, and runs again once it is loaded.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions import (
    api_keys,
    claim,
    files,
    fleet,
    job_actions,
    lease,
    operator,
    provider_calls,
    submit,
    update_and_append,
)
from callsheet.core.decisions.audit import AuditSpec, with_audit
from callsheet.core.decisions.money import wallet_id
from callsheet.core.model import commands
from callsheet.core.model.ids import child_id
from callsheet.core.model.rows import (
    ApiKey,
    Attempt,
    Call,
    Cursor,
    File,
    Inbox,
    InstallationValue,
    Job,
    JobFile,
    Queue,
    Run,
    StorageUsage,
    Task,
    Tenant,
    Wallet,
    Worker,
)
from callsheet.core.policy.fair_order import queue_of
from callsheet.core.prefetched_facts import Needs
from callsheet.core.working_set import WorkingSet

FleetCommand = (
    commands.Register | commands.Deregister | commands.UpdateWorker | commands.RevokeWorker | commands.RotateWorker
    | commands.TickWorker
)  # fmt: skip
LeaseEnd = commands.Complete | commands.Fail | commands.Requeue | commands.HandOff


_SCANNED_ITEMS_MAX = 10_000


class CommandSpec(NamedTuple):
    """The decision of a command, and what it needs loaded."""

    decide: Callable[[WorkingSet, Any], Any]
    add_needs: Callable[[Any, Needs], None]
    """Adds what the command itself names."""
    add_follow_up_needs: Callable[[WorkingSet, Any, Needs], None] | None = None
    """Adds what the loaded rows name in turn."""


def _add_workflow_needs(command: commands.PutWorkflow, needs: Needs) -> None:
    needs.add(facts.CURRENT_DEFINITION, command.definition.name)
    file_ids = files.workflow_file_ids(command.definition, _SCANNED_ITEMS_MAX)
    needs.update(File, (key for key in file_ids if files.is_storable_id(key)))


def _add_create_key_needs(command: commands.CreateKey, needs: Needs) -> None:
    needs.add(ApiKey, command.id)
    needs.add(facts.API_KEY_BY_SECRET, command.secret_hash)
    if command.tenant:
        needs.add(Tenant, command.tenant)


def _add_submit_needs(command: commands.Submit, needs: Needs) -> None:
    needs.add(Tenant, command.tenant)
    needs.add(facts.CURRENT_DEFINITION, command.workflow)
    needs.add(Wallet, wallet_id(command.tenant, command.user))
    if dedup_key := submit.dedup_key_of(command):
        needs.add(facts.JOB_BY_IDEMPOTENCY_KEY, dedup_key)


def _add_file_needs(ws: WorkingSet, job_id: str, inputs: Iterable[Any], needs: Needs) -> None:
    """Add the files that inputs refer to. Inputs are not validated yet, so only a bounded part is searched."""
    for one in inputs:
        for key in islice(
            filter(files.is_storable_id, files.find_references(one, _SCANNED_ITEMS_MAX)), ws.limits.files_per_task_max
        ):
            needs.add(File, key)
            needs.add(JobFile, (job_id, key))


def _add_submit_follow_up(ws: WorkingSet, command: commands.Submit, needs: Needs) -> None:
    definition = ws.find_fact(facts.CURRENT_DEFINITION, command.workflow)
    if not definition:
        return
    stages = command.stages if command.stages is not None else definition.stages
    priority = definition.priority if command.priority is None else command.priority
    _add_file_needs(ws, command.id, (command.input,), needs)
    for no, stage in enumerate(stages):
        queue = queue_of(stage.kind, definition.name, stage.provider)
        needs.add(Queue, queue)
        if stage.inputs:
            _add_file_needs(ws, command.id, stage.inputs, needs)
        if no == 0 and not stage.approval:
            needs.add(facts.QUEUE_TAIL, (queue, priority, command.tenant))
            needs.add(facts.USER_TAIL, (queue, priority, command.tenant, command.user))


def _add_wallet_needs(command: commands.TopUp | commands.Adjust, needs: Needs) -> None:
    needs.add(Tenant, command.tenant)
    needs.add(Wallet, wallet_id(command.tenant, command.user))
    needs.add(facts.LEDGER_AMOUNT, operator.dedup_key_of(command))


def _add_claim_needs(command: commands.Claim, needs: Needs) -> None:
    needs.add(facts.CANDIDATE_TASK_IDS, command.kinds)
    if command.token_hash is not None:
        needs.add(Worker, command.worker_id)
        needs.add(facts.LEASED_TASK_IDS, command.worker_id)


def _add_worker_needs(command: FleetCommand, needs: Needs) -> None:
    needs.add(Worker, command.worker_id)
    if isinstance(command, commands.Register):
        needs.add(facts.REFERENCE_LOCK, fleet.FLEET)
        needs.add(facts.WORKER_COUNT, fleet.FLEET)
    draining = isinstance(command, commands.UpdateWorker) and command.draining
    if draining or not isinstance(command, commands.UpdateWorker | commands.RotateWorker):
        needs.add(facts.TASKS_OF_WORKER, command.worker_id)


def _add_worker_follow_up(ws: WorkingSet, command: FleetCommand, needs: Needs) -> None:
    for key in ws.find_fact(facts.TASKS_OF_WORKER, command.worker_id) or ():
        task = ws.get(Task, key)
        if ws.is_loaded(Job, task.job_id):
            _add_tick_task_follow_up(ws, commands.TickTask(job_id=task.job_id, task_id=task.id), needs)


def _add_upload_needs(command: commands.CreateUpload, needs: Needs) -> None:
    needs.add(Tenant, command.tenant)
    needs.add(StorageUsage, command.tenant)
    needs.add(File, command.id)
    # The lock makes sure that the uploads of a user are counted one at a time.
    needs.add(facts.REFERENCE_LOCK, f"uploads of {command.tenant}/{command.user}")
    needs.add(facts.PENDING_UPLOAD_COUNT, (command.tenant, command.user))


def _add_delete_files_needs(command: commands.DeleteFiles, needs: Needs) -> None:
    needs.update(File, command.file_ids)
    needs.update(facts.NEEDED_BY, command.file_ids)


def _add_delete_files_follow_up(ws: WorkingSet, command: commands.DeleteFiles, needs: Needs) -> None:
    needs.update(StorageUsage, (file.tenant for key in command.file_ids if (file := ws.find(File, key))))


def _add_finish_upload_needs(command: commands.FinishUpload, needs: Needs) -> None:
    needs.add(File, command.file_id)
    needs.add(StorageUsage, command.tenant)


def _add_announce_follow_up(ws: WorkingSet, command: commands.AnnounceOutputs, needs: Needs) -> None:
    if (job := ws.find(Job, command.lease.job_id)) is not None:
        needs.add(Tenant, job.tenant)
        needs.add(StorageUsage, job.tenant)


def _add_lease_needs(command: commands.Heartbeat | commands.RecordIntent, needs: Needs) -> None:
    needs.add(Job, command.lease.job_id)
    needs.add(Task, command.lease.task_id)
    if isinstance(command, commands.Heartbeat) and (command.message or command.log):
        needs.add(Attempt, (command.lease.task_id, command.lease.attempt))


def _add_lease_end_needs(
    command: LeaseEnd | commands.RecordSubmission | commands.AnnounceOutputs, needs: Needs
) -> None:
    key = command.lease
    needs.add(Job, key.job_id)
    needs.add(Task, key.task_id)
    needs.add(Attempt, (key.task_id, key.attempt))


def _add_lease_end_follow_up(ws: WorkingSet, command: LeaseEnd, needs: Needs) -> None:
    job = ws.find(Job, command.lease.job_id)
    if job is None or job.finished_at is not None:
        return
    needs.add(Run, (job.id, job.run))
    needs.add(facts.STAGES_OF_JOB, job.id)
    needs.add(facts.DEFINITION, (job.workflow, job.workflow_version))
    needs.add(Wallet, job.wallet_id)
    task = ws.find(Task, command.lease.task_id)
    if task is not None and task.has_call:
        needs.add(Call, child_id(task.id, task.attempts))
    attempt = ws.find(Attempt, (command.lease.task_id, command.lease.attempt))
    if getattr(command, "files", ()) or (attempt is not None and attempt.announced):
        needs.add(StorageUsage, job.tenant)


def _add_job_needs(command: commands.JobCommand | commands.TickJob, needs: Needs) -> None:
    needs.add(Job, command.job_id)


def _add_job_follow_up(ws: WorkingSet, command: commands.JobCommand | commands.TickJob, needs: Needs) -> None:
    job = ws.find(Job, command.job_id)
    if job is None:
        return
    needs.add(Run, (job.id, job.run))
    needs.add(facts.STAGES_OF_JOB, job.id)
    needs.add(facts.DEFINITION, (job.workflow, job.workflow_version))
    needs.add(Wallet, job.wallet_id)
    needs.add(Tenant, job.tenant)


def _add_stage_follow_up(ws: WorkingSet, command: commands.AddStage, needs: Needs) -> None:
    _add_job_follow_up(ws, command, needs)
    _add_file_needs(ws, command.job_id, command.stage.inputs or (), needs)


def _add_tasks_follow_up(ws: WorkingSet, command: commands.AddTasks, needs: Needs) -> None:
    _add_job_follow_up(ws, command, needs)
    _add_file_needs(ws, command.job_id, command.inputs, needs)


def _add_tick_task_needs(command: commands.TickTask, needs: Needs) -> None:
    needs.add(Job, command.job_id)
    needs.add(Task, command.task_id)


def _add_tick_task_follow_up(ws: WorkingSet, command: commands.TickTask, needs: Needs) -> None:
    task, job = ws.find(Task, command.task_id), ws.find(Job, command.job_id)
    if task is None or job is None:
        return
    needs.add(Attempt, (task.id, task.attempts))
    if task.has_call:
        needs.add(Call, child_id(task.id, task.attempts))
    _add_job_follow_up(ws, commands.TickJob(job_id=job.id), needs)


def _add_call_needs(command: commands.ClaimCall | commands.ReportOutcome, needs: Needs) -> None:
    needs.add(Job, command.job_id)
    needs.add(Call, command.call_id)
    if isinstance(command, commands.ReportOutcome) and command.outcome.ref:
        needs.add(facts.REFERENCE_LOCK, command.outcome.ref)


def _add_handoff_needs(command: commands.HandOff, needs: Needs) -> None:
    needs.add(facts.REFERENCE_LOCK, command.ref)
    _add_lease_end_needs(command, needs)


def _add_callback_needs(command: commands.Callback, needs: Needs) -> None:
    needs.add(Inbox, f"{command.provider}/{command.webhook_id}")
    if command.call_id:
        needs.add(facts.JOB_OF_CALL, command.call_id)
    if command.ref:
        needs.add(facts.REFERENCE_LOCK, command.ref)
        needs.add(facts.CALL_BY_REFERENCE, (command.provider, command.ref))


def _add_callback_follow_up(ws: WorkingSet, command: commands.Callback, needs: Needs) -> None:
    by_ref = ws.find_fact(facts.CALL_BY_REFERENCE, (command.provider, command.ref))
    for call_id in (command.call_id, by_ref):
        if call_id and (job_id := ws.find_fact(facts.JOB_OF_CALL, call_id)):
            needs.add(Job, job_id)
            needs.add(Call, call_id)


def _add_retry_needs(command: commands.Retry, needs: Needs) -> None:
    _add_job_needs(command, needs)
    if dedup_key := job_actions.retry_dedup_key(command):
        if command.retry_as == "new_job":
            needs.add(facts.JOB_BY_IDEMPOTENCY_KEY, dedup_key)
        else:
            needs.add(facts.RUN_EXISTS, (command.job_id, dedup_key))


_JOB_NEEDS = (_add_job_needs, _add_job_follow_up)
_WORKER_NEEDS = (_add_worker_needs, _add_worker_follow_up)


def _audit_admin(
    decide: Callable[[WorkingSet, Any], Any], action: str, *fields: str
) -> Callable[[WorkingSet, Any], Any]:
    return with_audit(decide, AuditSpec(action, "job_id", fields, admins_only=True))


COMMANDS: dict[type[commands.Command], CommandSpec] = {
    commands.PutTenant: CommandSpec(
        with_audit(
            operator.put_tenant,
            AuditSpec("tenant.put", "tenant", ("weight", "status"), ("active_jobs_max", "storage_bytes_max")),
        ),
        lambda c, needs: needs.add(facts.TENANT_LOCK, c.tenant),
    ),
    commands.PutWorkflow: CommandSpec(
        with_audit(operator.put_workflow, AuditSpec("workflow.put", "definition")), _add_workflow_needs
    ),
    commands.CreateKey: CommandSpec(
        with_audit(api_keys.create_key, AuditSpec("key.create", "id", ("role", "name", "expires_in_seconds"))),
        _add_create_key_needs,
    ),
    commands.RevokeKey: CommandSpec(
        with_audit(api_keys.revoke_key, AuditSpec("key.revoke", "key_id")),
        lambda c, needs: needs.add(ApiKey, c.key_id),
    ),
    commands.TopUp: CommandSpec(
        with_audit(operator.top_up, AuditSpec("wallet.topup", "user", ("amount", "reason"))), _add_wallet_needs
    ),
    commands.Adjust: CommandSpec(
        with_audit(operator.adjust, AuditSpec("wallet.adjust", "user", ("amount", "reason"))), _add_wallet_needs
    ),
    commands.Submit: CommandSpec(submit.submit, _add_submit_needs, _add_submit_follow_up),
    commands.Cancel: CommandSpec(_audit_admin(job_actions.cancel, "job.cancel", "reason"), *_JOB_NEEDS),
    commands.Pause: CommandSpec(_audit_admin(job_actions.pause, "job.pause"), *_JOB_NEEDS),
    commands.Resume: CommandSpec(_audit_admin(job_actions.resume, "job.resume"), *_JOB_NEEDS),
    commands.Approve: CommandSpec(_audit_admin(job_actions.approve, "stage.approve", "stage_id"), *_JOB_NEEDS),
    commands.RequireApproval: CommandSpec(
        _audit_admin(job_actions.require_approval, "stage.require_approval", "stage_id"), *_JOB_NEEDS
    ),
    commands.Retry: CommandSpec(_audit_admin(job_actions.retry, "job.retry"), _add_retry_needs, _add_job_follow_up),
    commands.Refund: CommandSpec(
        with_audit(job_actions.refund, AuditSpec("job.refund", "job_id", ("reason", "run"))), *_JOB_NEEDS
    ),
    commands.Delete: CommandSpec(_audit_admin(job_actions.delete, "job.delete"), *_JOB_NEEDS),
    commands.Update: CommandSpec(
        _audit_admin(update_and_append.update, "job.update", "priority", "labels"), *_JOB_NEEDS
    ),
    commands.AddStage: CommandSpec(update_and_append.add_stage, _add_job_needs, _add_stage_follow_up),
    commands.AddTasks: CommandSpec(update_and_append.add_tasks, _add_job_needs, _add_tasks_follow_up),
    commands.Register: CommandSpec(
        with_audit(fleet.register, AuditSpec("worker.register", "worker_id", ("kinds", "concurrency"))), *_WORKER_NEEDS
    ),
    commands.Deregister: CommandSpec(
        with_audit(fleet.deregister, AuditSpec("worker.deregister", "worker_id", ("reason",))), *_WORKER_NEEDS
    ),
    commands.UpdateWorker: CommandSpec(
        with_audit(fleet.update_worker, AuditSpec("worker.update", "worker_id", ("approved", "draining", "kinds"))),
        *_WORKER_NEEDS,
    ),
    commands.RevokeWorker: CommandSpec(
        with_audit(fleet.revoke_worker, AuditSpec("worker.revoke", "worker_id")), *_WORKER_NEEDS
    ),
    commands.RotateWorker: CommandSpec(
        with_audit(fleet.rotate_worker, AuditSpec("worker.rotate", "worker_id")), *_WORKER_NEEDS
    ),
    commands.TickWorker: CommandSpec(
        with_audit(fleet.tick_worker, AuditSpec("worker.silent", "worker_id")), *_WORKER_NEEDS
    ),
    commands.RecordHeartbeats: CommandSpec(fleet.record_heartbeats, lambda c, needs: needs.update(Worker, c.workers)),
    commands.CreateUpload: CommandSpec(files.create_upload, _add_upload_needs),
    commands.FinishUpload: CommandSpec(files.finish_upload, _add_finish_upload_needs),
    commands.DeleteFiles: CommandSpec(files.delete_files, _add_delete_files_needs, _add_delete_files_follow_up),
    commands.AnnounceOutputs: CommandSpec(files.announce_outputs, _add_lease_end_needs, _add_announce_follow_up),
    commands.Claim: CommandSpec(claim.claim, _add_claim_needs),
    commands.RecordSubmission: CommandSpec(lease.record_submission, _add_lease_end_needs),
    commands.Heartbeat: CommandSpec(lease.heartbeat, _add_lease_needs),
    commands.Complete: CommandSpec(lease.complete, _add_lease_end_needs, _add_lease_end_follow_up),
    commands.Fail: CommandSpec(lease.fail, _add_lease_end_needs, _add_lease_end_follow_up),
    commands.Requeue: CommandSpec(lease.requeue, _add_lease_end_needs, _add_lease_end_follow_up),
    commands.RecordIntent: CommandSpec(provider_calls.record_intent, _add_lease_needs),
    commands.HandOff: CommandSpec(provider_calls.hand_off, _add_handoff_needs, _add_lease_end_follow_up),
    commands.ClaimCall: CommandSpec(provider_calls.claim_call, _add_call_needs),
    commands.ReportOutcome: CommandSpec(provider_calls.report_outcome, _add_call_needs),
    commands.Callback: CommandSpec(provider_calls.callback, _add_callback_needs, _add_callback_follow_up),
    commands.TickJob: CommandSpec(job_actions.tick_job, *_JOB_NEEDS),
    commands.TickTask: CommandSpec(job_actions.tick_task, _add_tick_task_needs, _add_tick_task_follow_up),
    commands.AcquireCursor: CommandSpec(operator.acquire_cursor, lambda c, needs: needs.add(Cursor, c.name)),
    commands.AdvanceCursor: CommandSpec(operator.advance_cursor, lambda c, needs: needs.add(Cursor, c.name)),
    commands.RecordInstallationValue: CommandSpec(
        operator.record_installation_value, lambda c, needs: needs.add(InstallationValue, c.name)
    ),
    commands.ReplaceInstallationValue: CommandSpec(
        with_audit(operator.replace_installation_value, AuditSpec("installation.replace", "name")),
        lambda c, needs: needs.add(InstallationValue, c.name),
    ),
    commands.CheckWrite: CommandSpec(
        operator.check_write, lambda _, needs: needs.add(InstallationValue, operator.WRITE_CHECK)
    ),
}
