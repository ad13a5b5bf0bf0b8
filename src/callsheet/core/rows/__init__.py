"""The rows of every table, one class each: the only place where columns are listed.

The store builds its reads and writes from these classes. Rows are frozen; a change is a new row put into the
working set. JSON columns hold text that was encoded once.
"""

from operator import attrgetter

from callsheet.core.rows.base import Row
from callsheet.core.rows.calls import Call, Inbox
from callsheet.core.rows.files import File, Use, WorkflowUse
from callsheet.core.rows.house import ApiKey, Audit, Cursor, Queue, Tenant, Worker, Workflow
from callsheet.core.rows.jobs import Attempt, Document, Event, Job, Run, Stage, Task
from callsheet.core.rows.money import Entry, Wallet

__all__ = [
    "ROWS",
    "ApiKey",
    "Attempt",
    "Audit",
    "Call",
    "Cursor",
    "Document",
    "Entry",
    "Event",
    "File",
    "Inbox",
    "Job",
    "Queue",
    "Row",
    "Run",
    "Stage",
    "Task",
    "Tenant",
    "Use",
    "Wallet",
    "Worker",
    "Workflow",
    "WorkflowUse",
]

ROWS: tuple[type[Row], ...] = (
    Tenant, Workflow, Queue, Wallet, Entry, Job, Run, Stage, Task, Attempt, Event, Document, Call, Inbox, Cursor, File,
    Use, WorkflowUse, Worker, ApiKey, Audit,
)  # fmt: skip
"""In the order in which they are written."""

for _row in ROWS:
    _row.key_of = attrgetter(*_row.KEY)
