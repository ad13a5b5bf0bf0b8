"""The rows of every table, one class each: the only place where columns are listed.

The store builds its reads and writes from these classes. Rows are frozen; a change is a new row put into the
working set. JSON columns hold text that was encoded once.
"""

from operator import attrgetter

from callsheet.core.model.rows.base import Row
from callsheet.core.model.rows.files import File, JobFile, StorageUsage, WorkflowFile
from callsheet.core.model.rows.jobs import Attempt, Document, Event, Job, Run, Stage, Task
from callsheet.core.model.rows.money import LedgerEntry, Wallet
from callsheet.core.model.rows.operator import (
    ApiKey,
    Audit,
    AuditHead,
    Cursor,
    InstallationValue,
    Queue,
    Tenant,
    Worker,
    Workflow,
)
from callsheet.core.model.rows.provider_calls import Call, Inbox

__all__ = [
    "ROWS",
    "ApiKey",
    "Attempt",
    "Audit",
    "AuditHead",
    "Call",
    "Cursor",
    "Document",
    "Event",
    "File",
    "Inbox",
    "InstallationValue",
    "Job",
    "JobFile",
    "LedgerEntry",
    "Queue",
    "Row",
    "Run",
    "Stage",
    "StorageUsage",
    "Task",
    "Tenant",
    "Wallet",
    "Worker",
    "Workflow",
    "WorkflowFile",
]

ROWS: tuple[type[Row], ...] = (
    Tenant, Workflow, Queue, Wallet, LedgerEntry, Job, Run, Stage, Task, Attempt, Event, Document, Call, Inbox,
    Cursor, File, StorageUsage,
    JobFile, WorkflowFile, Worker, ApiKey, Audit, AuditHead, InstallationValue,
)  # fmt: skip
"""In the order in which the store writes them."""

for _row in ROWS:
    _row.key_of = attrgetter(*_row.KEY)
