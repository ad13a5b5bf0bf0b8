"""Callsheet from Python: `Client`, and `AsyncClient` for asyncio, from one source."""

from callsheet.client.clients import AsyncClient, Client
from callsheet.client.errors import CallsheetError, Damaged, NotReachable, Problem
from callsheet.client.models import (
    Added,
    Attempt,
    AuditLine,
    Balance,
    Constraint,
    Entry,
    Error,
    Event,
    File,
    Job,
    Key,
    Me,
    NewJob,
    NewKey,
    Ops,
    Outcome,
    Output,
    ProgressEstimate,
    Queue,
    Quote,
    Run,
    Stage,
    StartEstimate,
    Task,
    Tenant,
    Token,
    Wallet,
    Why,
    Worker,
    Workflow,
)
from callsheet.client.patience import Patience

__all__ = [
    "Added", "AsyncClient", "Attempt", "AuditLine", "Balance", "CallsheetError", "Client", "Constraint", "Damaged",
    "Entry", "Error", "Event", "File", "Job", "Key", "Me", "NewJob", "NewKey", "NotReachable", "Ops", "Outcome",
    "Output", "Patience", "Problem", "ProgressEstimate", "Queue", "Quote", "Run", "Stage", "StartEstimate", "Task",
    "Tenant", "Token", "Wallet", "Why", "Worker", "Workflow",
]  # fmt: skip
