"""Leases: heartbeat, complete, fail, requeue, and what happens when one runs out.

A lease is a token and an epoch (the attempt's number). Only the newest epoch's token counts; whoever comes with an
older one is told that the lease is lost, and nothing changes. A report that is repeated gets the same answer.
"""

import hashlib
from typing import Any, NamedTuple

from msgspec.structs import replace

from callsheet.core.cascade import AT_REST, cascade, offer, offers, recipe_of
from callsheet.core.clock import SECOND, seconds
from callsheet.core.commands import (
    Beat,
    Complete,
    Fail,
    Heartbeat,
    Lease,
    Requeue,
    Submitting,
    TaskState,
)
from callsheet.core.counting import counted
from callsheet.core.errors import BadInput, LeaseLost
from callsheet.core.files import check_file
from callsheet.core.holding import hashed, held, held_or_past
from callsheet.core.ids import child
from callsheet.core.machine import Actor
from callsheet.core.moves import move_task, shift
from callsheet.core.order import front_rank
from callsheet.core.recipe import in_range
from callsheet.core.redact import clean
from callsheet.core.rows import Attempt, Call, Document, File, Job, Stage, Task
from callsheet.core.submit import bounded_json
from callsheet.core.working import WorkingSet

_FULL = 100


# -- while it runs


def heartbeat(ws: WorkingSet, command: Heartbeat) -> Beat:
    """Prolong a lease from now, never back; take progress up and the wish to stop down."""
    live = held_or_past(ws, command)
    if isinstance(live, Attempt):
        if live.outcome != "canceled":
            raise LeaseLost
        return Beat(0.0, cancel=True)
    job, task = live
    lasting = task.lease_seconds if command.lease_seconds is None else command.lease_seconds
    lasting = min(max(lasting, 1), ws.limits.lease_seconds_max)
    expires = max(task.lease_expires_at or 0, ws.now + lasting * SECOND)
    after = replace(task, lease_expires_at=expires, due_at=expires)
    if command.progress is not None or command.message is not None or command.preview:
        after = _progressed(ws, job, after, command)
    if command.log:
        _logged(ws, job, task, command)
    ws.put(after)
    return Beat((expires - ws.now) / SECOND, job.cancel_requested_at is not None)


def _progressed(ws: WorkingSet, job: Job, task: Task, command: Heartbeat) -> Task:
    percent = task.progress if command.progress is None else in_range("progress", command.progress, 0, _FULL)
    message = command.message
    if message is not None and len(message) > ws.limits.message_chars_max:
        raise BadInput("message_too_long", f"A progress message has at most {ws.limits.message_chars_max} characters.")
    if message:
        message = _said(ws, task, message)
    stage = ws.get(Stage, task.stage_id)
    whole = (_FULL * stage.tasks_completed + percent) // stage.tasks_total
    overall = (_FULL * job.stages_completed + whole) // job.stages_total
    ws.put(replace(job, progress=max(job.progress, overall)))
    data: dict[str, Any] = {"progress": percent, "message": message}
    if command.preview:
        data["preview"] = command.preview
    ws.emit(job, "task.progressed", "worker", data, entity_id=task.id)
    return replace(task, progress=percent, message=message if message is not None else task.message)


def _logged(ws: WorkingSet, job: Job, task: Task, command: Heartbeat) -> None:
    in_range("the number of log lines", len(command.log), 1, ws.limits.log_lines_max)
    lines = [_said(ws, task, line) for line in command.log]
    ws.emit(job, "task.logged", "worker", {"lines": lines}, entity_id=task.id)


def submitting(ws: WorkingSet, command: Submitting) -> TaskState:
    """Write down where the work lies at somebody else's machine, before it is sent there."""
    for what, text in (("provider", command.provider), ("ref", command.ref)):
        if not text or len(text) > ws.limits.key_chars_max or not text.isprintable():
            most = ws.limits.key_chars_max
            raise BadInput(f"invalid_{what}", f"A {what} has 1 to {most} printable characters.")
    job, task = held(ws, command)
    attempt = ws.get(Attempt, (task.id, task.attempts))
    if (attempt.provider, attempt.ref) != (command.provider, command.ref):
        ws.put(replace(attempt, provider=command.provider, ref=command.ref))
        ws.emit(job, "task.submitted", "worker", {"attempt": task.attempts}, entity_id=task.id)
    return _state(ws, job, task.id)


# -- the end of a try


def complete(ws: WorkingSet, command: Complete) -> TaskState:
    """Accept a result from the newest lease, and let everything that follows from it follow."""
    in_range("delivered", command.delivered, 1, _FULL)
    body = bounded_json("output", command.output, ws.limits.output_bytes_max)
    made = "".join(f"\n{file.no} {file.sha256} {file.name}" for file in command.files)
    digest = hashlib.sha256((body + made).encode()).hexdigest()
    live = held_or_past(ws, command)
    if isinstance(live, Attempt):
        return _repeated(ws, command.lease, live, "completed", digest)
    job, task = live
    _keep_files(ws, job, task, command)
    close_call(ws, task, "completed")
    return accept(ws, job, task, body, digest, command.delivered, "worker")


