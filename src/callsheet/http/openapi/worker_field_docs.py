"""What each field of the worker protocol means, with an example."""

from typing import Any

from callsheet.http.openapi.field_doc import AT, FILE_ID, JOB_ID, TASK_ID, FieldDoc

_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_LEASE = {"job_id": JOB_ID, "task_id": TASK_ID, "attempt": 1, "token": "the-secret-of-this-lease"}
_MADE = {"no": 1, "name": "sketch.png", "media_type": "image/png", "bytes": 48211, "sha256": _DIGEST}
_SIGNED = "/v1/blobs/bXkgcGxhY2UgaW4gdGhlIGZvbGRlcg"

WORKER_FIELD_DOCS: dict[str, FieldDoc] = {
    "comfyui": FieldDoc("A ComfyUI graph that workers of this kind run.", None),
    "NewFile.file": FieldDoc("The file's record; its bytes are awaited.", ...),
    "assets": FieldDoc("Fields of the graph that take a file, once it is uploaded there.", []),
    "Lease.attempt": FieldDoc("The try: the epoch of the lease.", 1),
    "WorkerLease.attempt": FieldDoc("The try.", 1),
    "approved": FieldDoc("Whether it may take work.", True),  # noqa: FBT003 - an example
    "heartbeats": FieldDoc("One for each lease.", ...),
    "cancel": FieldDoc("Whether to stop: a person canceled the job.", False),  # noqa: FBT003 - an example
    "capabilities": FieldDoc("What the machine has, as it says itself.", {"gpu": "24 GB"}),
    "concurrency": FieldDoc("Tasks that it can do at once.", 2),
    "Claim.count": FieldDoc("How many tasks at most.", 1),
    "delivered": FieldDoc("How much of what was asked for is in it, in percent; less is paid less.", 100),
    "drain": FieldDoc("Whether to finish what is in hand and go.", False),  # noqa: FBT003 - an example
    "draining": FieldDoc("Whether it is to finish what it held_task_ids and go.", False),  # noqa: FBT003 - an example
    "FileSlot.field": FieldDoc("The input of the node.", "image"),
    "FileSlot.file_id": FieldDoc("The file.", FILE_ID),
    "InputFile.get": FieldDoc("How to read it.", ...),
    "downloads": FieldDoc("Files to read, by id; in an answer, how to.", ...),
    "Files.downloads": FieldDoc("Files to read, by id.", [FILE_ID]),
    "TaskHeartbeat.downloads": FieldDoc("Files to read, by id, that need a fresh address.", []),
    "WorkersQuery.include_deregistered": FieldDoc("Also list deregistered workers.", False),  # noqa: FBT003 - an example
    "grants": FieldDoc("Fresh addresses, if some were asked for.", None),
    "graph": FieldDoc("A ComfyUI graph, in the API format.", {}),
    "Grant.url": FieldDoc(
        "Where to send it; one that begins with a slash is on this server. It takes no key.", _SIGNED
    ),
    "Grant.headers": FieldDoc("Headers to send, as they are.", {"content-type": "image/png"}),
    "job_status": FieldDoc("Where the job is.", "completed"),
    "kinds": FieldDoc("Kinds of work.", ["draw", "upscale"]),
    "Register.labels": FieldDoc("Words for operators, as a zone.", {"zone": "a"}),
    "Worker.labels": FieldDoc("Words for operators, as a zone.", {"zone": "a"}),
    "Worker.ended_at": FieldDoc("When it went, or was let in no longer.", None),
    "Worker.started_at": FieldDoc("When it last started.", AT),
    "Worker.status": FieldDoc("Whether it is let in.", "approved"),
    "TaskPayload.kind": FieldDoc("Which handler does the work.", "draw"),
    "TaskPayload.stage": FieldDoc("Name of the stage.", "draw"),
    "TaskPayload.workflow": FieldDoc("Name of the workflow.", "painting"),
    "WorkerLease.kind": FieldDoc("Which handler does the work.", "draw"),
    "WorkerLease.started_at": FieldDoc("When work on it began.", AT),
    "PreviousOutput.stage": FieldDoc("Name of the stage.", "script"),
    "ReportResult.status": FieldDoc("Where the task is.", "completed"),
    "Registration.heartbeat_seconds": FieldDoc("How often each lease is to be heard of.", 10.0),
    "Registration.wait_seconds_max": FieldDoc("The longest that a claim may wait.", 60.0),
    "Registration.token": FieldDoc("The worker's own token. It is shown this once.", "csw_…"),
    "WorkerToken.token": FieldDoc("The worker's own token. It is shown this once.", "csw_…"),
    "lease": FieldDoc("The right to work on a task: which, under which epoch, and the secret that proves it.", ...),
    "leases": FieldDoc("The tasks in its hand, those first that began first; in a list of workers ten at most.", ...),
    "Worker.leases_total": FieldDoc("How many tasks it has in hand.", 1),
    "log": FieldDoc("Lines that the handler wrote.", ["model loaded"]),
    "method": FieldDoc("The HTTP method.", "PUT"),
    "FileSlot.node": FieldDoc("The node's id.", "12"),
    "offered": FieldDoc("Kinds that it can do.", ["draw", "upscale"]),
    "output_node": FieldDoc("The node whose files are the output; without it every file is.", None),
    "TaskHeartbeat.preview": FieldDoc("The number of the newest preview; 0 is none.", 0),
    "Files.preview": FieldDoc("Whether to put a preview picture.", False),  # noqa: FBT003 - an example
    "FileGrants.preview": FieldDoc("How to put a preview picture.", None),
    "UploadGrant.put": FieldDoc("How to put it.", ...),
    "uploads": FieldDoc("Files that the task made; in an answer, how to put them.", ...),
    "TaskHeartbeat.uploads": FieldDoc("Files that the task made and that need a fresh address.", []),
    "ref": FieldDoc("How the other machine calls the work; shown to nobody but the next worker.", "a1b2c3"),
    "refused": FieldDoc("Why this one was refused.", None),
    "grants_error": FieldDoc(
        "Why there are no fresh addresses, though some were asked for; the lease is prolonged.", None
    ),
    "registered_at": FieldDoc("When it came for the first time.", AT),
    "requeued": FieldDoc("Tasks that were given back.", 1),
    "resumed": FieldDoc("What an earlier try left at somebody else's machine: look there first.", None),
    "retryable": FieldDoc("Whether another try makes sense; without it the workflow decides.", True),  # noqa: FBT003 - an example
    "last_seen_at": FieldDoc("When it was last heard of, to half a minute.", AT),
    "skipped": FieldDoc("Why the report had no effect.", None),
    "starts": FieldDoc("How often it has started.", 1),
    "wait_seconds": FieldDoc("How long to wait for work if there is none.", 0.0),
}

