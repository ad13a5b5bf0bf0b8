"""Leases: heartbeat, complete, fail, requeue, expiry.

A lease is a token and an epoch (the attempt's number). Only the token of the newest epoch is valid. A report with an
older one is refused as `lease_lost` and changes nothing. A repeated report gets the same answer.
"""

import hashlib
from typing import Any, NamedTuple

from msgspec.structs import replace

from callsheet.core.decisions.cascade import LEASE_CLEARED, accepts_claims, cascade, definition_of, make_claimable
from callsheet.core.decisions.files import check_file, release_outputs, store_outputs
from callsheet.core.decisions.lease_check import find_attempt, find_lease, get_leased_task
from callsheet.core.decisions.transitions import move_task, move_task_silently
from callsheet.core.model.clock import SECOND, seconds
from callsheet.core.model.commands import (
    Complete,
    Fail,
    Heartbeat,
    HeartbeatResult,
    Lease,
    RecordSubmission,
    Requeue,
    TaskState,
)
from callsheet.core.model.errors import BadInput, LeaseLost
from callsheet.core.model.ids import child_id
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Attempt, Call, Document, File, Job, Stage, Task
from callsheet.core.model.state_machines import Actor
from callsheet.core.model.workflow_definition import check_range
from callsheet.core.policy.fair_order import requeue_at_front
from callsheet.core.policy.redaction import redact_error
from callsheet.core.policy.request_validation import encode_bounded
from callsheet.core.working_set import WorkingSet, encode, encode_bytes

_FULL = 100


# -- running tasks


def heartbeat(ws: WorkingSet, command: Heartbeat) -> HeartbeatResult:
    """Extend a lease, record progress and log lines, and return whether the worker should stop."""
    live = find_lease(ws, command)
    if isinstance(live, Attempt):
        if live.outcome != "canceled":
            raise LeaseLost
        return HeartbeatResult(0.0, cancel=True)
    job, task = live
    lease_seconds = task.lease_seconds if command.lease_seconds is None else command.lease_seconds
    lease_seconds = min(max(lease_seconds, 1), ws.limits.lease_seconds_max)
    lease_expires_at = max(task.lease_expires_at or 0, ws.now + lease_seconds * SECOND)
    after = replace(task, lease_expires_at=lease_expires_at, due_at=lease_expires_at)
    if command.progress is not None or command.message is not None or command.preview:
        after = _record_progress(ws, job, after, command)
    if command.log:
        _record_log(ws, task, command)
    ws.put(after)
    return HeartbeatResult((lease_expires_at - ws.now) / SECOND, job.cancel_requested_at is not None)


def _record_progress(ws: WorkingSet, job: Job, task: Task, command: Heartbeat) -> Task:
    percent = task.progress if command.progress is None else check_range("progress", command.progress, 0, _FULL)
    message = command.message
    if message is not None and len(message) > ws.limits.message_chars_max:
        most = ws.limits.message_chars_max
        raise BadInput("message_too_long", f"The progress message has {len(message)} characters; send at most {most}.")
    if message:
        message = _clean_text(ws, task, message)
    stage = ws.get(Stage, task.stage_id)
    stage_percent = (_FULL * stage.tasks_completed + percent) // stage.tasks_total
    overall = (_FULL * job.stages_completed + stage_percent) // job.stages_total
    recorded = job.progress_events < ws.limits.progress_events_per_job_max
    job = replace(job, progress=max(job.progress, overall), progress_events=job.progress_events + recorded)
    ws.put(job)
    data: dict[str, Any] = {"progress": percent, "message": message}
    if command.preview:
        data["preview"] = command.preview
    if job.progress_events >= ws.limits.progress_events_per_job_max:
        data["last"] = True
    if recorded:
        ws.emit(job, "task.progressed", "worker", data, entity_id=task.id)
    return replace(task, progress=percent, message=message if message is not None else task.message)


