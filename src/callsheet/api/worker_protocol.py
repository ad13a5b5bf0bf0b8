"""The worker protocol: one struct per message between workers and the server, used on both sides.

Workers call the server; the server never opens a connection to a worker. No message names a tenant or an object key:
a worker receives the input of its task, and signed URLs that are valid for one file and one lease.
"""

from typing import Annotated, Any

from msgspec import Raw, Struct

from callsheet.api.shared_fields import Example, SecretStruct, doc
from callsheet.core.model.comfyui_graph import RenderedGraph
from callsheet.core.model.commands import Json, Lease, OutputFile, PreviousSubmission

_SIGNED = "/v1/blobs/bXkgcGxhY2UgaW4gdGhlIGZvbGRlcg"
_KINDS = ["draw", "upscale"]
_LEASE = {"job_id": Example.JOB_ID, "task_id": Example.TASK_ID, "attempt": 1, "token": "the-secret-of-this-lease"}
_OUTPUT = {"no": 1, "name": "sketch.png", "media_type": "image/png", "bytes": 48211, "sha256": Example.DIGEST}

LeaseField = Annotated[Lease, doc("Lease of the task. Send it with every request about the task.", _LEASE)]


class WorkerRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of a worker. Unknown fields are rejected."""


# -- registration


class Register(WorkerRequest, frozen=True):
    """Register a worker with the fleet secret. The same name again means a restart: its leased tasks are requeued.

    A worker whose token was replaced registers again with the tasks that it is running, and keeps their leases.
    """

    worker: Annotated[str, doc("Name of the worker, unique in the fleet.", "gpu-7")]
    kinds: Annotated[list[str], doc("Kinds that it has handlers for.", _KINDS)]
    concurrency: Annotated[int, doc("How many tasks it may run at the same time.", 2)] = 1
    capabilities: Annotated[dict[str, Json] | None, doc("What the machine has, such as its GPU, as any JSON.")] = None
    labels: Annotated[dict[str, str] | None, doc("Labels for operators, such as a zone.")] = None
    held_task_ids: Annotated[list[str], doc("Ids of leased tasks that it is running. They keep their leases.", [])] = []


class Registration(SecretStruct, frozen=True):
    """The worker's token, which is returned only here, and the timing that the server expects."""

    worker: Annotated[str, doc("Name of the worker.", "gpu-7")]
    token: Annotated[str, doc("Send this as `Authorization: Bearer …` in all later requests.", "csw_…")]
    kinds: Annotated[list[str], doc("Kinds that it may claim. An operator may allow fewer than it offers.", _KINDS)]
    approved: Annotated[bool, doc("Whether it may claim tasks. If not, an operator must approve it first.", True)]
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
    """A signed URL, with the method and headers to use. A URL that starts with a slash is on this server."""

    method: Annotated[str, doc("HTTP method.", "PUT")]
    url: Annotated[str, doc("Signed URL. Send no key with it.", _SIGNED)]
    headers: Annotated[dict[str, str], doc("Headers to send exactly as given.", {"content-type": "image/png"})]
    expires_in_seconds: Annotated[int, doc("How long the URL is valid, in seconds.", 900)]


_DOWNLOAD = {"method": "GET", "url": _SIGNED, "headers": {}, "expires_in_seconds": 900}


class InputFile(Struct, frozen=True):
    """A file to download: from the task's input, or the output of a previous stage."""

    id: Annotated[str, doc("Id of the file.", Example.FILE_ID)]
    name: Annotated[str, doc("File name.", "sketch.png")]
    media_type: Annotated[str, doc("Media type, such as `image/png`.", "image/png")]
    bytes: Annotated[int, doc("Size in bytes.", 48211)]
    sha256: Annotated[str, doc("SHA-256 of the content, as hex.", Example.DIGEST)]
    download: Annotated[Grant, doc("How to download the content.", _DOWNLOAD)]


class UploadGrant(Struct, frozen=True):
    """How to upload one output file."""

    no: Annotated[int, doc("`no` of the output file.", 1)]
    upload: Annotated[Grant, doc("How to upload the content.")]


class FileGrantsRequest(WorkerRequest, frozen=True):
    """Request signed URLs: to download files of the task, to upload outputs, or to upload a preview."""

    lease: LeaseField
    downloads: Annotated[list[str], doc("Ids of files to download.")] = []
    uploads: Annotated[list[OutputFile], doc("Output files to upload.", [_OUTPUT])] = []
    preview: Annotated[bool, doc("Whether to return a URL for a preview image.")] = False


class FileGrants(Struct, frozen=True):
    """Signed URLs for files of a task."""

    downloads: Annotated[list[InputFile], doc("Files to download, each with its URL.")] = []
    uploads: Annotated[list[UploadGrant], doc("URLs to upload the output files to.")] = []
    preview: Annotated[Grant | None, doc("URL to upload a preview image to, if requested.", None)] = None


# -- claims


