"""Every command with its decision, and with the rows it is known to need.

`wants` is what to load first; `follows` what to load once those are there. Both only save time: a decision that
needs something else says so with `Missing`, and is asked again.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from callsheet.core import change, claim, commands, files, fleet, keys, lease, life, provider, setup, submit
from callsheet.core.audit import Line, audited
from callsheet.core.ids import child
from callsheet.core.money import wallet_id
from callsheet.core.order import queue_of
from callsheet.core.rows import Job, Task
from callsheet.core.working import Key, WorkingSet

Wants = dict[str, set[Key]]
"""Keys by what they name: a table or a fact. Missing names begin empty."""


FleetCommand = (
    commands.Register | commands.Deregister | commands.SetWorker | commands.RevokeWorker | commands.RotateWorker
    | commands.TickWorker
)  # fmt: skip
LeaseEnd = commands.Complete | commands.Fail | commands.Requeue | commands.Hand


_LOOKED_AT_MAX = 10_000


class Decision(NamedTuple):
    """How a command is decided."""

    decide: Callable[[WorkingSet, Any], Any]
    wants: Callable[[Any, Wants], None]
    follows: Callable[[WorkingSet, Any, Wants], None] | None = None


def _workflow_wants(command: commands.PutWorkflow, wants: Wants) -> None:
    wants["current_recipe"].add(command.recipe.name)
    wants["file"].update(key for key in files.named(command.recipe, _LOOKED_AT_MAX) if files.may_be(key))


def _create_key_wants(command: commands.CreateKey, wants: Wants) -> None:
    wants["api_key"].add(command.id)
    wants["key_of"].add(command.secret_hash)
    if command.tenant:
        wants["tenant"].add(command.tenant)


def _submit_wants(command: commands.Submit, wants: Wants) -> None:
    wants["tenant"].add(command.tenant)
    wants["current_recipe"].add(command.workflow)
    wants["wallet"].add(wallet_id(command.tenant, command.user))
    if idem := submit.idem_of(command):
        wants["idem"].add(idem)


def _files_wanted(ws: WorkingSet, job_id: str, inputs: Iterable[Any], wants: Wants) -> None:
    """Load the files that inputs refer to at once; an input is not checked yet, so only its beginning is looked at."""
    for one in inputs:
        for key in islice(filter(files.may_be, files.references(one, _LOOKED_AT_MAX)), ws.limits.files_per_task_max):
            wants["file"].add(key)
            wants["use"].add((job_id, key))


def _submit_follows(ws: WorkingSet, command: commands.Submit, wants: Wants) -> None:
    recipe = ws.known("current_recipe", command.workflow)
    if not recipe:
        return
    stages = command.stages if command.stages is not None else recipe.stages
    priority = recipe.priority if command.priority is None else command.priority
    _files_wanted(ws, command.id, (command.input,), wants)
    for no, stage in enumerate(stages):
        queue = queue_of(stage.kind, recipe.name, stage.provider)
        wants["queue"].add(queue)
        if stage.inputs:
            _files_wanted(ws, command.id, stage.inputs, wants)
        if no == 0 and not stage.gate:
            wants["tail"].add((queue, priority, command.tenant))


def _money_wants(command: commands.TopUp | commands.Adjust, wants: Wants) -> None:
    wants["tenant"].add(command.tenant)
    wants["wallet"].add(wallet_id(command.tenant, command.user))
    wants["entry"].add(setup.idem_of(command))


def _claim_wants(command: commands.Claim, wants: Wants) -> None:
    wants["offer"].add(command.kinds)
    if command.session is not None:
        wants["worker"].add(command.worker_id)
        wants["holds"].add(command.worker_id)


def _worker_wants(command: FleetCommand, wants: Wants) -> None:
    wants["worker"].add(command.worker_id)
    if isinstance(command, commands.Register):
        wants["ref"].add(fleet.FLEET)
        wants["fleet"].add(fleet.FLEET)
    draining = isinstance(command, commands.SetWorker) and command.draining
    if draining or not isinstance(command, commands.SetWorker | commands.RotateWorker):
        wants["held_by"].add(command.worker_id)


def _worker_follows(ws: WorkingSet, command: FleetCommand, wants: Wants) -> None:
    for key in ws.known("held_by", command.worker_id) or ():
        task = ws.get(Task, key)
        if ws.knows(Job, task.job_id):
            _tick_task_follows(ws, commands.TickTask(job_id=task.job_id, task_id=task.id), wants)


def _upload_wants(command: commands.AskUpload, wants: Wants) -> None:
    wants["tenant"].add(command.tenant)
    wants["file"].add(command.id)
    wants["ref"].add(f"uploads of {command.tenant}/{command.user}")  # counted by one at a time
    wants["awaited"].add((command.tenant, command.user))


def _drop_wants(command: commands.DropFiles, wants: Wants) -> None:
    wants["file"].update(command.file_ids)
    wants["needed"].update(command.file_ids)


def _lease_wants(command: commands.Heartbeat | commands.Intend, wants: Wants) -> None:
    wants["job"].add(command.lease.job_id)
    wants["task"].add(command.lease.task_id)
    if isinstance(command, commands.Heartbeat) and (command.message or command.log):
        wants["attempt"].add((command.lease.task_id, command.lease.attempt))


def _ends_wants(command: LeaseEnd | commands.Submitting, wants: Wants) -> None:
    key = command.lease
    wants["job"].add(key.job_id)
    wants["task"].add(key.task_id)
    wants["attempt"].add((key.task_id, key.attempt))


def _ends_follows(ws: WorkingSet, command: LeaseEnd, wants: Wants) -> None:
    job = ws.find(Job, command.lease.job_id)
    if job is None or job.finished_at is not None:
        return
    wants["run"].add((job.id, job.run))
    wants["stages"].add(job.id)
    wants["recipe"].add((job.workflow, job.workflow_version))
    wants["wallet"].add(job.wallet_id)
    task = ws.find(Task, command.lease.task_id)
    if task is not None and task.called:
        wants["call"].add(child(task.id, task.attempts))


def _job_wants(command: commands.JobCommand | commands.TickJob, wants: Wants) -> None:
    wants["job"].add(command.job_id)


def _tree_follows(ws: WorkingSet, command: commands.JobCommand | commands.TickJob, wants: Wants) -> None:
    job = ws.find(Job, command.job_id)
    if job is None:
        return
    wants["run"].add((job.id, job.run))
    wants["stages"].add(job.id)
    wants["recipe"].add((job.workflow, job.workflow_version))
    wants["wallet"].add(job.wallet_id)
    wants["tenant"].add(job.tenant)


def _add_stage_follows(ws: WorkingSet, command: commands.AddStage, wants: Wants) -> None:
    _tree_follows(ws, command, wants)
    _files_wanted(ws, command.job_id, command.stage.inputs or (), wants)


def _add_tasks_follows(ws: WorkingSet, command: commands.AddTasks, wants: Wants) -> None:
    _tree_follows(ws, command, wants)
    _files_wanted(ws, command.job_id, command.inputs, wants)


def _tick_task_wants(command: commands.TickTask, wants: Wants) -> None:
    wants["job"].add(command.job_id)
    wants["task"].add(command.task_id)


def _tick_task_follows(ws: WorkingSet, command: commands.TickTask, wants: Wants) -> None:
    task, job = ws.find(Task, command.task_id), ws.find(Job, command.job_id)
    if task is None or job is None:
        return
    wants["attempt"].add((task.id, task.attempts))
    if task.called:
        wants["call"].add(child(task.id, task.attempts))
    _tree_follows(ws, commands.TickJob(job_id=job.id), wants)


def _call_wants(command: commands.Collect | commands.Collected, wants: Wants) -> None:
    wants["job"].add(command.job_id)
    wants["call"].add(command.call_id)
    if isinstance(command, commands.Collected) and command.outcome.ref:
        wants["ref"].add(command.outcome.ref)


def _hand_wants(command: commands.Hand, wants: Wants) -> None:
    wants["ref"].add(command.ref)
    _ends_wants(command, wants)


def _callback_wants(command: commands.Callback, wants: Wants) -> None:
    wants["inbox"].add(f"{command.provider}/{command.webhook_id}")
    if command.call_id:
        wants["call_link"].add(command.call_id)
    if command.ref:
        wants["ref"].add(command.ref)
        wants["call_by_ref"].add((command.provider, command.ref))


def _callback_follows(ws: WorkingSet, command: commands.Callback, wants: Wants) -> None:
    by_ref = ws.known("call_by_ref", (command.provider, command.ref))
    for call_id in (command.call_id, by_ref):
        if job_id := ws.known("call_link", call_id):
            wants["job"].add(job_id)
            wants["call"].add(call_id)


def _retry_wants(command: commands.Retry, wants: Wants) -> None:
    _job_wants(command, wants)
    if idem := life.retry_idem(command):
        if command.retry_as == "new_job":
            wants["idem"].add(idem)
        else:
            wants["run_named"].add((command.job_id, idem))


_TREE = (_job_wants, _tree_follows)
_WORKER = (_worker_wants, _worker_follows)


def _by_admin(decide: Callable[[WorkingSet, Any], Any], action: str, *fields: str) -> Callable[[WorkingSet, Any], Any]:
    return audited(decide, Line(action, "job_id", fields, admins_only=True))


DECISIONS: dict[type[commands.Command], Decision] = {
    commands.PutTenant: Decision(
        audited(setup.put_tenant, Line("tenant.put", "tenant", ("weight", "status", "active_jobs_max"))),
        lambda c, wants: wants["tenant_to_change"].add(c.tenant),
    ),
    commands.PutWorkflow: Decision(audited(setup.put_workflow, Line("workflow.put", "recipe")), _workflow_wants),
    commands.CreateKey: Decision(
        audited(keys.create_key, Line("key.create", "id", ("role", "name", "expires_in_seconds"))), _create_key_wants
    ),
    commands.RevokeKey: Decision(
        audited(keys.revoke_key, Line("key.revoke", "key_id")), lambda c, wants: wants["api_key"].add(c.key_id)
    ),
    commands.TopUp: Decision(audited(setup.top_up, Line("wallet.topup", "user", ("amount", "reason"))), _money_wants),
    commands.Adjust: Decision(audited(setup.adjust, Line("wallet.adjust", "user", ("amount", "reason"))), _money_wants),
    commands.Submit: Decision(submit.submit, _submit_wants, _submit_follows),
    commands.Cancel: Decision(_by_admin(life.cancel, "job.cancel", "reason"), *_TREE),
    commands.Pause: Decision(_by_admin(life.pause, "job.pause"), *_TREE),
    commands.Resume: Decision(_by_admin(life.resume, "job.resume"), *_TREE),
    commands.Approve: Decision(_by_admin(life.approve, "stage.approve", "stage_id"), *_TREE),
    commands.Hold: Decision(_by_admin(life.hold, "stage.hold", "stage_id"), *_TREE),
    commands.Retry: Decision(_by_admin(life.retry, "job.retry"), _retry_wants, _tree_follows),
    commands.Refund: Decision(audited(life.refund, Line("job.refund", "job_id", ("reason", "run"))), *_TREE),
    commands.Delete: Decision(_by_admin(life.delete, "job.delete"), *_TREE),
    commands.Change: Decision(_by_admin(change.change, "job.change", "priority", "labels"), *_TREE),
    commands.AddStage: Decision(change.add_stage, _job_wants, _add_stage_follows),
    commands.AddTasks: Decision(change.add_tasks, _job_wants, _add_tasks_follows),
    commands.Register: Decision(
        audited(fleet.register, Line("worker.register", "worker_id", ("kinds", "concurrency"))), *_WORKER
    ),
    commands.Deregister: Decision(
        audited(fleet.deregister, Line("worker.deregister", "worker_id", ("reason",))), *_WORKER
    ),
    commands.SetWorker: Decision(
        audited(fleet.set_worker, Line("worker.set", "worker_id", ("approved", "draining", "kinds"))), *_WORKER
    ),
    commands.RevokeWorker: Decision(audited(fleet.revoke_worker, Line("worker.revoke", "worker_id")), *_WORKER),
    commands.RotateWorker: Decision(audited(fleet.rotate_worker, Line("worker.rotate", "worker_id")), *_WORKER),
    commands.TickWorker: Decision(audited(fleet.tick_worker, Line("worker.silent", "worker_id")), *_WORKER),
    commands.Seen: Decision(fleet.seen, lambda c, wants: wants["worker"].update(c.workers)),
    commands.AskUpload: Decision(files.ask_upload, _upload_wants),
    commands.FinishUpload: Decision(files.finish_upload, lambda c, wants: wants["file"].add(c.file_id)),
    commands.DropFiles: Decision(files.drop_files, _drop_wants),
    commands.Claim: Decision(claim.claim, _claim_wants),
    commands.Submitting: Decision(lease.submitting, _ends_wants),
    commands.Heartbeat: Decision(lease.heartbeat, _lease_wants),
    commands.Complete: Decision(lease.complete, _ends_wants, _ends_follows),
    commands.Fail: Decision(lease.fail, _ends_wants, _ends_follows),
    commands.Requeue: Decision(lease.requeue, _ends_wants, _ends_follows),
    commands.Intend: Decision(provider.intend, _lease_wants),
    commands.Hand: Decision(provider.hand, _hand_wants, _ends_follows),
    commands.Collect: Decision(provider.collect, _call_wants),
    commands.Collected: Decision(provider.collected, _call_wants),
    commands.Callback: Decision(provider.callback, _callback_wants, _callback_follows),
    commands.TickJob: Decision(life.tick_job, *_TREE),
    commands.TickTask: Decision(life.tick_task, _tick_task_wants, _tick_task_follows),
    commands.TakeCursor: Decision(setup.take_cursor, lambda c, wants: wants["cursor"].add(c.name)),
    commands.MoveCursor: Decision(setup.move_cursor, lambda c, wants: wants["cursor"].add(c.name)),
}
