"""Workers as an operator sees them."""

from typing import Annotated, Any

from msgspec import Struct

from callsheet.api.shared_fields import Example, SecretStruct, Time, doc

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
    kind: Annotated[str, doc("Kind of the task.", "draw")]
    attempt: Annotated[int, doc("Number of the attempt.", 1)]
    progress: Annotated[int, doc("Progress in percent, from 0 to 100.", 0)]
    started_at: Annotated[Time | None, doc("Time at which the task started.", Example.AT)]
    lease_expires_at: Annotated[
        Time | None, doc("Time at which the task is reassigned unless the worker sends a heartbeat.", Example.LATER)
    ]


class Worker(Struct, frozen=True):
    """A worker: what it may run, what it is running, and when it was last seen."""

    worker: Annotated[str, doc("Name of the worker.", "gpu-7")]
    status: Annotated[
        str,
        doc("`pending` (waits for an operator's approval), `approved`, `offline` (deregistered or timed out) or "
            "`revoked`. An `embedded` worker runs inside a server and is not registered.", "approved"),
    ]  # fmt: skip
    kinds: Annotated[list[str], doc("Kinds that it may claim: all that it offers, or those assigned to it.", _KINDS)]
    offered_kinds: Annotated[list[str], doc("Kinds that it has handlers for.", _KINDS)]
    concurrency: Annotated[int | None, doc("How many tasks it may run at the same time. Null if embedded.", 2)]
    draining: Annotated[bool, doc("Whether it finishes its tasks and gets no new ones.", False)]
    leases_total: Annotated[int, doc("Number of tasks that it is running.", 1)]
    leases: Annotated[list[WorkerLease], doc("Tasks that it is running, oldest first. Lists show the first ten.")]
    start_count: Annotated[int, doc("How often it has registered: once per start.", 1)]
    registered_at: Annotated[Time | None, doc("Time of its first registration.", Example.AT)]
    started_at: Annotated[Time | None, doc("Time of its last registration.", Example.AT)]
    last_seen_at: Annotated[Time | None, doc("Time of its last request, accurate to about 30 seconds.", Example.AT)]
    ended_at: Annotated[Time | None, doc("Time at which it deregistered, timed out or was revoked.", None)]
    labels: Annotated[dict[str, str] | None, doc("Labels for operators, such as a zone.", {"zone": "a"})]
    capabilities: Annotated[
        dict[str, Any] | None, doc("What the machine has, as the worker reports it.", {"gpu": "24 GB"})
    ]


class WorkerPage(Struct, frozen=True):
    """One page of workers, sorted by name."""

    workers: Annotated[list[Worker], doc("Workers of this page.")]
    next: Annotated[str | None, doc("Cursor of the next page. Null on the last page.", None)]


class WorkerBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to a worker. Fields that you leave out keep their value."""

    approved: Annotated[bool | None, doc("`true` approves the worker; `false` withdraws the approval.")] = None
    draining: Annotated[bool | None, doc("`true` drains the worker; `false` ends the draining.", True)] = None
    kinds: Annotated[
        list[str] | None, doc("Kinds to assign, out of those it offers. An empty list means all that it offers.")
    ] = None


class WorkerToken(SecretStruct, frozen=True):
    """A worker's new token. It is returned once; the previous token is no longer valid."""

    worker: Annotated[str, doc("Name of the worker.", "gpu-7")]
    token: Annotated[str, doc("Token of the worker. It is not shown again.", "csw_…")]
