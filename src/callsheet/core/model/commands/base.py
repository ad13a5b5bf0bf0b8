"""What every command has, and what several need."""

from typing import Any

from msgspec import Struct

Json = Any


class Command(Struct, frozen=True, kw_only=True, gc=False):
    """Something to decide.

    `id` is made before a command first runs and stays the same when it is tried again after a lost connection.
    """

    id: str = ""
    by: str = ""
    """Who asks: a key's id, a user, a program. For the audit log."""


class Lease(Struct, frozen=True, gc=False):
    """The right to work on a task: which one, under which epoch, and the secret that proves it."""

    job_id: str
    """Id of the job."""
    task_id: str
    """Id of the task."""
    attempt: int
    """Number of the attempt. It is the epoch of the lease."""
    token: str
    """Secret of the lease."""