def _record_log(ws: WorkingSet, task: Task, command: Heartbeat) -> None:
    """Store log lines until the log of the job is full. The event that fills it ends with a line that says so."""
    check_range("the number of log lines", len(command.log), 1, ws.limits.log_lines_max)
    job, most = ws.get(Job, task.job_id), ws.limits.log_bytes_per_job_max
    if job.log_bytes >= most:
        return
    lines: list[str] = []
    size = job.log_bytes + len(encode({"lines": lines}))
    for line in command.log:
        lines.append(_clean_text(ws, task, line))
        size += len(encode_bytes(lines[-1])) + 1
        if size > most:
            limit = f"{pluralize(most, 'byte')} (log_bytes_per_job_max)"
            lines.append(f"The log has reached its limit of {limit}. Later lines are dropped.")
            break
    data = {"lines": lines}
    ws.put(replace(job, log_bytes=job.log_bytes + len(encode_bytes(data))))
    ws.emit(job, "task.logged", "worker", data, entity_id=task.id)


def record_submission(ws: WorkingSet, command: RecordSubmission) -> TaskState:
    """Record the provider and its job id on the attempt, before the worker submits there."""
    for what, text in (("provider", command.provider), ("ref", command.ref)):
        if not text or len(text) > ws.limits.key_chars_max or not text.isprintable():
            most = ws.limits.key_chars_max
            raise BadInput(f"invalid_{what}", f"`{what}` must have 1 to {most} printable characters.")
    job, task = get_leased_task(ws, command)
    attempt = ws.get(Attempt, (task.id, task.attempts))
    if (attempt.provider, attempt.ref) != (command.provider, command.ref):
        ws.put(replace(attempt, provider=command.provider, ref=command.ref))
        ws.emit(job, "task.submitted", "worker", {"attempt": task.attempts}, entity_id=task.id)
    return _task_state(ws, job, task.id)


# -- ending an attempt


def complete(ws: WorkingSet, command: Complete) -> TaskState:
    """Accept the result of the newest lease, store its files and apply the cascade rules."""
    check_range("delivered", command.delivered, 1, _FULL)
    body = encode_bounded("output", command.output, ws.limits.output_bytes_max)
    files = "".join(f"\n{file.no} {file.sha256} {file.name}" for file in command.files)
    digest = hashlib.sha256((body + files).encode()).hexdigest()
    live = find_lease(ws, command)
    if isinstance(live, Attempt):
        return _answer_repeated_report(ws, command.lease, live, "completed", digest)
    job, task = live
    job = _store_files(ws, job, task, command)
    close_call(ws, task, "completed")
    return accept_result(ws, job, task, body, digest, command.delivered, "worker")


def _store_files(ws: WorkingSet, job: Job, task: Task, command: Complete) -> Job:
    check_range("the number of files", len(command.files), 0, ws.limits.files_per_task_max)
    retention = definition_of(ws, job).retention_seconds if command.files else None
    expires_at = None if retention is None else ws.now + seconds(retention)
    last = 0
    stored: list[File] = []
    for file in command.files:
        if not last < file.no <= ws.limits.files_per_task_max:  # a file that could not be uploaded leaves a gap
            most = ws.limits.files_per_task_max
            message = f"File number {file.no} is invalid: number files in ascending order from 1 to {most}."
            raise BadInput("invalid_file", message)
        last = file.no
        check_file(file.name, file.media_type, file.bytes, file.sha256, ws.limits)
        stored.append(
            File(
                child_id(child_id(task.id, task.attempts), file.no), job.tenant, job.user_id, job.id, task.id,
                task.attempts,
                file.no, file.name, file.media_type, file.bytes, file.sha256, ws.change_time(job), "ready", expires_at,
            )
        )  # fmt: skip
    return store_outputs(ws, job, ws.get(Attempt, (task.id, task.attempts)), stored)


def accept_result(
    ws: WorkingSet, job: Job, task: Task, body: str, digest: str, delivered: int, actor: Actor
) -> TaskState:
    """Store a result and complete its task; the cascade rules move stage, job and credits."""
    now = ws.change_time(job)
    attempt = ws.get(Attempt, (task.id, task.attempts))
    ws.put(replace(attempt, ended_at=max(now, attempt.leased_at), outcome="completed", digest=digest))
    ws.append(Document(task.id, f"output:{task.attempts}", job.id, body))
    move_task(
        ws, job, task, "complete", actor, {"bytes": len(body), "digest": digest}, delivered=delivered,
        progress=_FULL, finished_at=now, error_code=None, error_message=None, **LEASE_CLEARED,
    )  # fmt: skip
    return _task_state(ws, cascade(ws, job.id), task.id)


