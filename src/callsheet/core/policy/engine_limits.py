"""The limits of the engine, with their defaults."""

import msgspec

from callsheet.core.policy.rate_syntax import RATE_FORMAT_HELP, parse_rate


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the engine. A request with a value above a limit is refused."""

    batch_commands_max: int = 512
    """The maximum number of commands that one transaction runs."""
    flush_every: int = 64
    """How many commands of a batch the engine decides before it sends their events to the database and continues."""
    bulk_items_max: int = 1_000
    """The maximum number of items in a bulk request."""
    claim_tasks_max: int = 1_000
    """The maximum number of tasks that one claim may lease."""
    input_bytes_max: int = 256 * 1024
    """The maximum size of an input, as JSON."""
    input_depth_max: int = 64
    """The maximum nesting depth of an input."""
    input_items_max: int = 10_000
    """The maximum number of items of an array, and of fields of an object, in an input."""
    schema_values_max: int = 10_000
    """The maximum number of values in the input schema of a workflow: keywords, names, and entries of lists."""
    schema_patterns_size_max: int = 100_000
    """The maximum size of all patterns in an input schema: their characters and classes, times their repetitions. A
    Unicode class such as `\\p{L}` counts as 100."""
    validation_steps_max: int = 10_000_000
    """The maximum cost of validating an input. A step is a value of the schema that is compared with a value of the
    input, or a pattern of size 8 with a character. A million steps take about 20 milliseconds."""
    validation_pairs_max: int = 20_000
    """The maximum number of pairs of subschema and value that are counted to find the cost of validating an input. Only
    schemas that refer to themselves, and large inputs, are counted. An input with more pairs is refused."""
    output_bytes_max: int = 1024 * 1024
    """The maximum size of a task's output, as JSON, without its files."""
    graph_bytes_max: int = 512 * 1024
    """The maximum size of a ComfyUI graph, as JSON."""
    graph_nodes_max: int = 2_000
    """The maximum number of nodes of a ComfyUI graph."""
    graph_inputs_max: int = 256
    """The maximum number of inputs of a ComfyUI graph."""
    graph_placements_max: int = 1_000
    """The maximum number of places in a ComfyUI graph where values of inputs are inserted."""
    graph_values_bytes_max: int = 4 * 1024 * 1024
    """The maximum size of the values that a job inserts into a ComfyUI graph, as JSON. A value counts once for each
    place."""
    name_chars_max: int = 128
    """The maximum length of names: of workflows, stages, kinds, tenants, workers and files."""
    key_chars_max: int = 255
    """The maximum length of user ids, of idempotency keys, and of field names in an input."""
    message_chars_max: int = 2_000
    """The maximum length of a message. A longer progress message is refused; a longer error message or reason is
    truncated."""
    labels_max: int = 32
    """The maximum number of labels of a job, stage or worker. 0 means none."""
    files_per_task_max: int = 64
    """The maximum number of output files of a task."""
    file_bytes_max: int = 4 * 1024**3
    """The maximum size of a file."""
    upload_timeout_seconds: int = 86_400
    """The time a client has to finish an upload. After it, the upload is deleted."""
    upload_retention_seconds: int | None = None
    """How long to keep uploaded files. Files that an open job needs are kept longer. 0 means until no
    open job needs them; absent means forever."""
    storage_bytes_max: int = 1024**4
    """The maximum size of all files of a tenant: stored files, unfinished uploads, and what running tasks upload. A
    tenant's own `storage_bytes_max` takes precedence. 0 means that no file can be stored."""
    pending_bytes_max: int = 256 * 1024**3
    """The maximum size of a tenant's unfinished uploads, together with the output files and previews that its running
    tasks have announced."""
    file_bytes_per_job_max: int = 64 * 1024**3
    """The maximum size of all output files of a job, over all its runs."""
    uploads_pending_max: int = 100
    """The maximum number of unfinished uploads of a user."""
    retention_seconds_max: int = 10 * 366 * 86_400
    """The highest `retention_seconds` that a workflow may set. 0 means that workflows may keep no files."""
    workers_max: int = 1_000
    """The maximum number of registered workers."""
    worker_concurrency_max: int = 1_000
    """The maximum number of tasks that one worker may run at the same time."""
    kinds_per_worker_max: int = 256
    """The maximum number of kinds that one worker may offer."""
    worker_timeout_seconds: int = 7_200
    """After this long without a heartbeat, a worker is marked offline and no longer counts towards `workers_max`. Its
    leases expire much earlier."""
    log_lines_max: int = 100
    """The maximum number of log lines in one heartbeat."""
    log_bytes_per_job_max: int = 1024**2
    """The size of a job's log, as events. When it is reached, the log says so and further lines are dropped. 0 means
    that all lines are dropped."""
    progress_events_per_job_max: int = 10_000
    """The maximum number of `task.progressed` events of a job. The last one says so. Later progress is stored in the
    task and the job, without an event. 0 means no such events."""
    key_expires_in_seconds_max: int = 10 * 366 * 86_400
    """The longest lifetime of an API key that expires."""
    label_chars_max: int = 200
    """The maximum length of a label's name and of its value."""
    metadata_bytes_max: int = 16 * 1024
    """The maximum size of `metadata`, of `trace` and of a worker's capabilities, each as JSON."""
    priority_max: int = 100
    """The highest priority of a job."""
    price_max: int = 10**12
    """The highest price of a workflow, in credits. 0 means that all workflows are free."""
    balance_max: int = 2**62
    """The maximum balance of a wallet, including its reserved credits."""
    lease_seconds_max: int = 86_400
    """The longest `lease_seconds` of a task."""
    deadline_seconds_max: int = 30 * 86_400
    """The longest `deadline_seconds` of a job, and of a workflow."""
    start_in_seconds_max: int = 366 * 86_400
    """How far ahead a job may be scheduled. 0 means that jobs cannot be scheduled."""
    stages_per_job_max: int = 64
    """The maximum number of stages of a job."""
    tasks_per_stage_max: int = 1_000
    """The maximum number of tasks of a stage."""
    queues_per_workflow_max: int = 256
    """The maximum number of pairs of kind and provider that inline stages of a workflow's jobs may use. Each pair is a
    queue, and every claim of the kind reads all its queues."""
    attempts_max: int = 100
    """The highest `retry.attempts_max` of a workflow."""
    requeues_max: int = 100
    """The highest `retry.requeues_max` of a workflow."""
    active_jobs_max: int | None = None
    """The maximum number of active jobs of a user. A tenant's own `active_jobs_max` takes precedence. 0 means none;
    absent means no limit."""
    kind_running_max: dict[str, int] = {}
    """The maximum number of running tasks of a kind, over all servers. 0 means none; a kind that is absent has no
    limit."""
    provider_running_max: dict[str, int] = {}
    """The maximum number of running tasks of a provider, over all servers. 0 means none; a provider that is absent has
    no limit."""
    kind_rate_max: dict[str, str] = {}
    """The maximum rate at which tasks of a kind start, over all servers, such as `60/minute`. Each attempt counts as a
    start. A kind that is absent has no limit."""
    provider_rate_max: dict[str, str] = {}
    """The maximum rate at which tasks of a provider start, over all servers, such as `60/minute`. A provider that is
    absent has no limit."""

    def __post_init__(self) -> None:
        """Refuse a rate that cannot be parsed: it would not limit anything."""
        for field in ("kind_rate_max", "provider_rate_max"):
            for text in getattr(self, field).values():
                if parse_rate(text) is None:
                    raise ValueError(f"{field} has {text!r}. {RATE_FORMAT_HELP}")
