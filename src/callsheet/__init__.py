"""Callsheet: the durable job backend for products that sell AI-made media."""

from typing import TYPE_CHECKING, Any

__all__ = [
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
    "SubmittedJob",
    "Task",
    "Tenant",
    "Token",
    "Wallet",
    "WorkerLease",
    "WorkerToken",
    "Workflow",
    "__version__",
]  # fmt: skip
"""What `callsheet.client` has, without its view of a `Worker`: who asks for that here wants `callsheet.worker`'s."""

if TYPE_CHECKING:
    from callsheet.client import (
        AddedTasks,
        APIConnectionError,
        AsyncClient,
        Attempt,
        AuditEntry,
        Balance,
        BulkResult,
        CallsheetError,
        Client,
        Constraint,
        CorruptFileError,
        DeleteSummary,
        DurationEstimate,
        Error,
        Event,
        File,
        Identity,
        Job,
        JobExplanation,
        Key,
        LedgerEntry,
        NewJob,
        NewKey,
        Ops,
        Output,
        Problem,
        ProgressEstimate,
        Queue,
        Quote,
        RetryPolicy,
        Run,
        ScaleReport,
        ScaleSignals,
        Stage,
        StartEstimate,
        SubmittedJob,
        Task,
        Tenant,
        Token,
        Wallet,
        WorkerLease,
        WorkerToken,
        Workflow,
    )

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        """Bring the client in when it is asked for: a server does without it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "__version__":
            return _version()
        from callsheet import client  # noqa: PLC0415 - when it is asked for

        return getattr(client, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    def _version() -> str:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - when it is asked for

        try:
            return version("callsheet")
        except PackageNotFoundError:  # packed into a program of somebody's, without what an installer writes down
            return "unknown"
