"""What goes out: rows as a client sees them. Object keys, provider references, tokens and hashes are not here."""

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw, Struct

from callsheet.core.model import rows
from callsheet.core.model.clock import SECOND, rfc3339
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.queries.duration_estimates import DurationEstimate


@lru_cache(maxsize=4_096)
def format_time(at: int | None) -> str | None:
    """Print a time as RFC 3339 in UTC, to the millisecond; who polls a job asks for the same ones again."""
    return None if at is None else rfc3339(at)


def parse_time(text: str) -> int:
    """Read a time that a client sent; ValueError if it is none."""
    parsed = datetime.fromisoformat(text)
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * SECOND)


def _raw(text: str | None) -> Any:
    return None if text is None else Raw(text.encode())


APPROVAL = "approval"
"""The phase of a job whose stage waits until somebody approves it."""


class Error(Struct, frozen=True):
    """Why something ended badly."""

    code: str
    message: str


class Job(Struct, frozen=True):
    """A job."""

    id: str
    workflow: str
    workflow_version: int
    user: str
    status: str
    phase: str | None
    run: int
    priority: int
    price: int
    progress: int
    stages_total: int
    stages_completed: int
    events: int
    cancel_requested: bool
    created_at: str
    updated_at: str
    start_at: str | None
    deadline_at: str | None
    started_at: str | None
    finished_at: str | None
    error: Error | None
    retry_of: str | None
    labels: dict[str, str] | None
    metadata: dict[str, Any] | None
    duration_estimate: DurationEstimate | None


def _phase(job: rows.Job) -> str | None:
    if job.finished_at is not None:
        return None
    if job.cancel_requested_at is not None:
        return "canceling"
    if job.status == "pending":
        return "scheduled"
    return None if job.waiting_at is None else APPROVAL


def error_of(code: str | None, message: str | None) -> Error | None:
    return Error(code, message or "") if code else None


def job_view(job: rows.Job, duration_estimate: DurationEstimate | None) -> Job:
    """Show a job."""
    return Job(
        job.id, job.workflow, job.workflow_version, job.user_id, job.status, _phase(job), job.run, job.priority,
        job.price, job.progress, job.stages_total, job.stages_completed, job.seq, job.cancel_requested_at is not None,
        format_time(job.created_at) or "", format_time(job.updated_at) or "", format_time(job.start_at),
        format_time(job.deadline_at),
        format_time(job.started_at), format_time(job.finished_at), error_of(job.error_code, job.error_message),
        job.retry_of,
        _raw(job.labels), _raw(job.metadata), duration_estimate,
    )  # fmt: skip


@lru_cache(maxsize=4_096)
def job_json(job: rows.Job, duration_estimate: DurationEstimate | None) -> bytes:
    """Write a job out; who polls it gets the same bytes until its row or what is duration_estimate of it is another."""
    return msgspec.json.encode(job_view(job, duration_estimate))


class Run(Struct, frozen=True):
    """One life of a job, with its money."""

    no: int
    status: str
    price: int
    consumed: int
    refunded: int
    opened_at: str | None
    started_at: str | None
    finished_at: str | None
    error: Error | None


def run_view(run: rows.Run, job: rows.Job) -> Run:
    """Show a run; while it is open, when it started is known of its job."""
    started_at = job.started_at if run.no == job.run and run.finished_at is None else run.started_at
    return Run(
        run.no, run.status, run.price, run.consumed, run.refunded, format_time(run.opened_at), format_time(started_at),
        format_time(run.finished_at), error_of(run.error_code, run.error_message),
    )  # fmt: skip


class Stage(Struct, frozen=True):
    """A group of tasks; stages follow each other."""

    id: str
    no: int
    name: str
    kind: str
    status: str
    approval: bool
    tasks_total: int
    tasks_running: int
    tasks_completed: int
    tasks_failed: int
    tasks_canceled: int
    approved_by: str | None
    approved_at: str | None
    started_at: str | None
    finished_at: str | None


def stage_view(stage: rows.Stage) -> Stage:
    return Stage(
        stage.id, stage.no, stage.name, stage.kind, stage.status, bool(stage.approval), stage.tasks_total,
        stage.tasks_running, stage.tasks_completed, stage.tasks_failed, stage.tasks_canceled, stage.approved_by,
        format_time(stage.approved_at), format_time(stage.started_at), format_time(stage.finished_at),
    )  # fmt: skip


class Task(Struct, frozen=True):
    """What one worker executes."""

    id: str
    stage_id: str
    no: int
    kind: str
    status: str
    phase: str | None
    progress: int
    message: str | None
    attempts: int
    attempts_counted: int
    attempts_max: int
    requeues: int
    ready_at: str | None
    started_at: str | None
    finished_at: str | None
    error: Error | None


def _task_phase(task: rows.Task) -> str | None:
    if task.status == "running":
        return None if task.token_hash else "submitted"  # nobody holds it: it lies at a provider
    return "backoff" if task.status == "retried" and task.due_at is not None else None


