"""The worker protocol: one struct per message between workers and the server, used on both sides.

Workers call the server; the server never opens a connection to a worker. No message names a tenant or an object key:
a worker receives the input of its task, and signed URLs that are valid for one file and one lease.
"""

from typing import Annotated, Any

from msgspec import Raw, Struct

from callsheet.api.base import Example, SecretStruct, doc
from callsheet.core.model.comfyui_graph import RenderedGraph
from callsheet.core.model.commands import Json, Lease, OutputFile, PreviousSubmission

_SIGNED = "/v1/blobs/bXkgcGxhY2UgaW4gdGhlIGZvbGRlcg"
_KINDS = ["draw", "upscale"]
_LEASE = {"job_id": Example.JOB_ID, "task_id": Example.TASK_ID, "attempt": 1, "token": "the-secret-of-this-lease"}
_OUTPUT = {"no": 1, "name": "sketch.png", "media_type": "image/png", "bytes": 48211, "sha256": Example.DIGEST}

LeaseField = Annotated[Lease, doc("Lease of the task, as the claim returned it.", _LEASE)]


class WorkerRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of a worker. Unknown fields are rejected."""


# -- registration


class Register(WorkerRequest, frozen=True):
    """Register a worker with the fleet key. The same name again means a restart: its leased tasks are requeued."""

    worker: Annotated[str, doc("Name of the worker, unique in the fleet.", "gpu-7")]
    kinds: Annotated[list[str], doc("Kinds of work that it can run.", _KINDS)]
    concurrency: Annotated[int, doc("How many tasks it runs at the same time.", 2)] = 1
    capabilities: Annotated[dict[str, Json] | None, doc("Hardware, as any JSON.")] = None
    labels: Annotated[dict[str, str] | None, doc("Labels for operators, for example a zone.")] = None


class Registration(SecretStruct, frozen=True):
    """The worker's token, which is returned once, and the timing that the server expects."""

    worker: Annotated[str, doc("Name of the worker.", "gpu-7")]
    token: Annotated[str, doc("Token of the worker. It is not shown again.", "csw_…")]
    kinds: Annotated[list[str], doc("Kinds that it may claim. An operator may allow fewer than it offers.", _KINDS)]
    approved: Annotated[bool, doc("Whether it may claim tasks.", True)]
    heartbeat_seconds: Annotated[float, doc("Send a heartbeat for every lease at least this often, in seconds.", 10.0)]
    wait_seconds_max: Annotated[float, doc("Longest wait of a claim, in seconds.", 60.0)]


class Deregister(WorkerRequest, frozen=True):
    """Deregister a worker. Its leased tasks are requeued."""

    reason: Annotated[str, doc("Reason, for the audit log.", "Nightly shutdown.")] = ""


class Deregistered(Struct, frozen=True):
    """Result of a deregistration."""

    requeued: Annotated[int, doc("Number of tasks that were requeued.", 1)]


# -- files


class Grant(Struct, frozen=True):
    """One request that the worker may send, for a limited time. A URL that starts with / is on this server."""

    method: Annotated[str, doc("HTTP method.", "PUT")]
    url: Annotated[str, doc("Signed URL. Send no key with it.", _SIGNED)]
    headers: Annotated[dict[str, str], doc("Headers to send exactly as given.", {"content-type": "image/png"})]
    expires_in_seconds: Annotated[int, doc("How long the URL is valid, in seconds.", 900)]


_DOWNLOAD = {"method": "GET", "url": _SIGNED, "headers": {}, "expires_in_seconds": 900}


class InputFile(Struct, frozen=True):
    """A file to download: from the task's input, or the output of a previous stage."""

    id: Annotated[str, doc("Id of the file.", Example.FILE_ID)]
    name: Annotated[str, doc("File name.", "sketch.png")]
    media_type: Annotated[str, doc("Media type.", "image/png")]
    bytes: Annotated[int, doc("Size in bytes.", 48211)]
    sha256: Annotated[str, doc("SHA-256 of the content, as hex.", Example.DIGEST)]
    download: Annotated[Grant, doc("How to download the content.", _DOWNLOAD)]


class UploadGrant(Struct, frozen=True):
    """How to upload one output file."""

    no: Annotated[int, doc("Number of the output file.", 1)]
    upload: Annotated[Grant, doc("How to upload the content.")]


