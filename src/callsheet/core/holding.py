"""Who holds what: a lease is a token and an epoch, the attempt's number; only the newest epoch's token counts."""

import hashlib
from typing import Protocol

from callsheet.core.commands import Lease
from callsheet.core.errors import LeaseLost, Unknown
from callsheet.core.rows import Attempt, Job, Task
from callsheet.core.working import WorkingSet


def hashed(token: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Holding(Protocol):
    """A command about a task in hand; who says so, where the edge knows."""

    @property
    def lease(self) -> Lease: ...
    @property
    def worker_id(self) -> str | None: ...


def held(ws: WorkingSet, command: Holding) -> tuple[Job, Task]:
    """Return the job and task of a live lease; one that has ended is lost, one that never was is unknown."""
    live = held_or_past(ws, command)
    if isinstance(live, Attempt):
        raise LeaseLost
    return live


def held_or_past(ws: WorkingSet, command: Holding) -> tuple[Job, Task] | Attempt:
    """Return what a live lease holds, or the attempt that this very lease was."""
    lease = command.lease
    task = ws.find(Task, lease.task_id)
    if task is None or task.job_id != lease.job_id:
        raise Unknown("task", lease.task_id[:80])
    mark = hashed(lease.token)
    mine = command.worker_id in {None, task.worker_id}
    if mine and (task.token_hash, task.attempts) == (mark, lease.attempt):  # the edge looks for the same, file by file
        return ws.get(Job, task.job_id), task
    attempt = ws.find(Attempt, (lease.task_id, lease.attempt))
    if attempt is None or attempt.token_hash != mark or command.worker_id not in {None, attempt.worker_id}:
        raise Unknown("lease", lease.task_id[:80])
    if attempt.ended_at is None:  # the work was handed over, and is another's to report
        raise LeaseLost
    return attempt
