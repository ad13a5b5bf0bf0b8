"""Work at a provider: written down before the call, submitted once per attempt, collected until it ends.

Paid work is never submitted again because an answer was lost: a call without an answer is `unknown` and waits for
its callback, a look-up, or its deadline.
"""

import hashlib

import msgspec
from msgspec.structs import replace

from callsheet.core.cascade import finish, recipe_of
from callsheet.core.clock import SECOND, seconds
from callsheet.core.commands import (
    Callback,
    Collect,
    Collected,
    Collecting,
    Hand,
    Intend,
    Intended,
    Outcome,
    TaskState,
)
from callsheet.core.errors import BadInput, Conflict, Unknown
from callsheet.core.holding import hashed, held
from callsheet.core.ids import child
from callsheet.core.lease import accept, close_call, failed, give_back
from callsheet.core.recipe import in_range
from callsheet.core.rows import Attempt, Call, Inbox, Job, Task
from callsheet.core.submit import bounded_json
from callsheet.core.working import WorkingSet, encode


def intend(ws: WorkingSet, command: Intend) -> Intended:
    """Write the call down; the same attempt asked twice has one call."""
    job, task = held(ws, command)
    key = child(task.id, task.attempts)
    call = ws.find(Call, key)
    if call is None:
        if not command.provider:
            raise BadInput("invalid_provider", "A call names its provider.")
        deadline = ws.now + seconds(recipe_of(ws, job).provider_deadline_seconds)
        call = Call(key, task.id, task.attempts, job.id, job.tenant, command.provider, ws.at(job), deadline)
        ws.put(call)
        ws.put(replace(task, called=1))
        ws.emit(job, "task.intended", "worker", {"attempt": task.attempts}, entity_id=task.id)
    elif call.provider != command.provider:
        raise Conflict("call_exists", "This attempt has already called another provider.")
    return Intended(call.id, call.status)


def hand(ws: WorkingSet, command: Hand) -> TaskState:
    """Store the provider's reference and end the lease: from here on the task is collected."""
    if not command.ref or len(command.ref) > ws.limits.key_chars_max:
        raise BadInput("invalid_ref", f"A reference has 1 to {ws.limits.key_chars_max} characters.")
    lease = command.lease
    call = ws.find(Call, child(lease.task_id, lease.attempt))
    if call is not None and call.ref == command.ref and _was(ws, command):
        return _state(ws, call, replay=True)
    if call is not None and call.status == "unknown" and _was(ws, command):
        job, task = ws.get(Job, call.job_id), ws.get(Task, call.task_id)
    else:
        job, task = held(ws, command)
    if call is None:
        raise Conflict("no_intent", "Write the call down before making it: there is no intent for this attempt.")
    _bind(ws, job, task, call, command.ref)
    _open_held(ws, call, command.ref)
    return _state(ws, call)


def _was(ws: WorkingSet, command: Hand) -> bool:
    attempt = ws.find(Attempt, (command.lease.task_id, command.lease.attempt))
    return attempt is not None and attempt.token_hash == hashed(command.lease.token)


def _bind(ws: WorkingSet, job: Job, task: Task, call: Call, ref: str) -> Call:
    other = ws.fact("call_by_ref", (call.provider, ref))
    if other is not None and other != call.id:
        raise Conflict("ref_taken", "That provider reference belongs to another task.")
    after = replace(
        call, status="submitted", ref=ref, submitted_at=ws.at(job),
        collect_at=ws.now + seconds(recipe_of(ws, job).collect_seconds),
    )  # fmt: skip
    ws.put(after)
    ws.set_fact("call_by_ref", (call.provider, ref), call.id)
    ws.put(replace(task, token_hash=None, lease_expires_at=None, due_at=None))
    ws.emit(job, "task.submitted", "worker", {"attempt": task.attempts}, entity_id=task.id)
    return after


def collect(ws: WorkingSet, command: Collect) -> Collecting:
    """Take a due call, or end it when its time is over."""
    call = ws.find(Call, command.call_id)
    if call is None:
        raise Unknown("call", command.call_id[:80])
    if call.collect_at is None or call.collect_at > ws.now:
        return Collecting(call.id, call.provider, call.ref, cancel=False, due=False)
    job = ws.get(Job, call.job_id)
    if call.deadline_at <= ws.now:
        close_call(ws, ws.get(Task, call.task_id), "expired")
        finish(ws, job, "expire", "system", "provider_timeout", "The provider did not answer in time.")
        return Collecting(call.id, call.provider, call.ref, cancel=True, due=False)
    ws.put(replace(call, collect_at=min(ws.now + command.hold_seconds * SECOND, call.deadline_at)))
    return Collecting(call.id, call.provider, call.ref, job.cancel_requested_at is not None, due=True)


