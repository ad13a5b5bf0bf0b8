"""Who holds what: a lease is a token and an epoch, the attempt's number; only the newest epoch's token counts."""

import hashlib
from typing import Protocol

from callsheet.core.model.commands import Lease
from callsheet.core.model.errors import LeaseLost, NotFound
from callsheet.core.model.rows import Attempt, Job, Task
from callsheet.core.working_set import WorkingSet


def hash_token(token: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class LeaseCommand(Protocol):
    """A command about a task in hand; who says so, where the edge knows."""

    @property
    def lease(self) -> Lease: ...
    @property
    def worker_id(self) -> str | None: ...


def get_leased_task(ws: WorkingSet, command: LeaseCommand) -> tuple[Job, Task]:
    """Return the job and task of a live lease; one that has ended is lost, one that never was is unknown."""
    live = find_lease(ws, command)
    if isinstance(live, Attempt):
        raise LeaseLost
    return live


def find_lease(ws: WorkingSet, command: LeaseCommand) -> tuple[Job, Task] | Attempt:
    """Return what a live lease holds, or the attempt that this very lease was."""
    lease = command.lease
    task = ws.find(Task, lease.task_id)
    if task is None or task.job_id != lease.job_id:
        raise NotFound("task", lease.task_id[:80])
    token_hash = hash_token(lease.token)
    owns_lease = command.worker_id in {None, task.worker_id}
    if owns_lease and (task.token_hash, task.attempts) == (
        token_hash,
        lease.attempt,
    ):  # the edge looks for the same, file by file
        return ws.get(Job, task.job_id), task
    attempt = ws.find(Attempt, (lease.task_id, lease.attempt))
    if attempt is None or attempt.token_hash != token_hash or command.worker_id not in {None, attempt.worker_id}:
        raise NotFound("lease", lease.task_id[:80])
    if attempt.ended_at is None:  # the work was handed over, and is another's to report
        raise LeaseLost
    return attempt
