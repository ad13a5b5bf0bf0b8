"""The rows of every table, one class each: the only place where columns are listed.

The store builds its reads and writes from these classes. Rows are frozen; a change is a new row put into the
working set. JSON columns hold text that was encoded once.
"""

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any, ClassVar

from msgspec import Struct


class Row(Struct, frozen=True, gc=False):
    """A row at rest."""

    TABLE: ClassVar[str] = ""
    KEY: ClassVar[tuple[str, ...]] = ("id",)
    key_of: ClassVar[Callable[[Any], Hashable]]
    """Reads a row's key: one value, or a tuple."""
    FIXED: ClassVar[int] = 0
    """How many leading columns never change; 0 is a row that is only ever appended."""


class Tenant(Row, frozen=True, gc=False):
    """A customer boundary, with its share of the machines."""

    TABLE: ClassVar[str] = "tenant"
    FIXED: ClassVar[int] = 1

    id: str
    weight: int
    status: str
    active_jobs_max: int
    created_at: int
    updated_at: int = 0


class Workflow(Row, frozen=True, gc=False):
    """One version of a recipe; versions never change, the newest one is current."""

    TABLE: ClassVar[str] = "workflow"
    KEY: ClassVar[tuple[str, ...]] = ("name", "version")
    FIXED: ClassVar[int] = 2

    name: str
    version: int
    current: int
    spec: str
    created_at: int


class Queue(Row, frozen=True, gc=False):
    """The tasks of one kind and workflow: the unit that claims and running limits look at."""

    TABLE: ClassVar[str] = "queue"
    FIXED: ClassVar[int] = 4

    id: str
    kind: str
    workflow: str
    provider: str
    running_max: int


class Wallet(Row, frozen=True, gc=False):
    """Who pays: what may be spent (`balance`) and what is reserved for open runs (`held`)."""

    TABLE: ClassVar[str] = "wallet"
    FIXED: ClassVar[int] = 3

    id: str
    tenant: str
    user_id: str
    balance: int
    held: int
    entries: int
    created_at: int
    updated_at: int


class Entry(Row, frozen=True, gc=False):
    """A line of the ledger. `amount` is what the balance gained; `consumed` is what the house earned."""

    TABLE: ClassVar[str] = "entry"
    KEY: ClassVar[tuple[str, ...]] = ("wallet_id", "seq")

    wallet_id: str
    seq: int
    tenant: str
    kind: str
    amount: int
    consumed: int
    balance: int
    job_id: str | None
    run: int | None
    idem: str | None
    reason: str | None
    actor: str
    at: int


class Job(Row, frozen=True, gc=False):
    """What a user asked and pays for."""

    TABLE: ClassVar[str] = "job"
    FIXED: ClassVar[int] = 10

    id: str
    tenant: str
    user_id: str
    wallet_id: str
    workflow: str
    workflow_version: int
    idem: str | None
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
    started_at: int | None = None
    finished_at: int | None = None
    deleted_at: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    labels: str | None = None
    metadata: str | None = None
    trace: str | None = None


class Run(Row, frozen=True, gc=False):
    """One life of a job; once finished it never changes."""

    TABLE: ClassVar[str] = "run"
    KEY: ClassVar[tuple[str, ...]] = ("job_id", "no")
    FIXED: ClassVar[int] = 6

    job_id: str
    no: int
    tenant: str
    command_id: str
    price: int
    opened_at: int
    status: str = "open"
    consumed: int = 0
    returned: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    error_code: str | None = None
    error_message: str | None = None


