"""Rows of the operator: tenants, workflows, queues, cursors, API keys, workers, the audit log, the installation."""

from typing import ClassVar

from callsheet.core.model.rows.base import Row


class Tenant(Row, frozen=True, gc=False):
    """A customer of the operator, with its weight in the fair order."""

    TABLE: ClassVar[str] = "tenant"
    FIXED_COLUMNS: ClassVar[int] = 1
    TIMES: ClassVar[tuple[str, ...]] = ("created_at", "updated_at")

    id: str
    weight: int
    status: str
    active_jobs_max: int | None
    created_at: int
    updated_at: int = 0
    storage_bytes_max: int | None = None


class Workflow(Row, frozen=True, gc=False):
    """One version of a definition; versions never change, the newest one is current."""

    TABLE: ClassVar[str] = "workflow"
    KEY: ClassVar[tuple[str, ...]] = ("name", "version")
    FIXED_COLUMNS: ClassVar[int] = 2
    TIMES: ClassVar[tuple[str, ...]] = ("created_at",)

    name: str
    version: int
    current: int
    running_max: int | None
    rate_max: str | None
    spec: str
    created_at: int


class Queue(Row, frozen=True, gc=False):
    """The tasks of one kind, workflow and provider: the unit of claims and limits."""

    TABLE: ClassVar[str] = "queue"
    FIXED_COLUMNS: ClassVar[int] = 4

    id: str
    kind: str
    workflow: str
    provider: str


class Cursor(Row, frozen=True, gc=False):
    """The position of a named reader in the global event order, and the process that holds its lock."""

    TABLE: ClassVar[str] = "cursor"
    FIXED_COLUMNS: ClassVar[int] = 1

    id: str
    tx: int
    position: int
    holder: str | None
    locked_until: int


class ApiKey(Row, frozen=True, gc=False):
    """A key that authenticates a program. An empty tenant means the operator of the server."""

    TABLE: ClassVar[str] = "api_key"
    FIXED_COLUMNS: ClassVar[int] = 7
    TIMES: ClassVar[tuple[str, ...]] = ("created_at", "revoked_at")

    id: str
    tenant: str
    role: str
    name: str
    secret_hash: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None = None


class Worker(Row, frozen=True, gc=False):
    """A worker process that claims tasks over HTTP under its own name."""

    TABLE: ClassVar[str] = "worker"
    FIXED_COLUMNS: ClassVar[int] = 2
    TIMES: ClassVar[tuple[str, ...]] = (
        "created_at", "started_at", "last_seen_at", "approved_at", "draining_at", "ended_at",
    )  # fmt: skip

    id: str
    created_at: int
    status: str
    """`pending` until an operator approves it, `approved`, `revoked`, `offline`."""
    token_hash: str | None
    offered: str
    assigned: str | None
    concurrency: int
    starts: int
    started_at: int
    last_seen_at: int
    approved_at: int | None = None
    """When it was approved. The approval survives restarts and ends when the worker is revoked."""
    draining_at: int | None = None
    ended_at: int | None = None
    capabilities: str | None = None
    labels: str | None = None


class Audit(Row, frozen=True, gc=False):
    """Who changed what on the server. Audit lines are never deleted.

    The lines of a tenant are a chain: `seq` has no gaps, and `digest` covers the line and the digest before it. A
    decision leaves both empty; a line gets its place in the chain when its batch is stored.
    """

    TABLE: ClassVar[str] = "audit"
    TIMES: ClassVar[tuple[str, ...]] = ("at",)

    id: str
    tenant: str
    at: int
    actor: str
    action: str
    subject: str
    data: str | None
    seq: int = 0
    digest: str = ""


class AuditHead(Row, frozen=True, gc=False):
    """The end of a tenant's audit chain: the number and digest of its last line. The operator's tenant is empty."""

    TABLE: ClassVar[str] = "audit_head"
    KEY: ClassVar[tuple[str, ...]] = ("tenant",)
    FIXED_COLUMNS: ClassVar[int] = 1

    tenant: str
    seq: int = 0
    digest: str = ""


class InstallationValue(Row, frozen=True, gc=False):
    """A value that all servers of this database share, written by the first of them."""

    TABLE: ClassVar[str] = "installation"
    KEY: ClassVar[tuple[str, ...]] = ("name",)
    FIXED_COLUMNS: ClassVar[int] = 1

    name: str
    value: str
    created_at: int
    updated_at: int
