"""Workers as an operator sees them."""

from datetime import datetime
from typing import Any

from msgspec import Struct


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
    kinds: list[str]
    offered: list[str]
    concurrency: int | None
    draining: bool
    leases_total: int
    """How many tasks it has in hand."""
    leases: list[WorkerLease]
    """The tasks, those first that began first: in a list of workers ten at most, of one worker all."""
    starts: int
    registered_at: datetime | None
    started_at: datetime | None
    last_seen_at: datetime | None
    ended_at: datetime | None
    labels: dict[str, str] | None
    capabilities: dict[str, Any] | None