class FileGrantsRequest(WorkerRequest, frozen=True):
    """Request signed URLs: to download files of the task, to upload outputs, or to upload a preview."""

    lease: LeaseField
    downloads: Annotated[list[str], doc("Ids of files to download.")] = []
    uploads: Annotated[list[OutputFile], doc("Output files to upload.", [_OUTPUT])] = []
    preview: Annotated[bool, doc("Whether to return a URL for a preview image.")] = False


class FileGrants(Struct, frozen=True):
    """Signed URLs."""

    downloads: Annotated[list[InputFile], doc("Files to download.")] = []
    uploads: Annotated[list[UploadGrant], doc("Where to upload the outputs.")] = []
    preview: Annotated[Grant | None, doc("Where to upload a preview image.", None)] = None


# -- claims


class Claim(WorkerRequest, frozen=True):
    """Claim up to `count` tasks. If there are none, wait for one."""

    count: Annotated[int, doc("Maximum number of tasks.", 1)] = 1
    kinds: Annotated[list[str] | None, doc("Claim only these kinds. Default: all kinds that the worker may claim.")] = (
        None
    )
    wait_seconds: Annotated[float, doc("How long to wait for a task, in seconds.", 0)] = 0.0
    held_task_ids: Annotated[
        list[str] | None,
        doc("Ids of the tasks that the worker is running. The server requeues other tasks that are leased to it, "
            "because their claim response was lost.", []),
    ] = None  # fmt: skip


class TaskPayload(Struct, frozen=True):
    """A claimed task with everything that the worker needs."""

    lease: LeaseField
    kind: Annotated[str, doc("Kind of work: selects the handler.", "draw")]
    workflow: Annotated[str, doc("Name of the workflow.", "painting")]
    stage: Annotated[str, doc("Name of the stage.", "draw")]
    stage_no: Annotated[int, doc("Number of the stage.", 1)]
    task_no: Annotated[int, doc("Number of the task in its stage.", 1)]
    lease_seconds: Annotated[int, doc("Length of the lease, in seconds. Heartbeats extend it.", 900)]
    input: Annotated[Raw, doc("Input of the task, as JSON.", Example.INPUT)]
    files: Annotated[list[InputFile], doc("Files that the input refers to.")]
    comfyui: Annotated[RenderedGraph | None, doc("ComfyUI graph with its values filled in.", None)] = None
    resumed: Annotated[
        PreviousSubmission | None,
        doc("Provider job that a previous attempt submitted. Continue with it instead of submitting again.", None),
    ] = None
    trace: Annotated[dict[str, str] | None, doc("W3C trace context.", None)] = None


class ClaimResult(Struct, frozen=True):
    """Result of a claim."""

    tasks: Annotated[list[TaskPayload], doc("Claimed tasks. May be empty.")]
    drain: Annotated[bool, doc("Whether the worker should finish its tasks and stop.", False)]


class PreviousOutput(Struct, frozen=True):
    """Output of a completed task of a previous stage of the same job."""

    stage: Annotated[str, doc("Name of the stage.", "script")]
    stage_no: Annotated[int, doc("Number of the stage.", 1)]
    task_no: Annotated[int, doc("Number of the task in its stage.", 1)]
    output: Annotated[Any, doc("JSON that the task returned.", {"width": 512, "height": 512})]
    files: Annotated[list[InputFile], doc("Files that the task produced.")]


class TaskCursor(Struct, frozen=True):
    """Position in a list of tasks: the last task that was returned."""

    stage_no: Annotated[int, doc("Number of its stage.", 1)]
    task_no: Annotated[int, doc("Number of the task.", 1)]


class PreviousOutputsRequest(WorkerRequest, frozen=True):
    """List the outputs of previous stages."""

    lease: LeaseField
    cursor: Annotated[TaskCursor | None, doc("`next` of the previous page.")] = None


class PreviousOutputs(Struct, frozen=True):
    """One page of outputs of previous stages."""

    tasks: Annotated[list[PreviousOutput], doc("Completed tasks, ordered by stage and number.")]
    next: Annotated[TaskCursor | None, doc("Cursor of the next page. Null on the last page.", None)] = None


# -- heartbeats


