"""Rows of a job: its runs, stages, tasks, attempts, events and documents."""

from typing import ClassVar

from callsheet.core.model.rows.base import Row


class Job(Row, frozen=True, gc=False):
    """What a user submits and pays for."""

    TABLE: ClassVar[str] = "job"
    FIXED_COLUMNS: ClassVar[int] = 10
    TIMES: ClassVar[tuple[str, ...]] = (
        "created_at", "updated_at", "cancel_requested_at", "waiting_at", "started_at", "finished_at", "deleted_at",
    )  # fmt: skip

    id: str
    tenant: str
    user_id: str
    wallet_id: str
    workflow: str
    workflow_version: int
    dedup_key: str | None
    fingerprint: str
    retry_of: str | None
    created_at: int
    status: str
    run: int
    priority: int
    price: int
    stages_total: int
    stages_completed: int
    progress: int
    seq: int
    updated_at: int
    start_at: int | None = None
    deadline_at: int | None = None
    cancel_due_at: int | None = None
    due_at: int | None = None
    cancel_requested_at: int | None = None
    cancel_reason: str | None = None
    waiting_at: int | None = None
    """When its current stage began to wait for approval."""
    started_at: int | None = None
    finished_at: int | None = None
    deleted_at: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    labels: str | None = None
    metadata: str | None = None
    trace: str | None = None
    output_bytes: int = 0
    """Size of all its output files, also deleted ones, and of what its running attempts have announced."""
    log_bytes: int = 0
    """Size of its `task.logged` events."""
    progress_events: int = 0
    """Number of its `task.progressed` events."""

    def newest_time(self) -> int:
        return self.updated_at  # of the job and all its parts


class Run(Row, frozen=True, gc=False):
    """One execution of a job, from submit or retry to its end. A finished run never changes."""

    TABLE: ClassVar[str] = "run"
    KEY: ClassVar[tuple[str, ...]] = ("job_id", "no")
    FIXED_COLUMNS: ClassVar[int] = 6
    TIMES: ClassVar[tuple[str, ...]] = ("opened_at", "started_at", "finished_at")

    job_id: str
    no: int
    tenant: str
    command_id: str
    price: int
    opened_at: int
    status: str = "open"
    consumed: int = 0
    refunded: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    error_code: str | None = None
    error_message: str | None = None


class Stage(Row, frozen=True, gc=False):
    """An ordered group of tasks. It stores counts, so that the cascade rules never read all tasks."""

    TABLE: ClassVar[str] = "stage"
    FIXED_COLUMNS: ClassVar[int] = 7
    TIMES: ClassVar[tuple[str, ...]] = ("created_at", "approved_at", "started_at", "finished_at")

    id: str
    job_id: str
    tenant: str
    no: int
    name: str
    kind: str
    provider: str
    approval: int
    created_at: int
    status: str
    tasks_total: int
    tasks_running: int = 0
    tasks_completed: int = 0
    tasks_failed: int = 0
    tasks_canceled: int = 0
    delivered: int = 0
    approved_by: str | None = None
    approved_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    labels: str | None = None
    metadata: str | None = None
    trace: str | None = None


class Task(Row, frozen=True, gc=False):
    """A unit that one worker executes. It is claimable while `ready` is 1; its next timer is due at `due_at`."""

    TABLE: ClassVar[str] = "task"
    FIXED_COLUMNS: ClassVar[int] = 12
    TIMES: ClassVar[tuple[str, ...]] = ("created_at", "started_at", "finished_at")

    id: str
    job_id: str
    stage_id: str
    tenant: str
    user_id: str
    no: int
    queue: str
    kind: str
    attempts_max: int
    requeues_max: int
    lease_seconds: int
    created_at: int
    status: str
    priority: int
    ready: int = 0
    rank: int = 0
    """A turn of its tenant in the queue. Tasks of one tenant exchange their turns."""
    user_rank: int = 0
    """Its place among the tasks of its tenant, in turns of its user."""
    attempts: int = 0
    attempts_counted: int = 0
    requeues: int = 0
    has_call: int = 0
    """Whether the current attempt has recorded a provider call."""
    progress: int = 0
    due_at: int | None = None
    ready_at: int | None = None
    token_hash: str | None = None
    lease_expires_at: int | None = None
    worker_id: str | None = None
    message: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    labels: str | None = None
    metadata: str | None = None
    trace: str | None = None


class Attempt(Row, frozen=True, gc=False):
    """One execution of a task under one lease; its number is the lease's epoch."""

    TABLE: ClassVar[str] = "attempt"
    KEY: ClassVar[tuple[str, ...]] = ("task_id", "no")
    FIXED_COLUMNS: ClassVar[int] = 9
    TIMES: ClassVar[tuple[str, ...]] = ("leased_at", "ended_at")

    task_id: str
    no: int
    job_id: str
    run: int
    tenant: str
    worker_id: str
    token_hash: str
    leased_at: int
    rate_queue: str | None
    """The queue, if a rate limit counts the start of this attempt."""
    ended_at: int | None = None
    outcome: str | None = None
    uncounted: int = 0
    digest: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    provider: str | None = None
    ref: str | None = None
    """Id of the provider's job while the worker waits for it. It is never shown to users."""
    resumable: int = 0
    """Whether the attempt failed but the provider's job is still usable: the next attempt may resume it."""
    announced: str | None = None
    """JSON object: the sizes of the objects that its worker got upload URLs for, by file number, or `preview`."""


class Event(Row, frozen=True, gc=False):
    """A stored event. The database adds its global position; `seq` has no gaps per subject."""

    TABLE: ClassVar[str] = "event"
    KEY: ClassVar[tuple[str, ...]] = ("subject", "seq")
    TIMES: ClassVar[tuple[str, ...]] = ("at",)

    subject: str
    seq: int
    tenant: str
    run: int
    at: int
    type: str
    entity_id: str | None
    source: str | None
    target: str | None
    actor: str
    data: str | None


class Document(Row, frozen=True, gc=False):
    """JSON that is written once: the input of a job or task, or the output of one attempt."""

    TABLE: ClassVar[str] = "document"
    KEY: ClassVar[tuple[str, ...]] = ("owner_id", "name")

    owner_id: str
    name: str
    job_id: str
    body: str
