"""Commands of workers: claim, heartbeat, and the end of an attempt."""

from msgspec import Struct

from callsheet.core.model.commands.base import Command, Json, Lease


class Claim(Command, frozen=True, kw_only=True, gc=False):
    """Claim up to `count` tasks of these kinds. The engine generates the tokens before the command runs."""

    worker_id: str
    kinds: tuple[str, ...]
    count: int = 1
    lease_seconds: int | None = None
    tokens: tuple[str, ...] = ()
    token_hash: str | None = None
    """Hash of a registered worker's token. The claim checks its approval, kinds and concurrency."""
    held_task_ids: tuple[str, ...] | None = None
    """The tasks that the worker has. Other tasks leased to it were lost on the way and are requeued."""
    waited_seconds: float = 0.0
    """Age of `held_task_ids` in seconds. Leases that are younger are not requeued."""


class PreviousSubmission(Struct, frozen=True, gc=False):
    """The provider job that an earlier attempt of the task recorded."""

    provider: str
    """Name of the provider."""
    ref: str
    """Id of the job at the provider."""


class LeasedTask(Struct, frozen=True, gc=False):
    """A task that was leased to a worker."""

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
    """Extend a lease and report progress."""

    lease: Lease
    lease_seconds: int | None = None
    progress: int | None = None
    message: str | None = None
    preview: int = 0
    """Number of the newest preview picture; 0 for none."""
    log: tuple[str, ...] = ()
    """Lines that the handler wrote."""
    worker_id: str | None = None
    """The authenticated worker, if known. A lease is only valid for the worker that claimed it."""


class HeartbeatResult(Struct, frozen=True, gc=False):
    """The remaining seconds of the lease, and whether the worker should stop."""

    lease_seconds: float
    cancel: bool


class OutputFile(Struct, frozen=True, gc=False):
    """An output file of a task."""

    no: int
    """Number of the file among the task's outputs, from 1."""
    name: str
    """File name."""
    media_type: str
    """Media type, such as `image/png`."""
    bytes: int
    """Size in bytes."""
    sha256: str
    """SHA-256 of the content, as hex."""


class AnnounceOutputs(Command, frozen=True, kw_only=True, gc=False):
    """Announce the objects that a worker is about to upload for its task. They count towards the storage quotas."""

    lease: Lease
    files: tuple[OutputFile, ...] = ()
    preview_bytes: int = 0
    """Space for the preview picture; 0 for none."""
    worker_id: str | None = None


class Complete(Command, frozen=True, kw_only=True, gc=False):
    """Report a result. `delivered` is the percentage of the requested output that it contains."""

    lease: Lease
    output: Json = None
    delivered: int = 100
    files: tuple[OutputFile, ...] = ()
    worker_id: str | None = None


class Fail(Command, frozen=True, kw_only=True, gc=False):
    """Report that an attempt failed."""

    lease: Lease
    code: str = "task_failed"
    message: str = ""
    retryable: bool | None = None
    resume: bool = False
    """Whether the provider's job is still usable, so that the next attempt resumes it."""
    worker_id: str | None = None


class Requeue(Command, frozen=True, kw_only=True, gc=False):
    """Requeue a task without counting the attempt, for example because the machine shuts down."""

    lease: Lease
    reason: str
    cause: str = "requeued"
    """A short code such as `spot` or `shutdown`."""
    worker_id: str | None = None


class RecordSubmission(Command, frozen=True, kw_only=True, gc=False):
    """Record the provider's job id while the worker waits for it, so that the next attempt can resume it."""

    lease: Lease
    provider: str
    ref: str
    worker_id: str | None = None


class TaskState(Struct, frozen=True, gc=False):
    """The state of a task and its job; `skipped` says why a report had no effect."""

    job_id: str
    task_id: str
    status: str
    job_status: str
    skipped: str | None = None
    replay: bool = False