class Stage(Row, frozen=True, gc=False):
    """An ordered group of tasks; counts, so that the cascade never reads all of them."""

    TABLE: ClassVar[str] = "stage"
    FIXED: ClassVar[int] = 7

    id: str
    job_id: str
    tenant: str
    no: int
    name: str
    kind: str
    provider: str
    gate: int
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
    """What one worker executes. Claimable exactly while `ready` is 1; `due_at` is when the clock must look."""

    TABLE: ClassVar[str] = "task"
    FIXED: ClassVar[int] = 11

    id: str
    job_id: str
    stage_id: str
    tenant: str
    no: int
    queue: str
    kind: str
    tries_max: int
    requeues_max: int
    lease_seconds: int
    created_at: int
    status: str
    priority: int
    ready: int = 0
    rank: int = 0
    attempts: int = 0
    attempts_charged: int = 0
    requeues: int = 0
    called: int = 0
    """Whether this attempt wrote down a call to a provider."""
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
    """One try of a task under one lease; its number is the lease's epoch."""

    TABLE: ClassVar[str] = "attempt"
    KEY: ClassVar[tuple[str, ...]] = ("task_id", "no")
    FIXED: ClassVar[int] = 8

    task_id: str
    no: int
    job_id: str
    run: int
    tenant: str
    worker_id: str
    token_hash: str
    leased_at: int
    ended_at: int | None = None
    outcome: str | None = None
    forgiven: int = 0
    digest: str | None = None
    error_code: str | None = None
    error_message: str | None = None


class Event(Row, frozen=True, gc=False):
    """A stored fact. The database adds its global place; `seq` is dense per subject."""

    TABLE: ClassVar[str] = "event"
    KEY: ClassVar[tuple[str, ...]] = ("subject", "seq")

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
    """JSON that came in or went out, written once: a job's or task's input, a task's output of one attempt."""

    TABLE: ClassVar[str] = "document"
    KEY: ClassVar[tuple[str, ...]] = ("owner_id", "name")

    owner_id: str
    name: str
    job_id: str
    body: str


class Call(Row, frozen=True, gc=False):
    """One submission to a provider: written down before the call is made, one per attempt."""

    TABLE: ClassVar[str] = "call"
    FIXED: ClassVar[int] = 8

    id: str
    task_id: str
    attempt: int
    job_id: str
    tenant: str
    provider: str
    intended_at: int
    deadline_at: int
    status: str = "intended"
    ref: str | None = None
    submitted_at: int | None = None
    collect_at: int | None = None
    ended_at: int | None = None
    outcome: str | None = None


class Inbox(Row, frozen=True, gc=False):
    """A provider's callback, kept so that it takes effect once."""

    TABLE: ClassVar[str] = "inbox"
    FIXED: ClassVar[int] = 4

    id: str
    provider: str
    ref: str | None
    call_id: str | None
    status: str
    received_at: int
    body: str | None


class Cursor(Row, frozen=True, gc=False):
    """How far a named reader of the global event order has come, and who reads for it now."""

    TABLE: ClassVar[str] = "cursor"
    FIXED: ClassVar[int] = 1

    id: str
    tx: int
    position: int
    holder: str | None
    held_until: int


class File(Row, frozen=True, gc=False):
    """A stored object; where its bytes lie follows from its task and epoch, and is nobody's to see."""

    TABLE: ClassVar[str] = "file"

    id: str
    tenant: str
    job_id: str
    task_id: str
    attempt: int
    no: int
    name: str
    media_type: str
    bytes: int
    sha256: str
    created_at: int


class ApiKey(Row, frozen=True, gc=False):
    """A program's way in. An empty tenant is the operator of the house."""

    TABLE: ClassVar[str] = "api_key"
    FIXED: ClassVar[int] = 7

    id: str
    tenant: str
    role: str
    name: str
    secret_hash: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None = None


class Audit(Row, frozen=True, gc=False):
    """Who did what to the house, kept for ever."""

    TABLE: ClassVar[str] = "audit"

    id: str
    tenant: str
    at: int
    actor: str
    action: str
    subject: str
    data: str | None


ROWS: tuple[type[Row], ...] = (
    Tenant, Workflow, Queue, Wallet, Entry, Job, Run, Stage, Task, Attempt, Event, Document, Call, Inbox, Cursor, File,
    ApiKey, Audit,
)  # fmt: skip
"""In the order in which they are written."""

for _row in ROWS:
    _row.key_of = attrgetter(*_row.KEY)
