"""What an operator sets up or must be able to look up: tenants, workflows, keys, workers, the audit log."""

from typing import ClassVar

from callsheet.core.model.rows.base import Row


class Tenant(Row, frozen=True, gc=False):
    """A customer boundary, with its share of the machines."""

    TABLE: ClassVar[str] = "tenant"
    FIXED_COLUMNS: ClassVar[int] = 1

    id: str
    weight: int
    status: str
    active_jobs_max: int | None
    created_at: int
    updated_at: int = 0


class Workflow(Row, frozen=True, gc=False):
    """One version of a definition; versions never change, the newest one is current."""

    TABLE: ClassVar[str] = "workflow"
    KEY: ClassVar[tuple[str, ...]] = ("name", "version")
    FIXED_COLUMNS: ClassVar[int] = 2

    name: str
    version: int
    current: int
    running_max: int | None
    rate_max: str | None
    spec: str
    created_at: int


class Queue(Row, frozen=True, gc=False):
    """The tasks of one kind and workflow: the unit that claims and limits look at."""

    TABLE: ClassVar[str] = "queue"
    FIXED_COLUMNS: ClassVar[int] = 4

    id: str
    kind: str
    workflow: str
    provider: str


class Cursor(Row, frozen=True, gc=False):
    """How far a named reader of the global event order has come, and who reads for it now."""

    TABLE: ClassVar[str] = "cursor"
    FIXED_COLUMNS: ClassVar[int] = 1

    id: str
    tx: int
    position: int
    holder: str | None
    locked_until: int


class ApiKey(Row, frozen=True, gc=False):
    """A program's way in. An empty tenant is the operator of the house."""

    TABLE: ClassVar[str] = "api_key"
    FIXED_COLUMNS: ClassVar[int] = 7

    id: str
    tenant: str
    role: str
    name: str
    secret_hash: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None = None


class Worker(Row, frozen=True, gc=False):
    """A machine that comes over HTTP for work, under a name of its own."""

    TABLE: ClassVar[str] = "worker"
    FIXED_COLUMNS: ClassVar[int] = 2

    id: str
    created_at: int
    status: str
    """`pending` until an operator approves it, `approved`, `revoked`, `gone`."""
    token_hash: str | None
    offered: str
    assigned: str | None
    concurrency: int
    starts: int
    started_at: int
    last_seen_at: int
    approved_at: int | None = None
    """When it was let take work: it stays so when it goes and comes again, and not when it was revoked."""
    draining_at: int | None = None
    ended_at: int | None = None
    capabilities: str | None = None
    labels: str | None = None


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
