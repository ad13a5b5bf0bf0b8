"""The base class of commands, and the lease that several of them carry."""

from typing import Any

from msgspec import Struct

Json = Any


class Command(Struct, frozen=True, kw_only=True, gc=False):
    """A request to the engine that one decision accepts or refuses.

    `id` is generated before the command first runs. It stays the same when the engine retries the command after a
    lost connection.
    """

    id: str = ""
    requested_by: str = ""
    """Who sent the command, for the audit log: the id of an API key, a worker, or a program."""


class Lease(Struct, frozen=True, gc=False):
    """The exclusive right to work on a task until it expires. Send it unchanged with every request about the task."""

    job_id: str
    """Id of the job."""
    task_id: str
    """Id of the task."""
    attempt: int
    """Number of the attempt. Requests with an earlier number are refused."""
    token: str
    """Secret of the lease."""
