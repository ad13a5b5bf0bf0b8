"""Capacity per kind: how many workers serve a kind of task, and how many slots they have.

Counts leases as well as registered workers, so that a worker on a long task is always included.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from callsheet.core.decisions.claim import allowed_kinds
from callsheet.core.model.rows import Worker


class WorkerLeases(NamedTuple):
    """The leases of a worker of one kind: their number, and the time of the oldest."""

    worker_id: str
    kind: str
    leases: int
    leased_at: int


class KindCapacity:
    """The workers of one kind and their slots."""

    __slots__ = ("busy", "capacity", "free", "leased_at", "running", "workers")

    def __init__(self) -> None:
        self.workers: set[str] = set()
        self.busy: set[str] = set()
        self.running = 0
        self.capacity = 0
        self.free = 0
        self.leased_at: int | None = None


def capacity_by_kind(fleet: Iterable[Worker], held: Iterable[WorkerLeases], seen_since: int) -> dict[str, KindCapacity]:
    """Count workers and slots by kind. Draining and unregistered workers count only with the leases they hold."""
    lease_rows = list(held)
    leases: Counter[str] = Counter()
    for one in lease_rows:
        leases[one.worker_id] += one.leases
    found: dict[str, KindCapacity] = {}
    for worker in fleet:
        alive = worker.last_seen_at >= seen_since or leases[worker.id]
        if worker.status != "approved" or worker.draining_at is not None or not alive:
            continue
        for kind in allowed_kinds(worker):
            kind_capacity = found.setdefault(kind, KindCapacity())
            kind_capacity.workers.add(worker.id)
            kind_capacity.capacity += worker.concurrency
            kind_capacity.free += max(worker.concurrency - leases[worker.id], 0)
    for one in lease_rows:
        kind_capacity = found.setdefault(one.kind, KindCapacity())
        if one.worker_id not in kind_capacity.workers:
            kind_capacity.workers.add(one.worker_id)
            kind_capacity.capacity += one.leases
        kind_capacity.busy.add(one.worker_id)
        kind_capacity.running += one.leases
        kind_capacity.leased_at = min(kind_capacity.leased_at or one.leased_at, one.leased_at)
    return found


class UnavailableWorkers(NamedTuple):
    """Number of workers that offer a kind but cannot claim it, by reason."""

    pending: int = 0
    draining: int = 0
    unassigned: int = 0

    def __str__(self) -> str:
        """Return a list for messages; empty if there are none."""
        words = ("waiting for an operator's approval", "draining", "not assigned to it")
        return ", ".join(f"{count} {word}" for count, word in zip(self, words, strict=True) if count)


def count_unavailable(fleet: Iterable[Worker], kind: str) -> UnavailableWorkers:
    """Count the workers that offer a kind but may not claim it."""
    able = [worker for worker in fleet if kind in msgspec.json.decode(worker.offered)]
    pending = [worker for worker in able if worker.status == "pending"]
    draining = [worker for worker in able if worker.status == "approved" and worker.draining_at is not None]
    others = [worker for worker in able if worker.status == "approved" and worker.draining_at is None]
    return UnavailableWorkers(len(pending), len(draining), sum(kind not in allowed_kinds(worker) for worker in others))
