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
    Expected,
    Job,
    Key,
    Me,
    NewJob,
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
    Wallet,
    Why,
    Workflow,
)
from callsheet.client.patience import Patience
from callsheet.client.scaling import Scale
from callsheet.client.secret import NewKey, Token, WorkerToken
from callsheet.client.stored import File, Freed
from callsheet.client.workers import Worker, WorkerLease
from callsheet.core.scaling import Signals

__all__ = [
    "Added", "AsyncClient", "Attempt", "AuditLine", "Balance", "CallsheetError", "Client", "Constraint", "Damaged",
    "Entry", "Error", "Event", "Expected", "File", "Freed", "Job", "Key", "Me", "NewJob", "NewKey", "NotReachable",
    "Ops", "Outcome", "Output", "Patience", "Problem", "ProgressEstimate", "Queue", "Quote", "Run", "Scale",
    "Signals", "Stage", "StartEstimate", "Task", "Tenant", "Token", "Wallet", "Why", "Worker", "WorkerLease",
    "WorkerToken", "Workflow",
]  # fmt: skip