class Claim(WorkerRequest, frozen=True):
    """Claim up to `count` tasks. If none is available, the server waits for one."""

    count: Annotated[int, doc("Maximum number of tasks.", 1)] = 1
    kinds: Annotated[list[str] | None, doc("Claim only these kinds. Default: all kinds that the worker may claim.")] = (
        None
    )
    wait_seconds: Annotated[float, doc("How long to wait for a task, in seconds.", 0)] = 0.0
    held_task_ids: Annotated[
        list[str] | None,
        doc("Ids of the tasks that the worker is running. The server requeues other tasks that are leased to it: the "
            "response to their claim was lost. Default: requeue none.", []),
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
    input: Annotated[Raw, doc("Input of the task, or of the job if the task has none.", Example.INPUT)]
    files: Annotated[list[InputFile], doc("Files that the input refers to.")]
    comfyui: Annotated[RenderedGraph | None, doc("ComfyUI graph of the stage, with its values.", None)] = None
    resumed: Annotated[
        PreviousSubmission | None,
        doc("Provider job that an earlier attempt recorded. Look it up before you submit again.", None),
    ] = None
    trace: Annotated[dict[str, str] | None, doc("W3C trace context of the job, if it has one.", None)] = None


class ClaimResult(Struct, frozen=True):
    """Result of a claim."""

    tasks: Annotated[list[TaskPayload], doc("Claimed tasks. May be empty.")]
    drain: Annotated[bool, doc("Whether the worker should finish its tasks and exit.", False)]


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

    tasks: Annotated[list[PreviousOutput], doc("Outputs of completed tasks, ordered by stage and number.")]
    next: Annotated[TaskCursor | None, doc("Cursor of the next page. Null on the last page.", None)] = None


# -- heartbeats


class TaskHeartbeat(WorkerRequest, frozen=True):
    """Extend one lease and report progress."""

    lease: LeaseField
    lease_seconds: Annotated[int | None, doc("New length of the lease, in seconds. Default: that of the workflow.")] = (
        None
    )
    progress: Annotated[int | None, doc("Progress in percent, from 0 to 100.", 40)] = None
    message: Annotated[str | None, doc("Progress message, which users can see.", "Drawing.")] = None
    log: Annotated[list[str], doc("Log lines of the handler, at most `log_lines_max`.")] = []
    preview: Annotated[int, doc("Number of the newest uploaded preview, counted from 1. 0 means none.")] = 0
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
    cancel: Annotated[bool, doc("Whether to stop the task, because its job is being canceled.", False)] = False
    error: Annotated[
        RefusalInfo | None, doc("Why the heartbeat was refused. Null if the lease was extended.", None)
    ] = None
    grants: Annotated[FileGrants | None, doc("New signed URLs, if they were requested.", None)] = None
    grants_error: Annotated[
        RefusalInfo | None, doc("Why new signed URLs could not be created. The lease is extended anyway.", None)
    ] = None


class HeartbeatResponse(Struct, frozen=True):
    """Results of a heartbeat."""

    results: Annotated[list[HeartbeatResult], doc("One result per heartbeat, in the order of the request.")]
    drain: Annotated[bool, doc("Whether the worker should finish its tasks and exit.", False)]


class ProviderSubmission(WorkerRequest, frozen=True):
    """Record a provider's job id before you submit the work to the provider."""

    lease: LeaseField
    provider: Annotated[str, doc("Name of the provider.", "comfy-cloud")]
    ref: Annotated[str, doc("Id of the job at the provider. If this attempt is lost, the next one gets it.", "a1b2c3")]


# -- the end of an attempt


class Complete(WorkerRequest, frozen=True):
    """Complete a task. Upload its files first."""

    lease: LeaseField
    output: Annotated[Json, doc("Output of the task, as any JSON.", {"seed": 7})] = None
    files: Annotated[list[OutputFile], doc("Output files that were uploaded.")] = []
    delivered_percent: Annotated[
        int, doc("How much of the requested work the output contains, from 1 to 100. The user pays this share.")
    ] = 100


class Fail(WorkerRequest, frozen=True):
    """Report that an attempt failed."""

    lease: LeaseField
    code: Annotated[str, doc("Error code of your choice.", "out_of_memory")] = "task_failed"
    message: Annotated[str, doc("Explanation that users can see.", "The picture is too large.")] = ""
    retryable: Annotated[
        bool | None,
        doc("Whether another attempt may succeed. Default: unknown, which is retried if the workflow's `retry.on` is "
            "`any`.", False),
    ] = None  # fmt: skip
    resume: Annotated[bool, doc("Whether the next attempt should get the recorded provider job in `resumed`.")] = False


class Requeue(WorkerRequest, frozen=True):
    """Return a task to the queue without using up an attempt, for example because the machine shuts down."""

    lease: LeaseField
    reason: Annotated[str, doc("Explanation for a person.", "The machine shuts down.")]
    cause: Annotated[str, doc("Cause in one word, such as `spot` or `shutdown`.", "spot")] = "requeued"


class ReportResult(Struct, frozen=True):
    """Status of the task and its job after a report."""

    task_id: Annotated[str, doc("Id of the task.", Example.TASK_ID)]
    status: Annotated[str, doc("Status of the task now.", "completed")]
    job_status: Annotated[str, doc("Status of the job now.", "completed")]
    skipped: Annotated[str | None, doc("Why the report had no effect. Null if it had.", None)] = None
    replay: Annotated[bool, doc("Whether the same report was received before.", False)] = False
