"""Who takes a kind of work: from leases first, so that a worker on a long task never vanishes, then from the fleet."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from callsheet.core.claim import kinds_of
from callsheet.core.rows import Worker


class Held(NamedTuple):
    """What a worker holds of one kind: how many leases, and since when the oldest."""

    worker_id: str
    kind: str
    leases: int
    leased_at: int


class Crew:
    """The workers of one kind."""

    __slots__ = ("busy", "capacity", "free", "leased_at", "running", "workers")

    def __init__(self) -> None:
        self.workers: set[str] = set()
        self.busy: set[str] = set()
        self.running = 0
        self.capacity = 0
        self.free = 0
        self.leased_at: int | None = None


def crews(fleet: Iterable[Worker], held: Iterable[Held], heard_since: int) -> dict[str, Crew]:
    """Count workers and their places by kind. A draining one, and one nobody registered, counts by what it holds."""
    in_hand = list(held)
    leases: Counter[str] = Counter()
    for one in in_hand:
        leases[one.worker_id] += one.leases
    found: dict[str, Crew] = {}
    for worker in fleet:
        lives = worker.seen_at >= heard_since or leases[worker.id]
        if worker.status != "approved" or worker.draining_at is not None or not lives:
            continue
        for kind in kinds_of(worker):
            crew = found.setdefault(kind, Crew())
            crew.workers.add(worker.id)
            crew.capacity += worker.concurrency
            crew.free += max(worker.concurrency - leases[worker.id], 0)
    for one in in_hand:
        crew = found.setdefault(one.kind, Crew())
        if one.worker_id not in crew.workers:
            crew.workers.add(one.worker_id)
            crew.capacity += one.leases
        crew.busy.add(one.worker_id)
        crew.running += one.leases
        crew.leased_at = min(crew.leased_at or one.leased_at, one.leased_at)
    return found


class Absent(NamedTuple):
    """Why workers that offer a kind do not take it, and how many."""

    pending: int = 0
    draining: int = 0
    unassigned: int = 0

    def __str__(self) -> str:
        """Say it, or nothing if there are none."""
        words = ("waiting for an operator's approval", "draining", "not assigned to it")
        return ", ".join(f"{count} {word}" for count, word in zip(self, words, strict=True) if count)


def absent(fleet: Iterable[Worker], kind: str) -> Absent:
    """Count the workers that could do a kind and may not."""
    able = [worker for worker in fleet if kind in msgspec.json.decode(worker.offered)]
    pending = [worker for worker in able if worker.status == "pending"]
    draining = [worker for worker in able if worker.status == "approved" and worker.draining_at is not None]
    others = [worker for worker in able if worker.status == "approved" and worker.draining_at is None]
    return Absent(len(pending), len(draining), sum(kind not in kinds_of(worker) for worker in others))
