"""A reference model of workers: which are registered and approved, what they may claim, and what is requeued.

It extends the model of jobs in engine_model.py.
"""

from collections.abc import Collection
from dataclasses import dataclass

from callsheet.core.model.clock import SECOND
from tests.support.engine.engine_model import JobModel, Model, ModelRefusal, TaskModel

LIVE = frozenset({"pending", "approved"})


@dataclass
class WorkerModel:
    """A worker."""

    status: str = "offline"
    approved: bool = False
    token: str | None = None
    offered: tuple[str, ...] = ()
    assigned: tuple[str, ...] | None = None
    concurrency: int = 1
    starts: int = 0
    draining: bool = False
    last_seen_at: int = 0

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in self.offered if self.assigned is None or kind in self.assigned)

    @property
    def seen(self) -> tuple[object, ...]:
        return self.status, self.approved, self.token, self.concurrency, self.starts, self.draining, self.last_seen_at


class FleetModel:
    """All workers, by name."""

    def __init__(self, model: Model, workers_max: int, timeout_seconds: int) -> None:
        self.model = model
        self.workers_max = workers_max
        self.timeout = timeout_seconds * SECOND
        self.workers: dict[str, WorkerModel] = {}

    def tasks_of(self, name: str) -> list[tuple[JobModel, TaskModel]]:
        """Return the tasks that a worker has leased, the oldest first."""
        both = ((job, task) for job in self.model.jobs.values() for task in job.tasks)
        return sorted(((job, task) for job, task in both if task.holder == name), key=lambda pair: pair[1].id)

    # -- registration and timeouts: each returns the number of requeued tasks

    def register(
        self, name: str, kinds: tuple[str, ...], token: str, concurrency: int, *, approved: bool,
        running: Collection[str] = (),
    ) -> int:  # fmt: skip
        worker = self.workers.get(name, WorkerModel())
        if worker.status == "revoked":
            raise ModelRefusal("worker_revoked")
        if worker.token == token:
            return 0
        if not worker.live and sum(one.live for one in self.workers.values()) >= self.workers_max:
            raise ModelRefusal("fleet_full")
        worker.approved = worker.approved or (approved and name not in self.workers)
        worker.status = "approved" if worker.approved else "pending"
        worker.token, worker.offered, worker.concurrency = token, tuple(sorted(kinds)), concurrency
        worker.draining = worker.draining and bool(running)
        worker.starts, worker.last_seen_at = worker.starts + 1, self.model.now
        self.workers[name] = worker
        return self._release(name, tuple(running)[:concurrency])

    def deregister(self, name: str, token: str) -> int:
        worker = self.workers.get(name)
        if worker is None or worker.token != token:
            raise ModelRefusal("invalid_worker_token")
        return self._end(name, "offline")

    def revoke(self, name: str) -> int:
        return 0 if self._get_worker(name).status == "revoked" else self._end(name, "revoked")

    def tick(self, name: str) -> int:
        """Set a worker offline if its last contact is too long ago."""
        worker = self._get_worker(name)
        return self._end(name, "offline") if worker.live and worker.last_seen_at + self.timeout <= self.model.now else 0

    def _end(self, name: str, status: str) -> int:
        worker = self.workers[name]
        worker.status, worker.token = status, None
        worker.approved = worker.approved and status != "revoked"
        return self._release(name)

    def _release(self, name: str, known_task_ids: Collection[str] = ()) -> int:
        """Requeue the tasks of a worker except those it knows; a requeue that fails a job also ends its other tasks."""
        released = 0
        for job, task in self.tasks_of(name):
            if task.id not in known_task_ids and task.holder == name:
                self.model.requeue(job, task)
                released += 1
        return released

    # -- the operator

    def rotate(self, name: str, token: str) -> int:
        if not self._get_worker(name).live:
            raise ModelRefusal("worker_ended")
        self.workers[name].token = token
        return 0

    def approve(self, name: str, *, approved: bool) -> int:
        worker = self._get_worker(name)
        if worker.status == "revoked":
            worker.status = "offline" if approved else "revoked"
        elif worker.live:
            worker.status = "approved" if approved else "pending"
        worker.approved = approved
        return 0

    def drain(self, name: str, *, draining: bool) -> int:
        self._get_worker(name).draining = draining
        return 0

    def assign(self, name: str, *kinds: str) -> int:
        worker = self._get_worker(name)
        if kinds and worker.offered and not set(kinds) & set(worker.offered):
            raise ModelRefusal("kind_not_offered")
        worker.assigned = kinds or None
        return 0

    def record_heartbeat(self, name: str) -> None:
        worker = self.workers.get(name)
        if worker is not None and worker.live:
            worker.last_seen_at = max(worker.last_seen_at, self.model.now)

    def _get_worker(self, name: str) -> WorkerModel:
        if name not in self.workers:
            raise ModelRefusal("worker_not_found")
        return self.workers[name]

    # -- claims

    def claim(self, name: str, token: str, kinds: tuple[str, ...], held_task_ids: Collection[str] | None) -> int:
        """Return how many tasks a worker may claim; tasks that it does not know are requeued first."""
        worker = self.workers.get(name)
        if worker is None or worker.token != token:
            raise ModelRefusal("invalid_worker_token")
        if worker.status == "pending":
            raise ModelRefusal("worker_not_approved")
        if worker.draining:
            raise ModelRefusal("worker_draining")
        if not set(kinds) <= set(worker.kinds):
            raise ModelRefusal("kind_not_assigned")
        known_task_ids = [
            task.id for _, task in self.tasks_of(name) if held_task_ids is None or task.id in held_task_ids
        ]
        if len(known_task_ids) >= worker.concurrency:
            raise ModelRefusal("worker_full")
        self._release(name, known_task_ids)
        return worker.concurrency - len(known_task_ids)
