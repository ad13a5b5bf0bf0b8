"""Lease checks: whether a report comes from the worker that holds the newest lease of the task.

A lease is a token and an epoch (the attempt's number). Only the token of the newest epoch is valid, and only until the
lease expires: an expired lease is refused whether or not the sweeper has processed it.
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


def is_newest_lease(task: Task, lease: Lease) -> bool:
    """Return whether a lease is the newest of its task."""
    return (task.token_hash, task.attempts) == (hash_token(lease.token), lease.attempt)


def has_expired(task: Task, now: int) -> bool:
    """Return whether the newest lease of a task has expired."""
    return task.lease_expires_at is not None and task.lease_expires_at <= now


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
    if command.worker_id in {None, task.worker_id} and is_newest_lease(task, lease):
        if has_expired(task, ws.now):
            raise LeaseLost
        return ws.get(Job, task.job_id), task
    attempt = find_attempt(ws, command)
    if attempt is None:
        raise NotFound("lease", lease.task_id[:80])
    if attempt.ended_at is None:  # the task was handed off to the collector, which reports from now on
        raise LeaseLost
    return attempt


def find_attempt(ws: WorkingSet, command: LeaseCommand) -> Attempt | None:
    """Return the attempt that a lease belongs to, ended or not, if the caller is its worker."""
    lease = command.lease
    attempt = ws.find(Attempt, (lease.task_id, lease.attempt))
    if attempt is None or attempt.token_hash != hash_token(lease.token):
        return None
    return attempt if command.worker_id in {None, attempt.worker_id} else None
