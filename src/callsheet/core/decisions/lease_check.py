"""Lease checks: whether a report comes from the worker that holds the newest lease of the task.

A lease is a token and an epoch (the attempt's number). Only the token of the newest epoch is valid.
"""

import hashlib
from typing import Protocol

from callsheet.core.model.commands import Lease
from callsheet.core.model.errors import LeaseLost, NotFound
from callsheet.core.model.rows import Attempt, Job, Task
from callsheet.core.working_set import WorkingSet


def hash_token(token: str) -> str:
    """Return the hash of a token; only the hash is stored."""
    return hashlib.sha256(token.encode()).hexdigest()


class LeaseCommand(Protocol):
    """A command about a leased task; `worker_id` is None when the caller is not a registered worker."""

    @property
    def lease(self) -> Lease: ...
    @property
    def worker_id(self) -> str | None: ...


def get_leased_task(ws: WorkingSet, command: LeaseCommand) -> tuple[Job, Task]:
    """Return the job and task of a live lease. Raises `LeaseLost` if it has ended, `NotFound` if it is unknown."""
    live = find_lease(ws, command)
    if isinstance(live, Attempt):
        raise LeaseLost
    return live


def find_lease(ws: WorkingSet, command: LeaseCommand) -> tuple[Job, Task] | Attempt:
    """Return the job and task of a live lease, or the ended attempt that the lease belonged to."""
    lease = command.lease
    task = ws.find(Task, lease.task_id)
    if task is None or task.job_id != lease.job_id:
        raise NotFound("task", lease.task_id[:80])
    token_hash = hash_token(lease.token)
    owns_lease = command.worker_id in {None, task.worker_id}
    # Uploads of output files check the same condition in a query of their own.
    if owns_lease and (task.token_hash, task.attempts) == (token_hash, lease.attempt):
        return ws.get(Job, task.job_id), task
    attempt = ws.find(Attempt, (lease.task_id, lease.attempt))
    if attempt is None or attempt.token_hash != token_hash or command.worker_id not in {None, attempt.worker_id}:
        raise NotFound("lease", lease.task_id[:80])
    if attempt.ended_at is None:  # the task was handed off to the collector, which reports from now on
        raise LeaseLost
    return attempt