WORKER_EXAMPLES: dict[str, Any] = {
    "InputFile": {
        "id": FILE_ID, "name": "sketch.png", "media_type": "image/png", "bytes": 48211, "sha256": _DIGEST,
        "get": {"method": "GET", "url": _SIGNED, "headers": {}, "seconds": 900},
    },
    "Lease": _LEASE,
    "OutputFile": _MADE,
    "Register": {"worker": "gpu-7", "kinds": ["draw", "upscale"], "concurrency": 2},
    "Claim": {"count": 1, "wait_seconds": 0, "held_task_ids": []},
    "Heartbeat": {"heartbeats": [{"lease": _LEASE, "progress": 40, "message": "Drawing."}]},
    "Files": {"lease": _LEASE, "uploads": [_MADE]},
    "PreviousOutputsRequest": {"lease": _LEASE},
    "ProviderSubmission": {"lease": _LEASE, "provider": "comfy-cloud", "ref": "a1b2c3"},
    "Complete": {"lease": _LEASE, "output": {"seed": 7}},
    "Fail": {"lease": _LEASE, "code": "out_of_memory", "message": "The picture is too large.", "retryable": False},
    "Requeue": {"lease": _LEASE, "reason": "The machine is taken away.", "cause": "spot"},
    "Deregister": {"reason": "The night."},
    "WorkerBody": {"draining": True},
}  # fmt: skip
"""Examples of whole structs, where the parts alone would not make a sensible one."""
