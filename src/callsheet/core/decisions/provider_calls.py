"""Provider calls: recorded before the request, submitted once per attempt, collected until they end.

A paid call is never submitted again because a response was lost. A call without a response has the status `unknown`.
It ends with its callback, a lookup, or its deadline.
"""

import hashlib

import msgspec
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.cascade import definition_of, finish
from callsheet.core.decisions.files import release_outputs
from callsheet.core.decisions.lease import accept_result, close_call, fail_attempt, requeue_task
from callsheet.core.decisions.lease_check import find_attempt, get_leased_task, has_expired
from callsheet.core.model.clock import SECOND, seconds
from callsheet.core.model.commands import (
    Callback,
    CallIntent,
    ClaimCall,
    ClaimedCall,
    HandOff,
    Outcome,
    RecordIntent,
    ReportOutcome,
    TaskState,
)
from callsheet.core.model.errors import BadInput, Conflict, NotFound
from callsheet.core.model.ids import child_id
from callsheet.core.model.rows import Attempt, Call, Inbox, Job, Task
from callsheet.core.model.workflow_definition import check_range
from callsheet.core.policy.request_validation import encode_bounded
from callsheet.core.working_set import WorkingSet, encode


def record_intent(ws: WorkingSet, command: RecordIntent) -> CallIntent:
    """Record the intent to call a provider. An attempt has at most one call."""
    job, task = get_leased_task(ws, command)
    key = child_id(task.id, task.attempts)
    call = ws.find(Call, key)
    if call is None:
        if not command.provider:
            raise BadInput("invalid_provider", "`provider` is empty: name the provider of the call.")
        deadline = ws.now + seconds(definition_of(ws, job).provider_deadline_seconds)
        call = Call(key, task.id, task.attempts, job.id, job.tenant, command.provider, ws.change_time(job), deadline)
        ws.put(call)
        ws.put(replace(task, has_call=1))
        ws.emit(job, "task.intended", "worker", {"attempt": task.attempts}, entity_id=task.id)
    elif call.provider != command.provider:
        message = f"This attempt has already called {call.provider!r}: one attempt calls one provider."
        raise Conflict("call_exists", message)
    return CallIntent(call.id, call.status)


def hand_off(ws: WorkingSet, command: HandOff) -> TaskState:
    """Store the provider's job id and end the lease. From now on the collector watches the task."""
    if not command.ref or len(command.ref) > ws.limits.key_chars_max:
        raise BadInput("invalid_ref", f"`ref` must have 1 to {ws.limits.key_chars_max} characters.")
    lease = command.lease
    call = ws.find(Call, child_id(lease.task_id, lease.attempt))
    if call is not None and call.ref == command.ref and find_attempt(ws, command) is not None:
        return _task_state(ws, call, replay=True)
    if call is not None and _is_late(ws, call) and find_attempt(ws, command) is not None:
        job, task = ws.get(Job, call.job_id), ws.get(Task, call.task_id)
    else:
        job, task = get_leased_task(ws, command)
    if call is None:
        raise Conflict("no_intent", "This attempt has no recorded intent: record one before you call the provider.")
    _bind_ref(ws, job, task, call, command.ref)
    _apply_waiting_callbacks(ws, call, command.ref)
    return _task_state(ws, call)


def _is_late(ws: WorkingSet, call: Call) -> bool:
    """Return whether the lease of an open call has expired. Its worker may still report the reference."""
    if call.ended_at is not None:  # the task may have a newer lease, which is not the lease of this call
        return False
    return call.status == "unknown" or has_expired(ws.get(Task, call.task_id), ws.now)


def _bind_ref(ws: WorkingSet, job: Job, task: Task, call: Call, ref: str) -> Call:
    other = ws.get_fact(facts.CALL_BY_REFERENCE, (call.provider, ref))
    if other is not None and other != call.id:
        raise Conflict(
            "ref_taken", f"Another task already has this job id of {call.provider!r}: send the id of this call."
        )
    after = replace(
        call, status="submitted", ref=ref, submitted_at=ws.change_time(job),
        collect_at=ws.now + seconds(definition_of(ws, job).collect_seconds),
    )  # fmt: skip
    ws.put(after)
    ws.set_fact(facts.CALL_BY_REFERENCE, (call.provider, ref), call.id)
    ws.put(replace(task, token_hash=None, lease_expires_at=None, due_at=None))
    ws.emit(job, "task.submitted", "worker", {"attempt": task.attempts}, entity_id=task.id)
    return after


def claim_call(ws: WorkingSet, command: ClaimCall) -> ClaimedCall:
    """Lock a due call for collection, or expire it after its deadline."""
    call = ws.find(Call, command.call_id)
    if call is None:
        raise NotFound("call", command.call_id[:80])
    if call.collect_at is None or call.collect_at > ws.now:
        return ClaimedCall(call.id, call.provider, call.ref, cancel=False, due=False)
    job = ws.get(Job, call.job_id)
    if call.deadline_at <= ws.now:
        close_call(ws, ws.get(Task, call.task_id), "expired")
        finish(ws, job, "expire", "system", "provider_timeout", "The provider did not answer in time.")
        return ClaimedCall(call.id, call.provider, call.ref, cancel=True, due=False)
    ws.put(replace(call, collect_at=min(ws.now + command.lock_seconds * SECOND, call.deadline_at)))
    return ClaimedCall(call.id, call.provider, call.ref, job.cancel_requested_at is not None, due=True)


