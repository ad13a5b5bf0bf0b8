"""Every command with its decision, and with the rows it is known to need.

`wants` is what to load first; `follows` what to load once those are there. Both only save time: a decision that
needs something else says so with `Missing`, and is asked again.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from callsheet.core import change, commands, lease, life, provider, setup, submit
from callsheet.core.ids import child
from callsheet.core.money import wallet_id
from callsheet.core.rows import Job, Task
from callsheet.core.working import Key, WorkingSet

Want = tuple[str, Key]


class Decision(NamedTuple):
    """How a command is decided."""

    decide: Callable[[WorkingSet, Any], Any]
    wants: Callable[[Any], Iterable[Want]]
    follows: Callable[[WorkingSet, Any], Iterable[Want]]


def _nothing(_ws: WorkingSet, _command: commands.Command) -> Iterable[Want]:
    return ()


def _submit_wants(command: commands.Submit) -> Iterable[Want]:
    yield "tenant", command.tenant
    yield "current_recipe", command.workflow
    yield "wallet", wallet_id(command.tenant, command.user)
    if idem := submit.idem_of(command):
        yield "idem", idem


def _submit_follows(ws: WorkingSet, command: commands.Submit) -> Iterable[Want]:
    recipe = ws.facts.get(("current_recipe", command.workflow))
    if recipe is None:
        return
    stages = command.stages if command.stages is not None else recipe.stages
    priority = recipe.priority if command.priority is None else command.priority
    for no, stage in enumerate(stages):
        queue = f"{stage.kind}/{recipe.name}"
        yield "queue", queue
        if no == 0 and not stage.gate:
            yield "tail", (queue, priority, command.tenant)


def _money_wants(command: commands.TopUp | commands.Adjust) -> Iterable[Want]:
    yield "wallet", wallet_id(command.tenant, command.user)
    yield "entry", setup.idem_of(command)


def _claim_wants(command: commands.Claim) -> Iterable[Want]:
    yield "offer", command.kinds


def _lease_wants(command: commands.Heartbeat | commands.Intend) -> Iterable[Want]:
    yield "job", command.lease.job_id
    yield "task", command.lease.task_id


def _ends_wants(command: commands.Complete | commands.Fail | commands.Requeue) -> Iterable[Want]:
    key = command.lease
    yield "job", key.job_id
    yield "task", key.task_id
    yield "attempt", (key.task_id, key.attempt)


def _ends_follows(ws: WorkingSet, command: commands.Complete | commands.Fail | commands.Requeue) -> Iterable[Want]:
    job = ws.find(Job, command.lease.job_id)
    if job is None or job.finished_at is not None:
        return
    yield "run", (job.id, job.run)
    yield "stages", job.id
    yield "recipe", (job.workflow, job.workflow_version)
    yield "wallet", job.wallet_id
    if not isinstance(command, commands.Complete):
        yield "call", child(command.lease.task_id, command.lease.attempt)


def _job_wants(command: commands.JobCommand | commands.TickJob) -> Iterable[Want]:
    yield "job", command.job_id


def _tree_follows(ws: WorkingSet, command: commands.JobCommand | commands.TickJob) -> Iterable[Want]:
    job = ws.find(Job, command.job_id)
    if job is None:
        return
    yield "run", (job.id, job.run)
    yield "stages", job.id
    yield "recipe", (job.workflow, job.workflow_version)
    yield "wallet", job.wallet_id
    yield "tenant", job.tenant


def _tick_task_wants(command: commands.TickTask) -> Iterable[Want]:
    yield "job", command.job_id
    yield "task", command.task_id


def _tick_task_follows(ws: WorkingSet, command: commands.TickTask) -> Iterable[Want]:
    task, job = ws.find(Task, command.task_id), ws.find(Job, command.job_id)
    if task is None or job is None:
        return
    yield "attempt", (task.id, task.attempts)
    yield "call", child(task.id, task.attempts)
    yield from _tree_follows(ws, commands.TickJob(job_id=job.id))


def _call_wants(command: commands.Collect | commands.Collected) -> Iterable[Want]:
    yield "job", command.job_id
    yield "call", command.call_id


def _callback_wants(command: commands.Callback) -> Iterable[Want]:
    yield "inbox", f"{command.provider}/{command.webhook_id}"
    if command.call_id:
        yield "call_link", command.call_id
    if command.ref:
        yield "call_by_ref", (command.provider, command.ref)


def _callback_follows(ws: WorkingSet, command: commands.Callback) -> Iterable[Want]:
    by_ref = ws.facts.get(("call_by_ref", (command.provider, command.ref)))
    for call_id in (command.call_id, by_ref):
        if job_id := ws.facts.get(("call_link", call_id)):
            yield "job", job_id
            yield "call", call_id


_TREE = (_job_wants, _tree_follows)

DECISIONS: dict[type[commands.Command], Decision] = {
    commands.PutTenant: Decision(setup.put_tenant, lambda c: [("tenant", c.tenant)], _nothing),
    commands.PutWorkflow: Decision(
        setup.put_workflow, lambda c: [("current_recipe", c.recipe.name), ("queues", c.recipe.name)], _nothing
    ),
    commands.TopUp: Decision(setup.top_up, _money_wants, _nothing),
    commands.Adjust: Decision(setup.adjust, _money_wants, _nothing),
    commands.Submit: Decision(submit.submit, _submit_wants, _submit_follows),
    commands.Cancel: Decision(life.cancel, *_TREE),
    commands.Pause: Decision(life.pause, *_TREE),
    commands.Resume: Decision(life.resume, *_TREE),
    commands.Approve: Decision(life.approve, *_TREE),
    commands.Hold: Decision(life.hold, *_TREE),
    commands.Retry: Decision(life.retry, *_TREE),
    commands.Delete: Decision(life.delete, *_TREE),
    commands.Change: Decision(change.change, *_TREE),
    commands.AddStage: Decision(change.add_stage, *_TREE),
    commands.AddTasks: Decision(change.add_tasks, *_TREE),
    commands.Claim: Decision(lease.claim, _claim_wants, _nothing),
    commands.Heartbeat: Decision(lease.heartbeat, _lease_wants, _nothing),
    commands.Complete: Decision(lease.complete, _ends_wants, _ends_follows),
    commands.Fail: Decision(lease.fail, _ends_wants, _ends_follows),
    commands.Requeue: Decision(lease.requeue, _ends_wants, _ends_follows),
    commands.Intend: Decision(provider.intend, _lease_wants, _nothing),
    commands.Hand: Decision(provider.hand, _ends_wants, _ends_follows),
    commands.Collect: Decision(provider.collect, _call_wants, _nothing),
    commands.Collected: Decision(provider.collected, _call_wants, _nothing),
    commands.Callback: Decision(provider.callback, _callback_wants, _callback_follows),
    commands.TickJob: Decision(life.tick_job, *_TREE),
    commands.TickTask: Decision(life.tick_task, _tick_task_wants, _tick_task_follows),
    commands.TakeCursor: Decision(setup.take_cursor, lambda c: [("cursor", c.name)], _nothing),
    commands.MoveCursor: Decision(setup.move_cursor, lambda c: [("cursor", c.name)], _nothing),
}