def task_view(task: rows.Task) -> Task:
    return Task(
        task.id, task.stage_id, task.no, task.kind, task.status, _task_phase(task), task.progress, task.message,
        task.attempts, task.attempts_counted, task.attempts_max, task.requeues, format_time(task.ready_at),
        format_time(task.started_at), format_time(task.finished_at), error_of(task.error_code, task.error_message),
    )  # fmt: skip


class Attempt(Struct, frozen=True):
    """One try of a task, kept for ever."""

    no: int
    run: int
    worker: str
    leased_at: str | None
    ended_at: str | None
    outcome: str | None
    uncounted: bool
    error: Error | None


def attempt_view(attempt: rows.Attempt) -> Attempt:
    return Attempt(
        attempt.no, attempt.run, attempt.worker_id, format_time(attempt.leased_at), format_time(attempt.ended_at),
        attempt.outcome, bool(attempt.uncounted), error_of(attempt.error_code, attempt.error_message),
    )  # fmt: skip


class Event(Struct, frozen=True):
    """A stored fact about a job. `seq` is dense per job; `cursor` resumes a stream of a tenant."""

    seq: int
    job_id: str
    run: int
    type: str
    at: str
    actor: str
    from_status: str | None
    to_status: str | None
    entity_id: str | None
    data: Any
    cursor: str | None = None


def event_view(event: rows.Event, cursor: str | None = None) -> Event:
    return Event(
        event.seq, event.subject, event.run, event.type, format_time(event.at) or "", event.actor, event.source,
        event.target, event.entity_id, _raw(event.data), cursor,
    )  # fmt: skip


class File(Struct, frozen=True):
    """A stored file, brought by a user or made by a job; `url` is on this server and asks for a key."""

    id: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    url: str
    status: str
    user: str
    job_id: str | None
    created_at: str | None
    expires_at: str | None


def file_view(file: rows.File) -> File:
    return File(
        file.id, file.name, file.media_type, file.bytes, file.sha256, f"/v1/files/{file.id}", file.status, file.user_id,
        file.job_id, format_time(file.created_at), format_time(file.expires_at),
    )  # fmt: skip


class Output(Struct, frozen=True):
    """What a task of a job made."""

    stage: str
    stage_no: int
    task_no: int
    task_id: str
    output: Any
    files: list[File]


class Wallet(Struct, frozen=True):
    """What a user may spend, what is reserved for jobs under way, and what was ever topped up and consumed."""

    user: str
    balance: int
    reserved: int
    entries: int
    topped_up: int
    consumed: int


def wallet_view(wallet: rows.Wallet) -> Wallet:
    return Wallet(wallet.user_id, wallet.balance, wallet.reserved, wallet.entries, wallet.topped_up, wallet.consumed)


class LedgerEntry(Struct, frozen=True):
    """A line of the ledger."""

    seq: int
    kind: str
    amount: int
    consumed: int
    balance: int
    job_id: str | None
    run: int | None
    reason: str | None
    actor: str
    at: str | None


def entry_view(entry: rows.LedgerEntry) -> LedgerEntry:
    return LedgerEntry(
        entry.seq, entry.kind, entry.amount, entry.consumed, entry.balance, entry.job_id, entry.run, entry.reason,
        entry.actor, format_time(entry.at),
    )  # fmt: skip


class Workflow(Struct, frozen=True):
    """A definition: what may be asked for, and what it costs."""

    name: str
    version: int
    enabled: bool
    price: int
    created_at: str | None
    stages: list[str]
    definition: dict[str, Any]


def workflow_view(row: rows.Workflow, hidden: tuple[str, ...]) -> Workflow:
    """Show a workflow, without what of its stages is hidden from who asks."""
    definition = msgspec.json.decode(row.spec, type=WorkflowDefinition)
    spec = json.loads(row.spec)
    for stage in spec.get("stages", ()):
        for name in hidden:
            stage.pop(name, None)
    return Workflow(
        row.name, row.version, definition.enabled, definition.price, format_time(row.created_at),
        [stage.name for stage in definition.stages], spec,
    )  # fmt: skip


class Key(Struct, frozen=True):
    """A key, without its secret."""

    id: str
    tenant: str
    role: str
    name: str
    created_at: str | None
    expires_at: str | None
    revoked_at: str | None


class NewKey(Struct, frozen=True):
    """A new key; its secret is shown this once."""

    key: Key
    secret: str


def key_view(key: rows.ApiKey) -> Key:
    return Key(
        key.id,
        key.tenant,
        key.role,
        key.name,
        format_time(key.created_at),
        format_time(key.expires_at),
        format_time(key.revoked_at),
    )


class Tenant(Struct, frozen=True):
    """A customer boundary."""

    id: str
    weight: int
    status: str
    active_jobs_max: int
    created_at: str | None


def tenant_view(tenant: rows.Tenant) -> Tenant:
    return Tenant(tenant.id, tenant.weight, tenant.status, tenant.active_jobs_max, format_time(tenant.created_at))


class AuditEntry(Struct, frozen=True):
    """Who did what to the house."""

    id: str
    tenant: str
    at: str | None
    by: str
    action: str
    subject: str
    data: Any


def audit_view(line: rows.Audit) -> AuditEntry:
    return AuditEntry(
        line.id, line.tenant, format_time(line.at), line.actor, line.action, line.subject, _raw(line.data)
    )