def fail(ws: WorkingSet, command: Fail) -> TaskState:
    """Record a failed attempt. The task is retried if the retry policy allows it, else it fails with its job."""
    live = find_lease(ws, command)
    if isinstance(live, Attempt):
        return _answer_repeated_report(ws, command.lease, live, "failed", None)
    job, task = live
    if command.resume:
        attempt = ws.get(Attempt, (task.id, task.attempts))
        ws.put(replace(attempt, resumable=int(attempt.ref is not None)))
    return fail_attempt(ws, job, task, command.code, command.message, retryable=command.retryable, actor="worker")


class AttemptEnd(NamedTuple):
    """How an attempt ended."""

    outcome: str
    code: str
    text: str
    retry: bool
    uncounted: bool = False
    """The attempt does not count towards `attempts_max`."""


def fail_attempt(
    ws: WorkingSet, job: Job, task: Task, code: str, message: str, *, retryable: bool | None, actor: Actor
) -> TaskState:
    """End an attempt with an error, and retry the task if its policy allows it."""
    code = _sanitize_code(code)
    text = _clean_text(ws, task, message)
    retry = definition_of(ws, job).retry.allows_retry(retryable=retryable) and task.attempts_counted < task.attempts_max
    return end_attempt(ws, job, task, AttemptEnd("failed", code, text, retry), actor)


def requeue(ws: WorkingSet, command: Requeue) -> TaskState:
    """Requeue a task without counting the attempt, up to `requeues_max` times."""
    if not command.reason.strip():
        raise BadInput("reason_required", "`reason` is empty: say why the task is requeued.")
    if _already_requeued(ws, command):
        return replace(_task_state(ws, ws.get(Job, command.lease.job_id), command.lease.task_id), replay=True)
    live = find_lease(ws, command)
    if isinstance(live, Attempt):
        return _answer_repeated_report(ws, command.lease, live, "requeued", None)
    job, task = live
    if mark_call_unanswered(ws, task):  # the provider may have accepted the call: look it up, do not repeat it
        return _task_state(ws, job, task.id)
    return requeue_task(
        ws, job, task, "requeued", f"Requeued: {command.reason}", "worker", _sanitize_code(command.cause)
    )


def requeue_task(
    ws: WorkingSet, job: Job, task: Task, outcome: str, reason: str, actor: Actor, cause: str | None = None
) -> TaskState:
    """End an attempt without counting it; after `requeues_max` requeues the task fails."""
    text = _clean_text(ws, task, reason)
    if task.requeues >= task.requeues_max:
        limit = f"The task was requeued {pluralize(task.requeues, 'time')}, which is the limit. {text}"
        return end_attempt(
            ws, job, task, AttemptEnd(outcome, "requeue_exhausted", limit, retry=False, uncounted=True), actor
        )
    return end_attempt(ws, job, task, AttemptEnd(outcome, cause or outcome, text, retry=True, uncounted=True), actor)


def expire_lease(ws: WorkingSet, job: Job, task: Task) -> None:
    """End the attempt of an expired lease. It counts as an attempt."""
    retry = task.attempts_counted < task.attempts_max
    text = "The worker stopped sending heartbeats and its lease expired."
    end_attempt(ws, job, task, AttemptEnd("lost", "lease_expired", text, retry), "system")


def end_attempt(ws: WorkingSet, job: Job, task: Task, end: AttemptEnd, actor: Actor) -> TaskState:
    """Close an attempt and retry, fail or cancel its task."""
    now = ws.change_time(job)
    attempt = ws.get(Attempt, (task.id, task.attempts))
    job = release_outputs(ws, job, attempt)
    ended = replace(
        attempt, ended_at=max(now, attempt.leased_at), outcome=end.outcome, uncounted=int(end.uncounted),
        error_code=end.code, error_message=end.text,
    )  # fmt: skip
    ws.put(ended)
    close_call(ws, task, end.outcome)
    changes: dict[str, Any] = {**LEASE_CLEARED, "error_code": end.code, "error_message": end.text}
    if end.uncounted:
        changes |= {"attempts_counted": task.attempts_counted - 1, "requeues": task.requeues + 1}
    data: dict[str, Any] = {"outcome": end.outcome, "code": end.code, "message": end.text}
    if job.cancel_requested_at is not None:
        move_task_silently(ws, task, "cancel", actor, finished_at=now, **changes)
    elif end.retry:
        wait = 0 if end.uncounted else _backoff_wait(ws, job, task)
        data["wait_seconds"] = wait / SECOND
        changes["ready_at"] = now + wait if wait else None
        _make_retry_claimable(
            ws, job, move_task(ws, job, task, "retry", actor, data, **changes), uncounted=end.uncounted
        )
    else:
        ws.put(replace(job, error_code=end.code, error_message=end.text))
        move_task(ws, job, task, "fail", actor, data, finished_at=now, **changes)
    return _task_state(ws, cascade(ws, job.id), task.id)