class TaskHeartbeat(WorkerRequest, frozen=True):
    """Extend one lease and report progress."""

    lease: LeaseField
    lease_seconds: Annotated[int | None, doc("New length of the lease, in seconds. Default: that of the workflow.")] = (
        None
    )
    progress: Annotated[int | None, doc("Progress in percent.", 40)] = None
    message: Annotated[str | None, doc("Progress message.", "Drawing.")] = None
    log: Annotated[list[str], doc("Log lines of the handler.")] = []
    preview: Annotated[int, doc("Number of the newest preview image. 0 means none.")] = 0
    downloads: Annotated[list[str], doc("Ids of files that need new signed URLs.")] = []
    uploads: Annotated[list[OutputFile], doc("Output files that need new signed URLs.")] = []


class Heartbeat(WorkerRequest, frozen=True):
    """Extend several leases in one request."""

    heartbeats: Annotated[list[TaskHeartbeat], doc("One heartbeat per lease.")]


class RefusalInfo(Struct, frozen=True):
    """Why one of several items was refused."""

    code: Annotated[str, doc("Stable error code.", "lease_lost")]
    message: Annotated[str, doc("Explanation for a person.", "The lease has ended.")]


class HeartbeatResult(Struct, frozen=True):
    """Result for one lease."""

    task_id: Annotated[str, doc("Id of the task.", Example.TASK_ID)]
    lease_seconds: Annotated[float, doc("Remaining time of the lease, in seconds.", 900.0)] = 0.0
    cancel: Annotated[bool, doc("Whether to stop, because the job was canceled.", False)] = False
    error: Annotated[RefusalInfo | None, doc("Why the heartbeat was refused.", None)] = None
    grants: Annotated[FileGrants | None, doc("New signed URLs, if they were requested.", None)] = None
    grants_error: Annotated[
        RefusalInfo | None, doc("Why there are no new signed URLs. The lease is extended anyway.", None)
    ] = None


class HeartbeatResponse(Struct, frozen=True):
    """Results of a heartbeat."""

    results: Annotated[list[HeartbeatResult], doc("One result per heartbeat, in the order of the request.")]
    drain: Annotated[bool, doc("Whether the worker should finish its tasks and stop.", False)]


class ProviderSubmission(WorkerRequest, frozen=True):
    """Record a provider's job id before you submit the work to the provider."""

    lease: LeaseField
    provider: Annotated[str, doc("Name of the provider.", "comfy-cloud")]
    ref: Annotated[str, doc("Id of the job at the provider. The next attempt receives it.", "a1b2c3")]


# -- the end of an attempt


class Complete(WorkerRequest, frozen=True):
    """Complete a task. Upload its files first."""

    lease: LeaseField
    output: Annotated[Json, doc("Output as JSON.", {"seed": 7})] = None
    files: Annotated[list[OutputFile], doc("Files that were uploaded.")] = []
    delivered_percent: Annotated[int, doc("How much of the requested work was done, in percent. Less costs less.")] = (
        100
    )


class Fail(WorkerRequest, frozen=True):
    """Report that an attempt failed."""

    lease: LeaseField
    code: Annotated[str, doc("Error code of your choice.", "out_of_memory")] = "task_failed"
    message: Annotated[str, doc("Explanation for a person.", "The picture is too large.")] = ""
    retryable: Annotated[
        bool | None, doc("Whether another attempt may succeed. Default: the workflow decides.", False)
    ] = None
    resume: Annotated[bool, doc("Whether the next attempt should continue with the recorded provider job.")] = False


class Requeue(WorkerRequest, frozen=True):
    """Return a task to the queue without using up an attempt, for example because the machine shuts down."""

    lease: LeaseField
    reason: Annotated[str, doc("Explanation for a person.", "The machine shuts down.")]
    cause: Annotated[str, doc("Cause in one word: `spot`, `shutdown`, or another.", "spot")] = "requeued"


class ReportResult(Struct, frozen=True):
    """Status of the task and its job after a report."""

    task_id: Annotated[str, doc("Id of the task.", Example.TASK_ID)]
    status: Annotated[str, doc("Status of the task.", "completed")]
    job_status: Annotated[str, doc("Status of the job.", "completed")]
    skipped: Annotated[str | None, doc("Why the report had no effect.", None)] = None
    replay: Annotated[bool, doc("Whether the same report was received before.", False)] = False