def report_outcome(ws: WorkingSet, command: ReportOutcome) -> TaskState:
    """Apply what the collector found; an ended call does not change."""
    call = ws.find(Call, command.call_id)
    if call is None:
        raise NotFound("call", command.call_id[:80])
    return _apply_outcome_and_waiting_callbacks(ws, call, command.outcome)


def _apply_outcome_and_waiting_callbacks(ws: WorkingSet, call: Call, outcome: Outcome) -> TaskState:
    result = _apply_outcome(ws, call, outcome)
    if outcome.ref and call.ref is None and not result.skipped:
        _apply_waiting_callbacks(ws, call, outcome.ref)
    return result


def _apply_outcome(ws: WorkingSet, call: Call, outcome: Outcome) -> TaskState:
    if call.ended_at is not None:
        return _task_state(ws, call, skipped="The call has ended.")
    job, task = ws.get(Job, call.job_id), ws.get(Task, call.task_id)
    if outcome.ref and call.ref is None:
        call = _bind_ref(ws, job, task, call, outcome.ref)
        task = ws.get(Task, call.task_id)
    if outcome.status == "pending":
        wait = (
            definition_of(ws, job).collect_seconds if outcome.poll_after_seconds is None else outcome.poll_after_seconds
        )
        poll_at = ws.now + seconds(min(max(wait, 1), 3_600))
        if task.token_hash is None:  # otherwise the worker still holds the lease and will report the reference
            ws.put(replace(call, collect_at=min(poll_at, call.deadline_at)))
        return _task_state(ws, call)
    if outcome.status == "completed":
        body = _encode_output(ws, outcome)
        close_call(ws, task, "completed")
        digest = hashlib.sha256(body.encode()).hexdigest()
        job = release_outputs(ws, job, ws.get(Attempt, (task.id, task.attempts)))
        return accept_result(ws, job, task, body, digest, outcome.delivered, "system")
    message = outcome.message.replace(call.ref, "[reference]") if call.ref else outcome.message
    if outcome.status == "absent":
        if call.ref is not None:
            return fail_attempt(ws, job, task, "provider_lost", message, retryable=True, actor="system")
        return requeue_task(ws, job, task, "unaccepted", "The provider never accepted the call.", "system")
    return fail_attempt(ws, job, task, outcome.code, message, retryable=outcome.retryable, actor="system")


def _encode_output(ws: WorkingSet, outcome: Outcome) -> str:
    check_range("delivered", outcome.delivered, 1, 100)
    return encode_bounded("output", outcome.output, ws.limits.output_bytes_max)


def callback(ws: WorkingSet, command: Callback) -> TaskState:
    """Accept a provider's webhook once: apply it, keep it until its reference is known, or skip it."""
    if not command.webhook_id or len(command.webhook_id) > ws.limits.key_chars_max:
        raise BadInput("invalid_webhook_id", f"The webhook id must have 1 to {ws.limits.key_chars_max} characters.")
    key = f"{command.provider}/{command.webhook_id}"
    if ws.find(Inbox, key) is not None:
        return TaskState("", "", "", "", skipped="duplicate", replay=True)
    call_id = _find_call_id(ws, command)
    if call_id is None:
        _encode_output(ws, command.outcome)  # refuse now what could not be applied later
    body = None if call_id else encode(command.outcome)
    inbox_row = Inbox(key, command.provider, command.ref, command.call_id, "waiting", ws.now, body)
    if call_id is None:
        ws.put(inbox_row)
        if command.ref:
            ws.set_fact(
                facts.WAITING_CALLBACKS,
                command.ref,
                [*ws.get_fact(facts.WAITING_CALLBACKS, command.ref), key],
            )
        return TaskState("", "", "", "", skipped="unknown")
    outcome = command.outcome if command.outcome.ref or not command.ref else replace(command.outcome, ref=command.ref)
    result = _apply_outcome_and_waiting_callbacks(ws, ws.get(Call, call_id), outcome)
    ws.put(replace(inbox_row, status="skipped" if result.skipped else "applied"))
    return result


def _find_call_id(ws: WorkingSet, command: Callback) -> str | None:
    if command.call_id and ws.get_fact(facts.JOB_OF_CALL, command.call_id):
        call = ws.find(Call, command.call_id)
        if call is not None and call.provider == command.provider:
            return call.id
    if not command.ref:
        return None
    return ws.get_fact(facts.CALL_BY_REFERENCE, (command.provider, command.ref))


def _apply_waiting_callbacks(ws: WorkingSet, call: Call, ref: str) -> None:
    """Apply the callbacks that arrived before the reference was known."""
    for key in ws.get_fact(facts.WAITING_CALLBACKS, ref):
        inbox_row = ws.get(Inbox, key)
        if inbox_row.provider == call.provider and inbox_row.status == "waiting":
            outcome = msgspec.json.decode(inbox_row.body or "null", type=Outcome)
            result = _apply_outcome(ws, ws.get(Call, call.id), outcome)
            ws.put(replace(inbox_row, status="skipped" if result.skipped else "applied", body=None))


def _task_state(ws: WorkingSet, call: Call, *, skipped: str | None = None, replay: bool = False) -> TaskState:
    job, task = ws.get(Job, call.job_id), ws.get(Task, call.task_id)
    return TaskState(job.id, task.id, task.status, job.status, skipped, replay)
