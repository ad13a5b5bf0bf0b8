"""Workers as an operator sees them."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from callsheet.api.base import SecretStruct


class WorkersQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to go on, and whether those that have gone are shown."""

    after: str = ""
    limit: int = 100
    include_deregistered: bool = False


class WorkerLease(Struct, frozen=True):
    """A task in a worker's hand."""

    job_id: str
    task_id: str
    kind: str
    attempt: int
    progress: int
    started_at: datetime | None
    lease_expires_at: datetime | None


class Worker(Struct, frozen=True):
    """A worker: what it may do, what it holds, when it was last heard of."""

    worker: str
    status: str
    """pending, approved, revoked, gone; embedded runs inside a server and is not registered."""
    kinds: list[str]
    offered: list[str]
    concurrency: int | None
    draining: bool
    leases_total: int
    """How many tasks it has in hand."""
    leases: list[WorkerLease]
    """The tasks, those first that began first: in a list of workers some of them, under its own address all."""
    starts: int
    registered_at: datetime | None
    started_at: datetime | None
    last_seen_at: datetime | None
    ended_at: datetime | None
    labels: dict[str, str] | None
    capabilities: dict[str, Any] | None


class WorkerPage(Struct, frozen=True):
    """Workers by name."""

    workers: list[Worker]
    next: str | None


class WorkerBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What to change; what is left out stays as it is."""

    approved: bool | None = None
    draining: bool | None = None
    kinds: list[str] | None = None
    """Of what it offers it may take these; an empty list is everything."""


class WorkerToken(SecretStruct, frozen=True):
    """A worker's new token, shown once; the one before is good no longer."""

    worker: str
    token: str