def _keep_files(ws: WorkingSet, job: Job, task: Task, command: Complete) -> None:
    in_range("the number of files", len(command.files), 0, ws.limits.files_per_task_max)
    keep = recipe_of(ws, job).keep_seconds if command.files else 0
    until = ws.now + seconds(keep) if keep else None
    last = 0
    for made in command.files:
        if not last < made.no <= ws.limits.files_per_task_max:  # one that could not be put leaves a gap
            most = ws.limits.files_per_task_max
            raise BadInput("invalid_file", f"Files have numbers of their own, from 1 to {most}, in ascending order.")
        last = made.no
        check_file(made.name, made.media_type, made.bytes, made.sha256, ws.limits)
        ws.append(
            File(
                child(child(task.id, task.attempts), made.no), job.tenant, job.user_id, job.id, task.id, task.attempts,
                made.no, made.name, made.media_type, made.bytes, made.sha256, ws.at(job), "ready", until,
            )
        )  # fmt: skip


def accept(ws: WorkingSet, job: Job, task: Task, body: str, digest: str, delivered: int, actor: Actor) -> TaskState:
    """Take a result in: task, stage, job and money in one decision."""
    now = ws.at(job)
    attempt = ws.get(Attempt, (task.id, task.attempts))
    ws.put(replace(attempt, ended_at=max(now, attempt.leased_at), outcome="completed", digest=digest))
    ws.append(Document(task.id, f"output:{task.attempts}", job.id, body))
    move_task(
        ws, job, task, "complete", actor, {"bytes": len(body), "digest": digest}, delivered=delivered,
        progress=_FULL, finished_at=now, error_code=None, error_message=None, **AT_REST,
    )  # fmt: skip
    return _state(ws, cascade(ws, job.id), task.id)


def fail(ws: WorkingSet, command: Fail) -> TaskState:
    """Take a failed try: again if policy and tries allow it, else the end of task, stage and job."""
    live = held_or_past(ws, command)
    if isinstance(live, Attempt):
        return _repeated(ws, command.lease, live, "failed", None)
    job, task = live
    if command.resume:
        attempt = ws.get(Attempt, (task.id, task.attempts))
        ws.put(replace(attempt, resume=int(attempt.ref is not None)))
    return failed(ws, job, task, command.code, command.message, retryable=command.retryable, actor="worker")


class Ending(NamedTuple):
    """How a try ended: in a word, with its error, whether it may be tried again, and whether it counts."""

    outcome: str
    code: str
    text: str
    again: bool
    forgiven: bool = False


def failed(
    ws: WorkingSet, job: Job, task: Task, code: str, message: str, *, retryable: bool | None, actor: Actor
) -> TaskState:
    """End a try that went wrong."""
    code = _code(code)
    text = _said(ws, task, message)
    again = recipe_of(ws, job).retry.wants(retryable=retryable) and task.attempts_charged < task.tries_max
    return end_try(ws, job, task, Ending("failed", code, text, again), actor)


def requeue(ws: WorkingSet, command: Requeue) -> TaskState:
    """Take a task back without using up a try, within the second limit."""
    if not command.reason.strip():
        raise BadInput("reason_required", "A requeue says why the work is given back.")
    if _let_go(ws, command):
        return replace(_state(ws, ws.get(Job, command.lease.job_id), command.lease.task_id), replay=True)
    live = held_or_past(ws, command)
    if isinstance(live, Attempt):
        return _repeated(ws, command.lease, live, "requeued", None)
    job, task = live
    if answer_lost(ws, task):  # the provider may have accepted: the call is looked up, not made again
        return _state(ws, job, task.id)
    return give_back(ws, job, task, "requeued", f"Requeued: {command.reason}", "worker", _code(command.cause))


def give_back(
    ws: WorkingSet, job: Job, task: Task, outcome: str, reason: str, actor: Actor, cause: str | None = None
) -> TaskState:
    """End a try that nobody is to blame for; after too many of them the task fails all the same."""
    text = _said(ws, task, reason)
    if task.requeues >= task.requeues_max:
        limit = f"Given back {counted(task.requeues, 'time')}, which is the limit. {text}"
        return end_try(ws, job, task, Ending(outcome, "requeue_exhausted", limit, again=False, forgiven=True), actor)
    return end_try(ws, job, task, Ending(outcome, cause or outcome, text, again=True, forgiven=True), actor)


def lapse(ws: WorkingSet, job: Job, task: Task) -> None:
    """End a lease that ran out: the worker is gone, and that counts as a try."""
    again = task.attempts_charged < task.tries_max
    text = "The worker stopped answering and its lease ran out."
    end_try(ws, job, task, Ending("lost", "lease_expired", text, again), "system")


