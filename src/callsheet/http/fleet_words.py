"""What each field of the worker protocol means, with an example."""

from typing import Any

from callsheet.http.word import AT, FILE_ID, JOB_ID, TASK_ID, Word

_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_LEASE = {"job_id": JOB_ID, "task_id": TASK_ID, "attempt": 1, "token": "the-secret-of-this-lease"}
_MADE = {"no": 1, "name": "sketch.png", "media_type": "image/png", "bytes": 48211, "sha256": _DIGEST}
_SIGNED = "/v1/blobs/bXkgcGxhY2UgaW4gdGhlIGZvbGRlcg"

FLEET_WORDS: dict[str, Word] = {
    "comfyui": Word("A ComfyUI graph that workers of this kind run.", None),
    "NewFile.file": Word("The file's record; its bytes are awaited.", ...),
    "assets": Word("Fields of the graph that take a file, once it is uploaded there.", []),
    "Lease.attempt": Word("The try: the epoch of the lease.", 1),
    "WorkerLease.attempt": Word("The try.", 1),
    "approved": Word("Whether it may take work.", True),  # noqa: FBT003 - an example
    "beats": Word("One for each lease.", ...),
    "cancel": Word("Whether to stop: a person canceled the job.", False),  # noqa: FBT003 - an example
    "capabilities": Word("What the machine has, as it says itself.", {"gpu": "24 GB"}),
    "concurrency": Word("Tasks that it can do at once.", 2),
    "Claim.count": Word("How many tasks at most.", 1),
    "delivered": Word("How much of what was asked for is in it, in percent; less is paid less.", 100),
    "drain": Word("Whether to finish what is in hand and go.", False),  # noqa: FBT003 - an example
    "draining": Word("Whether it is to finish what it holds and go.", False),  # noqa: FBT003 - an example
    "Slot.field": Word("The input of the node.", "image"),
    "Slot.file_id": Word("The file.", FILE_ID),
    "Given.get": Word("How to read it.", ...),
    "gets": Word("Files to read, by id; in an answer, how to.", ...),
    "Files.gets": Word("Files to read, by id.", [FILE_ID]),
    "Beat.gets": Word("Files to read, by id, that need a fresh address.", []),
    "WorkersQuery.gone": Word("Whether those that have gone are shown.", False),  # noqa: FBT003 - an example
    "grants": Word("Fresh addresses, if some were asked for.", None),
    "graph": Word("A ComfyUI graph, in the API format.", {}),
    "Grant.url": Word("Where to send it; one that begins with a slash is on this server. It takes no key.", _SIGNED),
    "Grant.headers": Word("Headers to send, as they are.", {"content-type": "image/png"}),
    "job_status": Word("Where the job is.", "completed"),
    "kinds": Word("Kinds of work.", ["draw", "upscale"]),
    "Register.labels": Word("Words for operators, as a zone.", {"zone": "a"}),
    "Worker.labels": Word("Words for operators, as a zone.", {"zone": "a"}),
    "Worker.ended_at": Word("When it went, or was let in no longer.", None),
    "Worker.started_at": Word("When it last started.", AT),
    "Worker.status": Word("Whether it is let in.", "approved"),
    "Work.kind": Word("Which handler does the work.", "draw"),
    "Work.stage": Word("Name of the stage.", "draw"),
    "Work.workflow": Word("Name of the workflow.", "painting"),
    "WorkerLease.kind": Word("Which handler does the work.", "draw"),
    "WorkerLease.started_at": Word("When work on it began.", AT),
    "Earlier.stage": Word("Name of the stage.", "script"),
    "Reported.status": Word("Where the task is.", "completed"),
    "Registered.beat_seconds": Word("How often each lease is to be heard of.", 10.0),
    "Registered.wait_seconds_max": Word("The longest that a claim may wait.", 60.0),
    "Registered.token": Word("The worker's own token. It is shown this once.", "csw_…"),
    "WorkerToken.token": Word("The worker's own token. It is shown this once.", "csw_…"),
    "lease": Word("The right to work on a task: which, under which epoch, and the secret that proves it.", ...),
    "leases": Word("The tasks in its hand, those first that began first; in a list of workers ten at most.", ...),
    "Worker.held": Word("How many tasks it has in hand.", 1),
    "log": Word("Lines that the handler wrote.", ["model loaded"]),
    "method": Word("The HTTP method.", "PUT"),
    "Slot.node": Word("The node's id.", "12"),
    "offered": Word("Kinds that it can do.", ["draw", "upscale"]),
    "output_node": Word("The node whose files are the output; without it every file is.", None),
    "Beat.preview": Word("The number of the newest preview; 0 is none.", 0),
    "Files.preview": Word("Whether to put a preview picture.", False),  # noqa: FBT003 - an example
    "Grants.preview": Word("How to put a preview picture.", None),
    "Granted.put": Word("How to put it.", ...),
    "puts": Word("Files that the task made; in an answer, how to put them.", ...),
    "Beat.puts": Word("Files that the task made and that need a fresh address.", []),
    "ref": Word("How the other machine calls the work; shown to nobody but the next worker.", "a1b2c3"),
    "refused": Word("Why this one was refused.", None),
    "ungranted": Word("Why there are no fresh addresses, though some were asked for; the lease is prolonged.", None),
    "registered_at": Word("When it came for the first time.", AT),
    "requeued": Word("Tasks that were given back.", 1),
    "resumed": Word("What an earlier try left at somebody else's machine: look there first.", None),
    "retryable": Word("Whether another try makes sense; without it the workflow decides.", True),  # noqa: FBT003 - an example
    "seen_at": Word("When it was last heard of, to half a minute.", AT),
    "skipped": Word("Why the report had no effect.", None),
    "starts": Word("How often it has started.", 1),
    "wait_seconds": Word("How long to wait for work if there is none.", 0.0),
}

FLEET_BODIES: dict[str, Any] = {
    "Given": {
        "id": FILE_ID, "name": "sketch.png", "media_type": "image/png", "bytes": 48211, "sha256": _DIGEST,
        "get": {"method": "GET", "url": _SIGNED, "headers": {}, "seconds": 900},
    },
    "Lease": _LEASE,
    "Made": _MADE,
    "Register": {"worker": "gpu-7", "kinds": ["draw", "upscale"], "concurrency": 2},
    "Claim": {"count": 1, "wait_seconds": 0, "holds": []},
    "Heartbeat": {"beats": [{"lease": _LEASE, "progress": 40, "message": "Drawing."}]},
    "Files": {"lease": _LEASE, "puts": [_MADE]},
    "Before": {"lease": _LEASE},
    "Submitted": {"lease": _LEASE, "provider": "comfy-cloud", "ref": "a1b2c3"},
    "Complete": {"lease": _LEASE, "output": {"seed": 7}},
    "Fail": {"lease": _LEASE, "code": "out_of_memory", "message": "The picture is too large.", "retryable": False},
    "Requeue": {"lease": _LEASE, "reason": "The machine is taken away.", "cause": "spot"},
    "Deregister": {"reason": "The night."},
    "WorkerBody": {"draining": True},
}  # fmt: skip
"""Examples of whole structs, where the parts alone would not make a sensible one."""