def _backoff_wait(ws: WorkingSet, job: Job, task: Task) -> int:
    return definition_of(ws, job).retry.backoff.wait(task.id, task.attempts, task.attempts_counted)


def _make_retry_claimable(ws: WorkingSet, job: Job, after: Task, *, uncounted: bool) -> None:
    stage = ws.get(Stage, after.stage_id)
    if not uncounted:
        make_claimable(ws, job, stage, after)
    elif accepts_claims(job, stage):
        ws.put(requeue_at_front(ws, after))
        ws.woken_kinds.add(after.kind)


def mark_call_unanswered(ws: WorkingSet, task: Task) -> bool:
    """Mark an open provider call as `unknown` if its worker was lost: it may have been accepted, so look it up."""
    call = ws.find(Call, child_id(task.id, task.attempts)) if task.has_call else None
    if call is None or call.ended_at is not None:
        return False
    ws.put(replace(call, status="unknown", collect_at=ws.now))
    ws.put(replace(task, token_hash=None, lease_expires_at=None, due_at=None))
    ws.emit(ws.get(Job, task.job_id), "task.unanswered", "system", {"attempt": task.attempts}, entity_id=task.id)
    return True


def close_call(ws: WorkingSet, task: Task, outcome: str) -> None:
    """End the provider call of the current attempt, if there is one."""
    call = ws.find(Call, child_id(task.id, task.attempts)) if task.has_call else None
    if call is not None and call.ended_at is None:
        ended_at = ws.change_time(call, ws.get(Job, task.job_id))
        ws.put(replace(call, status="ended", ended_at=ended_at, outcome=outcome, collect_at=None))


def _already_requeued(ws: WorkingSet, command: Requeue) -> bool:
    """Return whether this lease was already requeued while its provider call was in progress."""
    lease = command.lease
    task = ws.find(Task, lease.task_id)
    if task is None or not task.has_call or task.attempts != lease.attempt:
        return False
    call = ws.find(Call, child_id(task.id, task.attempts))
    return call is not None and call.status == "unknown" and find_attempt(ws, command) is not None


def _answer_repeated_report(
    ws: WorkingSet, lease: Lease, attempt: Attempt, outcome: str, digest: str | None
) -> TaskState:
    """Answer a report about an ended attempt: the same answer as before, skipped, or lease lost."""
    state = _task_state(ws, ws.get(Job, lease.job_id), lease.task_id)
    if attempt.outcome == outcome and attempt.digest == digest:
        return replace(state, replay=True)
    if attempt.outcome == "canceled":
        return replace(state, skipped=f"The job is {state.job_status}.")
    raise LeaseLost


def _task_state(ws: WorkingSet, job: Job, task_id: str) -> TaskState:
    return TaskState(job.id, task_id, ws.get(Task, task_id).status, job.status)


def _clean_text(ws: WorkingSet, task: Task, text: str) -> str:
    """Return a worker's text with secrets and the provider reference removed."""
    ref = ws.get(Attempt, (task.id, task.attempts)).ref
    return redact_error(text.replace(ref, "[reference]") if ref else text, ws.limits.message_chars_max)


def _sanitize_code(code: str) -> str:
    safe = "".join(c for c in code if c.isalnum() or c in "._-")[:64]
    return safe or "task_failed"


def end_backoff(ws: WorkingSet, job: Job, task: Task) -> None:
    """Make a task claimable whose backoff has ended."""
    stage = ws.get(Stage, task.stage_id)
    if accepts_claims(job, stage):
        make_claimable(ws, job, stage, task)
    else:
        ws.put(replace(task, due_at=None))
