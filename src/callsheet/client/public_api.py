"""The public names of `callsheet` and `callsheet.client`, in one list.

`Worker`, the API's description of a worker, is exported by `callsheet.client` only: in `callsheet` it would be confused
with `callsheet.worker.Worker`.
"""

from callsheet.api.admin import (
    AuditEntry,
    Identity,
    Key,
    NewKey,
    Ops,
    Queue,
    StorageUsage,
    Tenant,
    TenantDetails,
    Token,
)
from callsheet.api.errors import Error
from callsheet.api.events import Event
from callsheet.api.explanation import Constraint, JobExplanation, ProgressEstimate, StartEstimate
from callsheet.api.files import DeleteSummary, File
from callsheet.api.jobs import DurationEstimate, Job, NewJob, Run
from callsheet.api.quotes import Quote
from callsheet.api.scaling import ScaleReport
from callsheet.api.stages_and_tasks import AddedTasks, Attempt, Output, Stage, Task
from callsheet.api.wallets import Balance, LedgerEntry, Wallet
from callsheet.api.workers import WorkerLease, WorkerToken
from callsheet.api.workflows import Workflow
from callsheet.client.clients import AsyncClient, Client
from callsheet.client.errors import APIConnectionError, CallsheetError, CorruptFileError, Problem
from callsheet.client.retry import RetryPolicy
from callsheet.client.submit_results import BulkResult, SubmittedJob
from callsheet.core.policy.autoscale import ScaleSignals

__all__: list[str] = [
    "APIConnectionError",
    "AddedTasks",
    "AsyncClient",
    "Attempt",
    "AuditEntry",
    "Balance",
    "BulkResult",
    "CallsheetError",
    "Client",
    "Constraint",
    "CorruptFileError",
    "DeleteSummary",
    "DurationEstimate",
    "Error",
    "Event",
    "File",
    "Identity",
    "Job",
    "JobExplanation",
    "Key",
    "LedgerEntry",
    "NewJob",
    "NewKey",
    "Ops",
    "Output",
    "Problem",
    "ProgressEstimate",
    "Queue",
    "Quote",
    "RetryPolicy",
    "Run",
    "ScaleReport",
    "ScaleSignals",
    "Stage",
    "StartEstimate",
    "StorageUsage",
    "SubmittedJob",
    "Task",
    "Tenant",
    "TenantDetails",
    "Token",
    "Wallet",
    "WorkerLease",
    "WorkerToken",
    "Workflow",
]  # fmt: skip
