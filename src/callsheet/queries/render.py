"""Rows converted to the structs of the API.

Object keys, provider references, tokens and hashes of secrets never leave the server, so no function here reads them.
"""

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, overload

import msgspec
from msgspec import Raw

from callsheet.api.admin import AuditEntry, Key, Tenant
from callsheet.api.errors import Error
from callsheet.api.events import Event
from callsheet.api.files import File
from callsheet.api.jobs import DurationEstimate, Job, Run
from callsheet.api.stages_and_tasks import Attempt, Stage, Task
from callsheet.api.wallets import LedgerEntry, Wallet
from callsheet.api.workflows import Workflow
from callsheet.core.model import rows
from callsheet.core.model.clock import SECOND
from callsheet.core.model.workflow_definition import WorkflowDefinition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@overload
def to_datetime(at: int) -> datetime: ...
@overload
def to_datetime(at: int | None) -> datetime | None: ...
def to_datetime(at: int | None) -> datetime | None:
    """Convert microseconds since 1970 to a UTC datetime; None stays None."""
    return None if at is None else _to_datetime(at)


@lru_cache(maxsize=4_096)
def _to_datetime(at: int) -> datetime:
    """Convert a time. Cached, because clients that poll read the same rows again."""
    return _EPOCH + timedelta(microseconds=at)


def parse_time(text: str) -> int:
    """Parse an RFC 3339 time into microseconds since 1970; raises ValueError."""
    parsed = datetime.fromisoformat(text)
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * SECOND)


def _raw(text: str | None) -> Any:
    return None if text is None else Raw(text.encode())


APPROVAL = "approval"
"""The phase of a job with a stage that waits for approval."""


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
    """Convert a job."""
    return Job(
        job.id, job.workflow, job.workflow_version, job.user_id, job.status, _phase(job), job.run, job.priority,
        job.price, job.progress, job.stages_total, job.stages_completed, job.seq, job.cancel_requested_at is not None,
        to_datetime(job.created_at), to_datetime(job.updated_at), to_datetime(job.start_at),
        to_datetime(job.deadline_at),
        to_datetime(job.started_at), to_datetime(job.finished_at), error_of(job.error_code, job.error_message),
        job.retry_of,
        _raw(job.labels), _raw(job.metadata), duration_estimate,
    )  # fmt: skip


@lru_cache(maxsize=4_096)
def job_json(job: rows.Job, duration_estimate: DurationEstimate | None) -> bytes:
    """Encode a job. Cached, so that clients that poll an unchanged job cost no encoding."""
    return msgspec.json.encode(job_view(job, duration_estimate))


def run_view(run: rows.Run, job: rows.Job) -> Run:
    """Convert a run. While it is open, its job has the time at which it started."""
    started_at = job.started_at if run.no == job.run and run.finished_at is None else run.started_at
    return Run(
        run.no, run.status, run.price, run.consumed, run.refunded, to_datetime(run.opened_at), to_datetime(started_at),
        to_datetime(run.finished_at), error_of(run.error_code, run.error_message),
    )  # fmt: skip


def stage_view(stage: rows.Stage) -> Stage:
    return Stage(
        stage.id, stage.no, stage.name, stage.kind, stage.status, bool(stage.approval), stage.tasks_total,
        stage.tasks_running, stage.tasks_completed, stage.tasks_failed, stage.tasks_canceled, stage.approved_by,
        to_datetime(stage.approved_at), to_datetime(stage.started_at), to_datetime(stage.finished_at),
    )  # fmt: skip


def _task_phase(task: rows.Task) -> str | None:
    if task.status == "running":
        return None if task.token_hash else "submitted"  # without a lease, the task runs at a provider
    return "backoff" if task.status == "retried" and task.due_at is not None else None


def task_view(task: rows.Task) -> Task:
    return Task(
        task.id, task.stage_id, task.no, task.kind, task.status, _task_phase(task), task.progress, task.message,
        task.attempts, task.attempts_counted, task.attempts_max, task.requeues, to_datetime(task.ready_at),
        to_datetime(task.started_at), to_datetime(task.finished_at), error_of(task.error_code, task.error_message),
    )  # fmt: skip


def attempt_view(attempt: rows.Attempt) -> Attempt:
    return Attempt(
        attempt.no, attempt.run, attempt.worker_id, to_datetime(attempt.leased_at), to_datetime(attempt.ended_at),
        attempt.outcome, not attempt.uncounted, error_of(attempt.error_code, attempt.error_message),
    )  # fmt: skip


def event_view(event: rows.Event, cursor: str | None = None) -> Event:
    return Event(
        event.seq, event.subject, event.run, event.type, to_datetime(event.at), event.actor, event.source,
        event.target, event.entity_id, _raw(event.data), cursor,
    )  # fmt: skip


def file_view(file: rows.File) -> File:
    return File(
        file.id, file.name, file.media_type, file.bytes, file.sha256, f"/v1/files/{file.id}", file.status, file.user_id,
        file.job_id, to_datetime(file.created_at), to_datetime(file.expires_at),
    )  # fmt: skip


def wallet_view(wallet: rows.Wallet) -> Wallet:
    return Wallet(wallet.user_id, wallet.balance, wallet.reserved, wallet.entries, wallet.topped_up, wallet.consumed)


def entry_view(entry: rows.LedgerEntry) -> LedgerEntry:
    return LedgerEntry(
        entry.seq, entry.kind, entry.amount, entry.consumed, entry.balance, entry.job_id, entry.run, entry.reason,
        entry.actor, to_datetime(entry.at),
    )  # fmt: skip


def workflow_view(row: rows.Workflow, hidden: tuple[str, ...]) -> Workflow:
    """Convert a workflow, without the `hidden` fields of its stages."""
    definition = msgspec.json.decode(row.spec, type=WorkflowDefinition)
    spec = json.loads(row.spec)
    for stage in spec.get("stages", ()):
        for name in hidden:
            stage.pop(name, None)
    return Workflow(
        row.name, row.version, definition.enabled, definition.price, to_datetime(row.created_at),
        [stage.name for stage in definition.stages], spec,
    )  # fmt: skip


def key_view(key: rows.ApiKey) -> Key:
    return Key(
        key.id,
        key.tenant,
        key.role,
        key.name,
        to_datetime(key.created_at),
        to_datetime(key.expires_at),
        to_datetime(key.revoked_at),
    )


def tenant_view(tenant: rows.Tenant) -> Tenant:
    return Tenant(
        tenant.id, tenant.weight, tenant.status, tenant.active_jobs_max, to_datetime(tenant.created_at),
        tenant.storage_bytes_max,
    )  # fmt: skip


def audit_view(entry: rows.Audit) -> AuditEntry:
    return AuditEntry(
        entry.id, entry.tenant, to_datetime(entry.at), entry.actor, entry.action, entry.subject, _raw(entry.data),
        entry.seq, entry.digest,
    )  # fmt: skip
