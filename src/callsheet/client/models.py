"""What the server answers with, typed. A field that a newer server adds is skipped; times are in UTC."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from callsheet.client.file_models import File


class Error(Struct, frozen=True):
    """Why something ended badly."""

    code: str
    message: str


class DurationEstimate(Struct, frozen=True):
    """How long such jobs took from their start to their end: a guess, not a promise."""

    estimate: bool
    seconds_p50: float
    seconds_p90: float
    samples: int


class Job(Struct, frozen=True):
    """A job."""

    id: str
    workflow: str
    workflow_version: int
    user: str
    status: str
    phase: str | None
    run: int
    priority: int
    price: int
    progress: int
    stages_total: int
    stages_completed: int
    events: int
    cancel_requested: bool
    created_at: datetime
    updated_at: datetime
    start_at: datetime | None
    deadline_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error: Error | None
    retry_of: str | None
    labels: dict[str, str] | None
    metadata: dict[str, Any] | None
    duration_estimate: DurationEstimate | None = None
    replay: bool = False
    """It was submitted before, with the same key of yours. Known to whoever submits it only."""

    @property
    def ended(self) -> bool:
        """Say whether this run is over, well or badly."""
        return self.finished_at is not None

    @property
    def completed(self) -> bool:
        """Say whether it ended well."""
        return self.status == "completed"


class NewJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job is made of."""

    workflow: str
    user: str
    input: Any = None
    idempotency_key: str | None = None
    priority: int | None = None
    start_in_seconds: float = 0
    deadline_seconds: int | None = None
    stages: list[dict[str, Any]] | None = None
    labels: dict[str, str] | None = None
    metadata: dict[str, Any] | None = None
    trace: dict[str, str] | None = None
    quote: str | None = None


class BulkResult(Struct, frozen=True):
    """What became of one job of many: its id, or the problem; the status is as if it had been sent alone."""

    status: int
    job_id: str | None = None
    replay: bool = False
    problem: dict[str, Any] | None = None
    idempotency_key: str = ""
    """The key that it was sent with, yours or one that was made: sent again with it, it is done once."""


class Run(Struct, frozen=True):
    """One life of a job, with its money."""

    no: int
    status: str
    price: int
    consumed: int
    refunded: int
    opened_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error: Error | None


class Stage(Struct, frozen=True):
    """A group of tasks; stages follow each other."""

    id: str
    no: int
    name: str
    kind: str
    status: str
    approval: bool
    tasks_total: int
    tasks_running: int
    tasks_completed: int
    tasks_failed: int
    tasks_canceled: int
    approved_by: str | None
    approved_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


class Task(Struct, frozen=True):
    """What one worker executes."""

    id: str
    stage_id: str
    no: int
    kind: str
    status: str
    phase: str | None
    progress: int
    message: str | None
    attempts: int
    attempts_counted: int
    attempts_max: int
    requeues: int
    ready_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error: Error | None


class Attempt(Struct, frozen=True):
    """One try of a task, kept for ever."""

    no: int
    run: int
    worker: str
    leased_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    uncounted: bool
    error: Error | None


class AddedTasks(Struct, frozen=True):
    """What was added to a job."""

    stage_id: str
    stage_no: int
    task_ids: list[str]
    first_task_no: int


class Constraint(Struct, frozen=True):
    """One thing that holds a job: a stable code, a sentence, and its numbers; what does not apply is None."""

    code: str
    message: str
    tasks: int
    active_since_at: datetime | None
    active_until_at: datetime | None
    of: str | None
    name: str | None
    running: int | None
    running_max: int | None
    started: int | None
    started_in_window_max: int | None
    within_seconds: int | None
    ahead: int | None
    progress: int | None
    workers: int | None


class StartEstimate(Struct, frozen=True):
    """When the job, or its next task, may start: a guess from what tasks of its queue took."""

    estimate: bool
    estimated_start_at: datetime | None
    estimated_seconds: float | None
    duration_seconds_p50: float | None
    duration_seconds_p90: float | None
    samples: int
    reason: str


class ProgressEstimate(Struct, frozen=True):
    """How far the job may be, for kinds that report nothing: a guess from past durations."""

    estimate: bool
    percent: int | None
    remaining_seconds_p50: float | None
    remaining_seconds_p90: float | None
    samples: int
    reason: str


class JobExplanation(Struct, frozen=True):
    """What holds a job, its place in its queue, and when it may start and end."""

    job_id: str
    status: str
    progress: int
    stage_no: int | None
    stage: str | None
    constraints: list[Constraint]
    position: int | None
    start: StartEstimate
    remaining: ProgressEstimate


class Event(Struct, frozen=True):
    """A stored fact about a job. `seq` is dense per job; `cursor` resumes a tenant's feed."""

    seq: int
    job_id: str
    run: int
    type: str
    at: datetime
    actor: str
    from_status: str | None
    to_status: str | None
    entity_id: str | None
    data: Any
    cursor: str | None = None


class JobInput(Struct, frozen=True):
    """What a job was asked to make."""

    input: Any


class Output(Struct, frozen=True):
    """What a task of a job made."""

    stage: str
    stage_no: int
    task_no: int
    task_id: str
    output: Any
    files: list[File]


class Wallet(Struct, frozen=True):
    """What a user may spend, what is reserved for jobs under way, and what was ever topped up and consumed."""

    user: str
    balance: int
    reserved: int
    entries: int
    topped_up: int = 0
    consumed: int = 0


class LedgerEntry(Struct, frozen=True):
    """A line of the ledger."""

    seq: int
    kind: str
    amount: int
    consumed: int
    balance: int
    job_id: str | None
    run: int | None
    reason: str | None
    actor: str
    at: datetime | None


class Balance(Struct, frozen=True):
    """The wallet after a movement; `replay` says that it had been made before."""

    user: str
    balance: int
    reserved: int
    replay: bool


class Quote(Struct, frozen=True):
    """A price, and the text that fixes it: give it to `submit`."""

    workflow: str
    price: int
    balance: int
    affordable: bool
    expires_at: datetime | None
    quote: str


class Workflow(Struct, frozen=True):
    """A definition: what may be asked for, and what it costs."""

    name: str
    version: int
    enabled: bool
    price: int
    created_at: datetime | None
    stages: list[str]
    definition: dict[str, Any]


class Identity(Struct, frozen=True):
    """Who the key says you are."""

    role: str
    tenant: str
    id: str
    user: str | None


class Key(Struct, frozen=True):
    """A key, without its secret."""

    id: str
    tenant: str
    role: str
    name: str
    created_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


class Tenant(Struct, frozen=True):
    """A customer boundary."""

    id: str
    weight: int
    status: str
    active_jobs_max: int | None
    created_at: datetime | None


class AuditEntry(Struct, frozen=True):
    """Who did what to the house."""

    id: str
    tenant: str
    at: datetime | None
    by: str
    action: str
    subject: str
    data: Any


class Queue(Struct, frozen=True):
    """What waits and runs of one kind for one workflow."""

    kind: str
    workflow: str
    waiting: int
    running: int


class Ops(Struct, frozen=True):
    """How the house is doing."""

    now: datetime | None
    active_jobs: dict[str, int]
    queues: list[Queue]
    workers: int
    streams: int
    provider_calls: int
    provider_calls_overdue: int