def end_try(ws: WorkingSet, job: Job, task: Task, ending: Ending, actor: Actor) -> TaskState:
    """Close an attempt and decide what becomes of its task."""
    now = ws.at(job)
    attempt = ws.get(Attempt, (task.id, task.attempts))
    ended = replace(
        attempt, ended_at=max(now, attempt.leased_at), outcome=ending.outcome, forgiven=int(ending.forgiven),
        error_code=ending.code, error_message=ending.text,
    )  # fmt: skip
    ws.put(ended)
    close_call(ws, task, ending.outcome)
    changes: dict[str, Any] = {**AT_REST, "error_code": ending.code, "error_message": ending.text}
    if ending.forgiven:
        changes |= {"attempts_charged": task.attempts_charged - 1, "requeues": task.requeues + 1}
    data: dict[str, Any] = {"outcome": ending.outcome, "code": ending.code, "message": ending.text}
    if job.cancel_requested_at is not None:
        shift(ws, task, "cancel", actor, finished_at=now, **changes)
    elif ending.again:
        wait = 0 if ending.forgiven else _backoff(ws, job, task)
        data["wait_seconds"] = wait / SECOND
        changes["ready_at"] = now + wait if wait else None
        _wait_again(ws, job, move_task(ws, job, task, "retry", actor, data, **changes), forgiven=ending.forgiven)
    else:
        ws.put(replace(job, error_code=ending.code, error_message=ending.text))
        move_task(ws, job, task, "fail", actor, data, finished_at=now, **changes)
    return _state(ws, cascade(ws, job.id), task.id)


def _backoff(ws: WorkingSet, job: Job, task: Task) -> int:
    return recipe_of(ws, job).retry.backoff.wait(task.id, task.attempts, task.attempts_charged)


def _wait_again(ws: WorkingSet, job: Job, after: Task, *, forgiven: bool) -> None:
    stage = ws.get(Stage, after.stage_id)
    if not forgiven:
        offer(ws, job, stage, after)
    elif offers(job, stage):
        ws.put(replace(after, ready=1, rank=front_rank(ws, after)))
        ws.woken.add(after.kind)


def answer_lost(ws: WorkingSet, task: Task) -> bool:
    """Keep a call whose worker died between calling and telling: it may have been accepted, so it is looked up."""
    call = ws.find(Call, child(task.id, task.attempts)) if task.called else None
    if call is None or call.ended_at is not None:
        return False
    ws.put(replace(call, status="unknown", collect_at=ws.now))
    ws.put(replace(task, token_hash=None, lease_expires_at=None, due_at=None))
    ws.emit(ws.get(Job, task.job_id), "task.unanswered", "system", {"attempt": task.attempts}, entity_id=task.id)
    return True


def close_call(ws: WorkingSet, task: Task, outcome: str) -> None:
    """End the provider call of a try, if it made one."""
    call = ws.find(Call, child(task.id, task.attempts)) if task.called else None
    if call is not None and call.ended_at is None:
        ws.put(replace(call, status="ended", ended_at=max(ws.now, call.intended_at), outcome=outcome, collect_at=None))


def _let_go(ws: WorkingSet, command: Requeue) -> bool:
    """Say whether this very lease was given back while its call was under way: then there is nothing left to give."""
    lease = command.lease
    task = ws.find(Task, lease.task_id)
    if task is None or not task.called or task.attempts != lease.attempt:
        return False
    attempt, call = ws.find(Attempt, (lease.task_id, lease.attempt)), ws.find(Call, child(task.id, task.attempts))
    if call is None or call.status != "unknown" or attempt is None:
        return False
    return attempt.token_hash == hashed(lease.token) and command.worker_id in {None, attempt.worker_id}


def _repeated(ws: WorkingSet, lease: Lease, attempt: Attempt, outcome: str, digest: str | None) -> TaskState:
    """Answer a report about an attempt that has ended: the same as before, a no-op, or a lost lease."""
    state = _state(ws, ws.get(Job, lease.job_id), lease.task_id)
    if attempt.outcome == outcome and attempt.digest == digest:
        return replace(state, replay=True)
    if attempt.outcome == "canceled":
        return replace(state, skipped=f"The job is {state.job_status}.")
    raise LeaseLost


def _state(ws: WorkingSet, job: Job, task_id: str) -> TaskState:
    return TaskState(job.id, task_id, ws.get(Task, task_id).status, job.status)


def _said(ws: WorkingSet, task: Task, text: str) -> str:
    """Return what a worker says about a task as it may be shown: cleaned, and without its reference elsewhere."""
    ref = ws.get(Attempt, (task.id, task.attempts)).ref
    return clean(text.replace(ref, "[reference]") if ref else text, ws.limits.message_chars_max)


def _code(code: str) -> str:
    safe = "".join(c for c in code if c.isalnum() or c in "._-")[:64]
    return safe or "task_failed"


def backoff_over(ws: WorkingSet, job: Job, task: Task) -> None:
    """Offer a task whose wait is over."""
    stage = ws.get(Stage, task.stage_id)
    if offers(job, stage):
        offer(ws, job, stage, task)
    else:
        ws.put(replace(task, due_at=None))
