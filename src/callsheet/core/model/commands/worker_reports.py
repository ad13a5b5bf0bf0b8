"""What workers say: claim, heartbeat, and how a try ended."""

from msgspec import Struct

from callsheet.core.model.commands.base import Command, Json, Lease


class Claim(Command, frozen=True, kw_only=True, gc=False):
    """Take up to `count` tasks of these kinds; the tokens are made by the engine beforehand."""

    worker_id: str
    kinds: tuple[str, ...]
    count: int = 1
    lease_seconds: int | None = None
    tokens: tuple[str, ...] = ()
    session: str | None = None
    """The hash of the token of a worker that came over HTTP: it must be let in, and takes what it may and can."""
    held_task_ids: tuple[str, ...] | None = None
    """The tasks that the worker knows it has; others that it was given went astray, and are given back."""
    waited_seconds: float = 0.0
    """How long ago it said so: what it was given since then, elsewhere, it could not know."""


class PreviousSubmission(Struct, frozen=True, gc=False):
    """What an earlier try of the task handed to somebody else's machine."""

    provider: str
    """Name of the provider."""
    ref: str
    """Id of the job at the provider."""


class LeasedTask(Struct, frozen=True, gc=False):
    """A task in hand."""

    lease: Lease
    tenant: str
    workflow: str
    kind: str
    stage: str
    stage_no: int
    task_no: int
    lease_seconds: int
    input: str
    """JSON text: the task's own input, else the job's."""
    trace: str | None = None
    workflow_version: int = 0
    resumed: PreviousSubmission | None = None


class Heartbeat(Command, frozen=True, kw_only=True, gc=False):
    """Prolong a lease, and say how far the work is."""

    lease: Lease
    lease_seconds: int | None = None
    progress: int | None = None
    message: str | None = None
    preview: int = 0
    """The number of the newest preview picture; 0 is none."""
    log: tuple[str, ...] = ()
    """Lines that the handler wrote."""
    worker_id: str | None = None
    """Who says so, where the edge knows: a lease is good for the worker that took it, and no other."""


class HeartbeatResult(Struct, frozen=True, gc=False):
    """How long the lease lasts from now, and whether to stop."""

    lease_seconds: float
    cancel: bool


class OutputFile(Struct, frozen=True, gc=False):
    """A file that a task made; its bytes lie where the lease's epoch says."""

    no: int
    """Number of the file among the task's outputs, from 1."""
    name: str
    """File name."""
    media_type: str
    """Media type."""
    bytes: int
    """Size in bytes."""
    sha256: str
    """SHA-256 of the content, as hex."""


class Complete(Command, frozen=True, kw_only=True, gc=False):
    """Hand in a result; `delivered` percent of it is what the user asked for."""

    lease: Lease
    output: Json = None
    delivered: int = 100
    files: tuple[OutputFile, ...] = ()
    worker_id: str | None = None


class Fail(Command, frozen=True, kw_only=True, gc=False):
    """Report that a try went wrong."""

    lease: Lease
    code: str = "task_failed"
    message: str = ""
    retryable: bool | None = None
    resume: bool = False
    """What it handed to somebody else's machine is still good: the next try goes on with it."""
    worker_id: str | None = None


class Requeue(Command, frozen=True, kw_only=True, gc=False):
    """Give a task back without using up a try: the machine goes away, the work is sound."""

    lease: Lease
    reason: str
    cause: str = "requeued"
    """In a word: `spot`, `shutdown`, or another."""
    worker_id: str | None = None


class RecordSubmission(Command, frozen=True, kw_only=True, gc=False):
    """Write down where the work is while the worker waits for it: the next try looks there first."""

    lease: Lease
    provider: str
    ref: str
    worker_id: str | None = None


class TaskState(Struct, frozen=True, gc=False):
    """Where a task and its job are; `skipped` says why the report had no effect."""

    job_id: str
    task_id: str
    status: str
    job_status: str
    skipped: str | None = None
    replay: bool = False
