"""Every limit of the engine, with its name and its default."""

import msgspec

from callsheet.core.policy.rate_syntax import RATE_FORMAT_HELP, parse_rate


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine accepts at most. A value outside is refused by name; nothing is silently cut."""

    batch_commands_max: int = 512
    flush_every: int = 64
    """After so many commands of a batch the database begins to write what they said, while the next are decided."""
    bulk_items_max: int = 1_000
    claim_tasks_max: int = 1_000
    input_bytes_max: int = 256 * 1024
    input_depth_max: int = 64
    input_items_max: int = 10_000
    """Items of one array, or fields of one object, in an input."""
    output_bytes_max: int = 1024 * 1024
    graph_bytes_max: int = 512 * 1024
    """A ComfyUI graph of a workflow, as JSON."""
    graph_nodes_max: int = 2_000
    name_chars_max: int = 128
    key_chars_max: int = 255
    message_chars_max: int = 2_000
    labels_max: int = 32
    """Labels of one job, stage or worker; 0 is none."""
    files_per_task_max: int = 64
    """Files that one task may make."""
    file_bytes_max: int = 4 * 1024**3
    upload_timeout_seconds: int = 86_400
    """How long an announced file may wait for its bytes."""
    upload_retention_seconds: int = 0
    """How long files that people brought are kept; 0 is for ever. Those that open jobs need stay."""
    uploads_pending_max: int = 100
    """Announced files per user whose bytes are not there yet."""
    retention_seconds_max: int = 10 * 366 * 86_400
    """The longest `retention_seconds` of a workflow; 0 lets every file be kept for ever."""
    workers_max: int = 1_000
    """Workers that may be registered at once."""
    worker_concurrency_max: int = 1_000
    kinds_per_worker_max: int = 256
    worker_timeout_seconds: int = 7_200
    """A worker that was not heard of for so long makes room for others; its leases ran out long before."""
    log_lines_max: int = 100
    """Lines of a handler's log in one heartbeat."""
    key_expires_in_seconds_max: int = 10 * 366 * 86_400
    label_chars_max: int = 200
    metadata_bytes_max: int = 16 * 1024
    priority_max: int = 100
    price_max: int = 10**12
    """The highest price of a workflow; 0 lets all be free."""
    balance_max: int = 2**62
    lease_seconds_max: int = 86_400
    deadline_seconds_max: int = 30 * 86_400
    start_in_seconds_max: int = 366 * 86_400
    """How far ahead a job may be scheduled; 0 is not at all."""
    stages_per_job_max: int = 64
    tasks_per_stage_max: int = 1_000
    queues_per_workflow_max: int = 256
    """Pairs of kind and provider that jobs may bring to one workflow in the stages of their own: each is a queue that
    every claim of its kind looks at."""
    attempts_max: int = 100
    requeues_max: int = 100
    active_jobs_max: int = 0
    """Active jobs per user; 0 is no cap. A tenant's own value goes before it."""
    kind_running_max: dict[str, int] = {}
    """Running tasks per kind, over all servers; absent is no limit, 0 is none."""
    provider_running_max: dict[str, int] = {}
    """The same per provider; 0 is none."""
    kind_rate_max: dict[str, str] = {}
    """Tasks per kind that may start in a second, minute, hour or day, over all servers, as `60/minute`; each try is a
    start. Absent is no limit."""
    provider_rate_max: dict[str, str] = {}
    """The same per provider."""

    def __post_init__(self) -> None:
        """Refuse a rate that cannot be read: it would be no limit."""
        for field in ("kind_rate_max", "provider_rate_max"):
            for text in getattr(self, field).values():
                if parse_rate(text) is None:
                    raise ValueError(f"{field} has {text!r}. {RATE_FORMAT_HELP}")