def collected(ws: WorkingSet, command: Collected) -> TaskState:
    """Apply what collecting gave; a call that has ended is left as it is."""
    call = ws.find(Call, command.call_id)
    if call is None:
        raise Unknown("call", command.call_id[:80])
    return _heard(ws, call, command.outcome)


def _heard(ws: WorkingSet, call: Call, outcome: Outcome) -> TaskState:
    result = _apply(ws, call, outcome)
    if outcome.ref and call.ref is None and not result.skipped:
        _open_held(ws, call, outcome.ref)
    return result


def _apply(ws: WorkingSet, call: Call, outcome: Outcome) -> TaskState:
    if call.ended_at is not None:
        return _state(ws, call, skipped="The call has ended.")
    job, task = ws.get(Job, call.job_id), ws.get(Task, call.task_id)
    if outcome.ref and call.ref is None:
        call = _bind(ws, job, task, call, outcome.ref)
        task = ws.get(Task, call.task_id)
    if outcome.status == "pending":
        wait = recipe_of(ws, job).collect_seconds if outcome.again_in_seconds is None else outcome.again_in_seconds
        at = ws.now + seconds(min(max(wait, 1), 3_600))
        if task.token_hash is None:  # else a worker is about to tell the reference: nobody must look the call up
            ws.put(replace(call, collect_at=min(at, call.deadline_at)))
        return _state(ws, call)
    if outcome.status == "completed":
        body = _output(ws, outcome)
        close_call(ws, task, "completed")
        digest = hashlib.sha256(body.encode()).hexdigest()
        return accept(ws, job, task, body, digest, outcome.delivered, "system")
    message = outcome.message.replace(call.ref, "[reference]") if call.ref else outcome.message
    if outcome.status == "absent":
        if call.ref is not None:
            return failed(ws, job, task, "provider_lost", message, retryable=True, actor="system")
        return give_back(ws, job, task, "unaccepted", "The provider never accepted the call.", "system")
    return failed(ws, job, task, outcome.code, message, retryable=outcome.retryable, actor="system")


def _output(ws: WorkingSet, outcome: Outcome) -> str:
    in_range("delivered", outcome.delivered, 1, 100)
    return bounded_json("output", outcome.output, ws.limits.output_bytes_max)


def callback(ws: WorkingSet, command: Callback) -> TaskState:
    """Take a webhook once: applied, held until its reference is known, or skipped."""
    if not command.webhook_id or len(command.webhook_id) > ws.limits.key_chars_max:
        raise BadInput("invalid_webhook_id", "A callback has an id.")
    key = f"{command.provider}/{command.webhook_id}"
    if ws.find(Inbox, key) is not None:
        return TaskState("", "", "", "", skipped="duplicate", replay=True)
    call_id = _called(ws, command)
    if call_id is None:
        _output(ws, command.outcome)  # what could not be applied later is not kept
    body = None if call_id else encode(command.outcome)
    letter = Inbox(key, command.provider, command.ref, command.call_id, "held", ws.now, body)
    if call_id is None:
        ws.put(letter)
        if command.ref:
            ws.set_fact("held_callbacks", command.ref, [*ws.fact("held_callbacks", command.ref), key])
        return TaskState("", "", "", "", skipped="unknown")
    outcome = command.outcome if command.outcome.ref or not command.ref else replace(command.outcome, ref=command.ref)
    result = _heard(ws, ws.get(Call, call_id), outcome)
    ws.put(replace(letter, status="skipped" if result.skipped else "applied"))
    return result


def _called(ws: WorkingSet, command: Callback) -> str | None:
    if command.call_id and ws.fact("call_link", command.call_id):
        call = ws.find(Call, command.call_id)
        if call is not None and call.provider == command.provider:
            return call.id
    if not command.ref:
        return None
    found: str | None = ws.fact("call_by_ref", (command.provider, command.ref))
    return found


def _open_held(ws: WorkingSet, call: Call, ref: str) -> None:
    """Apply the callbacks that came before their reference was known."""
    for key in ws.fact("held_callbacks", ref):
        letter = ws.get(Inbox, key)
        if letter.provider == call.provider and letter.status == "held":
            outcome = msgspec.json.decode(letter.body or "null", type=Outcome)
            result = _apply(ws, ws.get(Call, call.id), outcome)
            ws.put(replace(letter, status="skipped" if result.skipped else "applied", body=None))


def _state(ws: WorkingSet, call: Call, *, skipped: str | None = None, replay: bool = False) -> TaskState:
    job, task = ws.get(Job, call.job_id), ws.get(Task, call.task_id)
    return TaskState(job.id, task.id, task.status, job.status, skipped, replay)
