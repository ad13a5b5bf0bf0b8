"""What workers and the house say to each other over HTTP: one struct per message, the same on both sides.

Workers only ever call; the house never opens a connection to one. Nothing here names a tenant or an object key:
a worker downloads the input of its task, and addresses that are good for one file and one lease.
"""

from typing import Any

from msgspec import Raw, Struct

from callsheet.core.model.commands import Json, Lease, OutputFile, PreviousSubmission
from callsheet.core.model.graph_spec import RenderedGraph


class WorkerRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker says; a field that nobody knows is refused."""


# -- coming and going


class Register(WorkerRequest, frozen=True):
    """Come to work, under the fleet's secret. The same name again is a restart: what it held is given back."""

    worker: str
    kinds: list[str]
    concurrency: int = 1
    capabilities: dict[str, Json] | None = None
    labels: dict[str, str] | None = None


class Registration(Struct, frozen=True):
    """The worker's own token, shown once, and the pace of the house."""

    worker: str
    token: str
    kinds: list[str]
    """What it may take; an operator may have assigned less than it offers."""
    approved: bool
    heartbeat_seconds: float
    """Every lease is to be heard of at least this often."""
    wait_seconds_max: float
    """The longest that a claim may wait."""


class Deregister(WorkerRequest, frozen=True):
    """Go away: what is still in hand is given back."""

    reason: str = ""


class Deregistered(Struct, frozen=True):
    """How many tasks were given back."""

    requeued: int


# -- files


class Grant(Struct, frozen=True):
    """Leave to send one request, for a while. An address that begins with / is the house's own."""

    method: str
    url: str
    headers: dict[str, str]
    expires_in_seconds: int


class InputFile(Struct, frozen=True):
    """A file to read: one of the task's input, or of an earlier stage."""

    id: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    get: Grant


class UploadGrant(Struct, frozen=True):
    """Leave to put one file that the task made."""

    no: int
    put: Grant


class FileGrantsRequest(WorkerRequest, frozen=True):
    """Ask for addresses: to read files of the task, to put what it made, to put a preview."""

    lease: Lease
    downloads: list[str] = []
    uploads: list[OutputFile] = []
    preview: bool = False


class FileGrants(Struct, frozen=True):
    """The addresses."""

    downloads: list[InputFile] = []
    uploads: list[UploadGrant] = []
    preview: Grant | None = None


# -- work


class Claim(WorkerRequest, frozen=True):
    """Take up to `count` tasks, of these kinds or of all that are assigned; wait for some if there are none."""

    count: int = 1
    kinds: list[str] | None = None
    wait_seconds: float = 0.0
    held_task_ids: list[str] | None = None
    """The tasks in hand, by id. What the house leased to this worker besides, it never heard of: that is given back."""


class TaskPayload(Struct, frozen=True):
    """A task in hand."""

    lease: Lease
    kind: str
    workflow: str
    stage: str
    stage_no: int
    task_no: int
    lease_seconds: int
    input: Raw
    files: list[InputFile]
    """The files that the input refers to."""
    comfyui: RenderedGraph | None = None
    """A ComfyUI graph with everything filled in but its files."""
    resumed: PreviousSubmission | None = None
    trace: dict[str, str] | None = None


class ClaimResult(Struct, frozen=True):
    """Tasks, or none; `drain` asks the worker to finish what it holds and go."""

    tasks: list[TaskPayload]
    drain: bool


class PreviousOutput(Struct, frozen=True):
    """What a completed task of an earlier stage of the same job made."""

    stage: str
    stage_no: int
    task_no: int
    output: Any
    files: list[InputFile]


class TaskCursor(Struct, frozen=True):
    """The last task that was told of: what comes behind it is not told yet."""

    stage_no: int
    task_no: int


class PreviousOutputsRequest(WorkerRequest, frozen=True):
    """Ask what earlier stages made; behind a task, if some was told before."""

    lease: Lease
    after: TaskCursor | None = None


class PreviousOutputs(Struct, frozen=True):
    """Completed tasks of earlier stages, in order, and where to go on."""

    tasks: list[PreviousOutput]
    next: TaskCursor | None = None


# -- while it runs


class TaskHeartbeat(WorkerRequest, frozen=True):
    """Prolong one lease, and say how far the work is."""

    lease: Lease
    lease_seconds: int | None = None
    progress: int | None = None
    message: str | None = None
    log: list[str] = []
    preview: int = 0
    downloads: list[str] = []
    uploads: list[OutputFile] = []


class Heartbeat(WorkerRequest, frozen=True):
    """Prolong several leases in one call."""

    heartbeats: list[TaskHeartbeat]


class RefusalInfo(Struct, frozen=True):
    """Why one of several was refused."""

    code: str
    message: str


class HeartbeatResult(Struct, frozen=True):
    """The answer for one lease, in the order of the question: how long it lasts, whether to stop, fresh addresses."""

    task_id: str
    lease_seconds: float = 0.0
    cancel: bool = False
    error: RefusalInfo | None = None
    grants: FileGrants | None = None
    grants_error: RefusalInfo | None = None
    """Why there are no fresh addresses, if some were asked for; the lease is prolonged all the same."""


class HeartbeatResponse(Struct, frozen=True):
    """The answers, and whether the worker is to finish what it holds and go."""

    heartbeats: list[HeartbeatResult]
    drain: bool


class ProviderSubmission(WorkerRequest, frozen=True):
    """Write down that the work is at somebody else's machine, under this reference; sent before it is."""

    lease: Lease
    provider: str
    ref: str


# -- the end of a try


class Complete(WorkerRequest, frozen=True):
    """Hand in a result; its files have been put."""

    lease: Lease
    output: Json = None
    files: list[OutputFile] = []
    delivered: int = 100


class Fail(WorkerRequest, frozen=True):
    """Report that a try went wrong; `code` is its class."""

    lease: Lease
    code: str = "task_failed"
    message: str = ""
    retryable: bool | None = None
    resume: bool = False
    """What was submitted is still good: the next try is told where it lies and goes on with it."""


class Requeue(WorkerRequest, frozen=True):
    """Give a task back without using up a try: the machine goes away, the work is sound."""

    lease: Lease
    reason: str
    cause: str = "requeued"
    """In a word: `spot` for a machine that is taken away, `shutdown`, or another."""


class ReportResult(Struct, frozen=True):
    """Where the task and its job are now; `skipped` says why the report had no effect."""

    task_id: str
    status: str
    job_status: str
    skipped: str | None = None
    replay: bool = False
