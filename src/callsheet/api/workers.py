"""Workers as an operator sees them."""

from typing import Annotated, Any

from msgspec import Struct

from callsheet.api.base import Example, SecretStruct, Time, doc

_KINDS = ["draw", "upscale"]


class WorkersQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Filter and pagination of a list of workers."""

    cursor: Annotated[str, doc("`next` of the previous page.", "gpu-7")] = ""
    limit: Annotated[int, doc("Maximum number of workers to return.", 50)] = 100
    include_deregistered: Annotated[
        bool, doc("Include workers that deregistered, timed out or were revoked.", False)
    ] = False


class WorkerLease(Struct, frozen=True):
    """A task that a worker is running."""

    job_id: Annotated[str, doc("Id of the job.", Example.JOB_ID)]
    task_id: Annotated[str, doc("Id of the task.", Example.TASK_ID)]
    kind: Annotated[str, doc("Kind of work.", "draw")]
    attempt: Annotated[int, doc("Number of the attempt.", 1)]
    progress: Annotated[int, doc("Progress in percent.", 0)]
    started_at: Annotated[Time | None, doc("Time at which the task started.", Example.AT)]
    lease_expires_at: Annotated[
        Time | None, doc("Time at which the task is reassigned unless the worker sends a heartbeat.", Example.LATER)
    ]


class Worker(Struct, frozen=True):
    """A worker: what it may run, what it is running, and when it was last seen."""

    worker: Annotated[str, doc("Name of the worker.", "gpu-7")]
    status: Annotated[
        str,
        doc("`pending`, `approved`, `revoked` or `offline`. An `embedded` worker runs inside a server, unregistered.",
            "approved"),
    ]  # fmt: skip
    kinds: Annotated[list[str], doc("Kinds of work that it may claim.", _KINDS)]
    offered_kinds: Annotated[list[str], doc("Kinds of work that it can run.", _KINDS)]
    concurrency: Annotated[int | None, doc("How many tasks it runs at the same time.", 2)]
    draining: Annotated[bool, doc("Whether it finishes its tasks and claims no more.", False)]
    leases_total: Annotated[int, doc("Number of tasks that it is running.", 1)]
    leases: Annotated[list[WorkerLease], doc("Tasks that it is running, oldest first. Lists of workers show ten.")]
    start_count: Annotated[int, doc("How often it has started.", 1)]
    registered_at: Annotated[Time | None, doc("Time of its first registration.", Example.AT)]
    started_at: Annotated[Time | None, doc("Time of its last start.", Example.AT)]
    last_seen_at: Annotated[Time | None, doc("Time of its last request, accurate to 30 seconds.", Example.AT)]
    ended_at: Annotated[Time | None, doc("Time at which it deregistered, timed out or was revoked.", None)]
    labels: Annotated[dict[str, str] | None, doc("Labels for operators, for example a zone.", {"zone": "a"})]
    capabilities: Annotated[dict[str, Any] | None, doc("Hardware, as the worker reports it.", {"gpu": "24 GB"})]


class WorkerPage(Struct, frozen=True):
    """One page of workers, sorted by name."""

    workers: Annotated[list[Worker], doc("Workers of this page.")]
    next: Annotated[str | None, doc("Cursor of the next page. Null on the last page.", None)]


class WorkerBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to a worker. Fields that you leave out keep their value."""

    approved: Annotated[bool | None, doc("Whether it may claim tasks.")] = None
    draining: Annotated[bool | None, doc("Whether it should finish its tasks and claim no more.", True)] = None
    kinds: Annotated[
        list[str] | None, doc("Kinds that it may claim, out of those it offers. An empty list means all of them.")
    ] = None


class WorkerToken(SecretStruct, frozen=True):
    """A worker's new token. It is returned once; the previous token is no longer valid."""

    worker: Annotated[str, doc("Name of the worker.", "gpu-7")]
    token: Annotated[str, doc("Token of the worker. It is not shown again.", "csw_…")]
