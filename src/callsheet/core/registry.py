"""Every command with its decision, and with the rows it is known to need.

`wants` is what to load first; `follows` what to load once those are there. Both only save time: a decision that
needs something else says so with `Missing`, and is asked again.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from callsheet.core.decisions import (
    amend,
    api_keys,
    claim,
    files,
    fleet,
    job_actions,
    lease,
    operator,
    provider_calls,
    submit,
)
from callsheet.core.decisions.audit import AuditSpec, with_audit
from callsheet.core.decisions.money import wallet_id
from callsheet.core.model import commands
from callsheet.core.model.ids import child_id
from callsheet.core.model.rows import Job, Task
from callsheet.core.policy.fair_order import queue_of
from callsheet.core.working_set import Key, WorkingSet

KeySets = dict[str, set[Key]]
"""Keys by what they name: a table or a fact. Missing names begin empty."""


FleetCommand = (
    commands.Register | commands.Deregister | commands.UpdateWorker | commands.RevokeWorker | commands.RotateWorker
    | commands.TickWorker
)  # fmt: skip
LeaseEnd = commands.Complete | commands.Fail | commands.Requeue | commands.HandOff


_SCANNED_ITEMS_MAX = 10_000


class CommandSpec(NamedTuple):
    """How a command is decided."""

    decide: Callable[[WorkingSet, Any], Any]
    key_sets: Callable[[Any, KeySets], None]
    dependents: Callable[[WorkingSet, Any, KeySets], None] | None = None


def _add_workflow_keys(command: commands.PutWorkflow, key_sets: KeySets) -> None:
    key_sets["current_definition"].add(command.definition.name)
    key_sets["file"].update(
        key for key in files.workflow_file_ids(command.definition, _SCANNED_ITEMS_MAX) if files.is_storable_id(key)
    )


def _add_create_key_keys(command: commands.CreateKey, key_sets: KeySets) -> None:
    key_sets["api_key"].add(command.id)
    key_sets["key_of"].add(command.secret_hash)
    if command.tenant:
        key_sets["tenant"].add(command.tenant)


def _add_submit_keys(command: commands.Submit, key_sets: KeySets) -> None:
    key_sets["tenant"].add(command.tenant)
    key_sets["current_definition"].add(command.workflow)
    key_sets["wallet"].add(wallet_id(command.tenant, command.user))
    if dedup_key := submit.dedup_key_of(command):
        key_sets["dedup_key"].add(dedup_key)


def _add_file_keys(ws: WorkingSet, job_id: str, inputs: Iterable[Any], key_sets: KeySets) -> None:
    """Load the files that inputs refer to at once; an input is not checked yet, so only its beginning is looked at."""
    for one in inputs:
        for key in islice(
            filter(files.is_storable_id, files.find_references(one, _SCANNED_ITEMS_MAX)), ws.limits.files_per_task_max
        ):
            key_sets["file"].add(key)
            key_sets["job_file"].add((job_id, key))


def _add_submit_dependents(ws: WorkingSet, command: commands.Submit, key_sets: KeySets) -> None:
    definition = ws.find_fact("current_definition", command.workflow)
    if not definition:
        return
    stages = command.stages if command.stages is not None else definition.stages
    priority = definition.priority if command.priority is None else command.priority
    _add_file_keys(ws, command.id, (command.input,), key_sets)
    for no, stage in enumerate(stages):
        queue = queue_of(stage.kind, definition.name, stage.provider)
        key_sets["queue"].add(queue)
        if stage.inputs:
            _add_file_keys(ws, command.id, stage.inputs, key_sets)
        if no == 0 and not stage.approval:
            key_sets["tail"].add((queue, priority, command.tenant))


def _add_wallet_keys(command: commands.TopUp | commands.Adjust, key_sets: KeySets) -> None:
    key_sets["tenant"].add(command.tenant)
    key_sets["wallet"].add(wallet_id(command.tenant, command.user))
    key_sets["entry"].add(operator.dedup_key_of(command))


def _add_claim_keys(command: commands.Claim, key_sets: KeySets) -> None:
    key_sets["offer"].add(command.kinds)
    if command.session is not None:
        key_sets["worker"].add(command.worker_id)
        key_sets["holds"].add(command.worker_id)


def _add_worker_keys(command: FleetCommand, key_sets: KeySets) -> None:
    key_sets["worker"].add(command.worker_id)
    if isinstance(command, commands.Register):
        key_sets["ref"].add(fleet.FLEET)
        key_sets["fleet"].add(fleet.FLEET)
    draining = isinstance(command, commands.UpdateWorker) and command.draining
    if draining or not isinstance(command, commands.UpdateWorker | commands.RotateWorker):
        key_sets["tasks_of_workers"].add(command.worker_id)


def _add_worker_dependents(ws: WorkingSet, command: FleetCommand, key_sets: KeySets) -> None:
    for key in ws.find_fact("tasks_of_workers", command.worker_id) or ():
        task = ws.get(Task, key)
        if ws.is_loaded(Job, task.job_id):
            _add_tick_task_dependents(ws, commands.TickTask(job_id=task.job_id, task_id=task.id), key_sets)


def _add_upload_keys(command: commands.CreateUpload, key_sets: KeySets) -> None:
    key_sets["tenant"].add(command.tenant)
    key_sets["file"].add(command.id)
    key_sets["ref"].add(f"uploads of {command.tenant}/{command.user}")  # counted by one at a time
    key_sets["uploading"].add((command.tenant, command.user))


def _add_delete_files_keys(command: commands.DeleteFiles, key_sets: KeySets) -> None:
    key_sets["file"].update(command.file_ids)
    key_sets["needed"].update(command.file_ids)


def _add_lease_keys(command: commands.Heartbeat | commands.RecordIntent, key_sets: KeySets) -> None:
    key_sets["job"].add(command.lease.job_id)
    key_sets["task"].add(command.lease.task_id)
    if isinstance(command, commands.Heartbeat) and (command.message or command.log):
        key_sets["attempt"].add((command.lease.task_id, command.lease.attempt))


def _add_lease_end_keys(command: LeaseEnd | commands.RecordSubmission, key_sets: KeySets) -> None:
    key = command.lease
    key_sets["job"].add(key.job_id)
    key_sets["task"].add(key.task_id)
    key_sets["attempt"].add((key.task_id, key.attempt))


def _add_lease_end_dependents(ws: WorkingSet, command: LeaseEnd, key_sets: KeySets) -> None:
    job = ws.find(Job, command.lease.job_id)
    if job is None or job.finished_at is not None:
        return
    key_sets["run"].add((job.id, job.run))
    key_sets["stages"].add(job.id)
    key_sets["definition"].add((job.workflow, job.workflow_version))
    key_sets["wallet"].add(job.wallet_id)
    task = ws.find(Task, command.lease.task_id)
    if task is not None and task.has_call:
        key_sets["call"].add(child_id(task.id, task.attempts))


def _add_job_keys(command: commands.JobCommand | commands.TickJob, key_sets: KeySets) -> None:
    key_sets["job"].add(command.job_id)


def _add_job_dependents(ws: WorkingSet, command: commands.JobCommand | commands.TickJob, key_sets: KeySets) -> None:
    job = ws.find(Job, command.job_id)
    if job is None:
        return
    key_sets["run"].add((job.id, job.run))
    key_sets["stages"].add(job.id)
    key_sets["definition"].add((job.workflow, job.workflow_version))
    key_sets["wallet"].add(job.wallet_id)
    key_sets["tenant"].add(job.tenant)


def _add_stage_dependents(ws: WorkingSet, command: commands.AddStage, key_sets: KeySets) -> None:
    _add_job_dependents(ws, command, key_sets)
    _add_file_keys(ws, command.job_id, command.stage.inputs or (), key_sets)


def _add_tasks_dependents(ws: WorkingSet, command: commands.AddTasks, key_sets: KeySets) -> None:
    _add_job_dependents(ws, command, key_sets)
    _add_file_keys(ws, command.job_id, command.inputs, key_sets)


def _add_tick_task_keys(command: commands.TickTask, key_sets: KeySets) -> None:
    key_sets["job"].add(command.job_id)
    key_sets["task"].add(command.task_id)


def _add_tick_task_dependents(ws: WorkingSet, command: commands.TickTask, key_sets: KeySets) -> None:
    task, job = ws.find(Task, command.task_id), ws.find(Job, command.job_id)
    if task is None or job is None:
        return
    key_sets["attempt"].add((task.id, task.attempts))
    if task.has_call:
        key_sets["call"].add(child_id(task.id, task.attempts))
    _add_job_dependents(ws, commands.TickJob(job_id=job.id), key_sets)


def _add_call_keys(command: commands.ClaimCall | commands.ReportOutcome, key_sets: KeySets) -> None:
    key_sets["job"].add(command.job_id)
    key_sets["call"].add(command.call_id)
    if isinstance(command, commands.ReportOutcome) and command.outcome.ref:
        key_sets["ref"].add(command.outcome.ref)


def _add_hand_off_keys(command: commands.HandOff, key_sets: KeySets) -> None:
    key_sets["ref"].add(command.ref)
    _add_lease_end_keys(command, key_sets)


def _add_callback_keys(command: commands.Callback, key_sets: KeySets) -> None:
    key_sets["inbox"].add(f"{command.provider}/{command.webhook_id}")
    if command.call_id:
        key_sets["call_link"].add(command.call_id)
    if command.ref:
        key_sets["ref"].add(command.ref)
        key_sets["call_by_ref"].add((command.provider, command.ref))


def _add_callback_dependents(ws: WorkingSet, command: commands.Callback, key_sets: KeySets) -> None:
    by_ref = ws.find_fact("call_by_ref", (command.provider, command.ref))
    for call_id in (command.call_id, by_ref):
        if job_id := ws.find_fact("call_link", call_id):
            key_sets["job"].add(job_id)
            key_sets["call"].add(call_id)


def _add_retry_keys(command: commands.Retry, key_sets: KeySets) -> None:
    _add_job_keys(command, key_sets)
    if dedup_key := job_actions.retry_dedup_key(command):
        if command.retry_as == "new_job":
            key_sets["dedup_key"].add(dedup_key)
        else:
            key_sets["run_by_command"].add((command.job_id, dedup_key))


_JOB_KEYS = (_add_job_keys, _add_job_dependents)
_WORKER_KEYS = (_add_worker_keys, _add_worker_dependents)


def _audit_admin(
    decide: Callable[[WorkingSet, Any], Any], action: str, *fields: str
) -> Callable[[WorkingSet, Any], Any]:
    return with_audit(decide, AuditSpec(action, "job_id", fields, admins_only=True))


COMMANDS: dict[type[commands.Command], CommandSpec] = {
    commands.PutTenant: CommandSpec(
        with_audit(operator.put_tenant, AuditSpec("tenant.put", "tenant", ("weight", "status", "active_jobs_max"))),
        lambda c, key_sets: key_sets["tenant_for_update"].add(c.tenant),
    ),
    commands.PutWorkflow: CommandSpec(
        with_audit(operator.put_workflow, AuditSpec("workflow.put", "definition")), _add_workflow_keys
    ),
    commands.CreateKey: CommandSpec(
        with_audit(api_keys.create_key, AuditSpec("key.create", "id", ("role", "name", "expires_in_seconds"))),
        _add_create_key_keys,
    ),
    commands.RevokeKey: CommandSpec(
        with_audit(api_keys.revoke_key, AuditSpec("key.revoke", "key_id")),
        lambda c, key_sets: key_sets["api_key"].add(c.key_id),
    ),
    commands.TopUp: CommandSpec(
        with_audit(operator.top_up, AuditSpec("wallet.topup", "user", ("amount", "reason"))), _add_wallet_keys
    ),
    commands.Adjust: CommandSpec(
        with_audit(operator.adjust, AuditSpec("wallet.adjust", "user", ("amount", "reason"))), _add_wallet_keys
    ),
    commands.Submit: CommandSpec(submit.submit, _add_submit_keys, _add_submit_dependents),
    commands.Cancel: CommandSpec(_audit_admin(job_actions.cancel, "job.cancel", "reason"), *_JOB_KEYS),
    commands.Pause: CommandSpec(_audit_admin(job_actions.pause, "job.pause"), *_JOB_KEYS),
    commands.Resume: CommandSpec(_audit_admin(job_actions.resume, "job.resume"), *_JOB_KEYS),
    commands.Approve: CommandSpec(_audit_admin(job_actions.approve, "stage.approve", "stage_id"), *_JOB_KEYS),
    commands.RequireApproval: CommandSpec(
        _audit_admin(job_actions.require_approval, "stage.require_approval", "stage_id"), *_JOB_KEYS
    ),
    commands.Retry: CommandSpec(_audit_admin(job_actions.retry, "job.retry"), _add_retry_keys, _add_job_dependents),
    commands.Refund: CommandSpec(
        with_audit(job_actions.refund, AuditSpec("job.refund", "job_id", ("reason", "run"))), *_JOB_KEYS
    ),
    commands.Delete: CommandSpec(_audit_admin(job_actions.delete, "job.delete"), *_JOB_KEYS),
    commands.Update: CommandSpec(_audit_admin(amend.update, "job.update", "priority", "labels"), *_JOB_KEYS),
    commands.AddStage: CommandSpec(amend.add_stage, _add_job_keys, _add_stage_dependents),
    commands.AddTasks: CommandSpec(amend.add_tasks, _add_job_keys, _add_tasks_dependents),
    commands.Register: CommandSpec(
        with_audit(fleet.register, AuditSpec("worker.register", "worker_id", ("kinds", "concurrency"))), *_WORKER_KEYS
    ),
    commands.Deregister: CommandSpec(
        with_audit(fleet.deregister, AuditSpec("worker.deregister", "worker_id", ("reason",))), *_WORKER_KEYS
    ),
    commands.UpdateWorker: CommandSpec(
        with_audit(fleet.update_worker, AuditSpec("worker.update", "worker_id", ("approved", "draining", "kinds"))),
        *_WORKER_KEYS,
    ),
    commands.RevokeWorker: CommandSpec(
        with_audit(fleet.revoke_worker, AuditSpec("worker.revoke", "worker_id")), *_WORKER_KEYS
    ),
    commands.RotateWorker: CommandSpec(
        with_audit(fleet.rotate_worker, AuditSpec("worker.rotate", "worker_id")), *_WORKER_KEYS
    ),
    commands.TickWorker: CommandSpec(
        with_audit(fleet.tick_worker, AuditSpec("worker.silent", "worker_id")), *_WORKER_KEYS
    ),
    commands.RecordHeartbeats: CommandSpec(
        fleet.record_heartbeats, lambda c, key_sets: key_sets["worker"].update(c.workers)
    ),
    commands.CreateUpload: CommandSpec(files.create_upload, _add_upload_keys),
    commands.FinishUpload: CommandSpec(files.finish_upload, lambda c, key_sets: key_sets["file"].add(c.file_id)),
    commands.DeleteFiles: CommandSpec(files.delete_files, _add_delete_files_keys),
    commands.Claim: CommandSpec(claim.claim, _add_claim_keys),
    commands.RecordSubmission: CommandSpec(lease.record_submission, _add_lease_end_keys),
    commands.Heartbeat: CommandSpec(lease.heartbeat, _add_lease_keys),
    commands.Complete: CommandSpec(lease.complete, _add_lease_end_keys, _add_lease_end_dependents),
    commands.Fail: CommandSpec(lease.fail, _add_lease_end_keys, _add_lease_end_dependents),
    commands.Requeue: CommandSpec(lease.requeue, _add_lease_end_keys, _add_lease_end_dependents),
    commands.RecordIntent: CommandSpec(provider_calls.record_intent, _add_lease_keys),
    commands.HandOff: CommandSpec(provider_calls.hand_off, _add_hand_off_keys, _add_lease_end_dependents),
    commands.ClaimCall: CommandSpec(provider_calls.claim_call, _add_call_keys),
    commands.ReportOutcome: CommandSpec(provider_calls.report_outcome, _add_call_keys),
    commands.Callback: CommandSpec(provider_calls.callback, _add_callback_keys, _add_callback_dependents),
    commands.TickJob: CommandSpec(job_actions.tick_job, *_JOB_KEYS),
    commands.TickTask: CommandSpec(job_actions.tick_task, _add_tick_task_keys, _add_tick_task_dependents),
    commands.AcquireCursor: CommandSpec(operator.take_cursor, lambda c, key_sets: key_sets["cursor"].add(c.name)),
    commands.AdvanceCursor: CommandSpec(operator.move_cursor, lambda c, key_sets: key_sets["cursor"].add(c.name)),
}
