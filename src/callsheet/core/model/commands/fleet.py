"""The fleet: workers that come over HTTP, and what an operator does with them."""

from msgspec import Struct

from callsheet.core.model.commands.base import Command, Json


class Register(Command, frozen=True, kw_only=True, gc=False):
    """Let a worker in under a name; the same name again is a restart, and what it held is given back."""

    worker_id: str
    kinds: tuple[str, ...]
    token_hash: str
    concurrency: int = 1
    capabilities: dict[str, Json] | None = None
    labels: dict[str, str] | None = None
    approved: bool = True
    """Whether a new worker may take work before an operator has looked at it."""


class Deregister(Command, frozen=True, kw_only=True, gc=False):
    """Let a worker go; what it held is given back."""

    worker_id: str
    session: str
    """The hash of the token it came with: a worker that was started again is another one."""
    reason: str = ""


class UpdateWorker(Command, frozen=True, kw_only=True, gc=False):
    """Approve, drain, assign kinds; what is None stays as it is."""

    worker_id: str
    approved: bool | None = None
    draining: bool | None = None
    kinds: tuple[str, ...] | None = None
    """Of what it offers it may take these; none at all is everything."""


class RevokeWorker(Command, frozen=True, kw_only=True, gc=False):
    """Let a worker in no longer: its token fails at once, what it held is given back."""

    worker_id: str


class RotateWorker(Command, frozen=True, kw_only=True, gc=False):
    """Give a worker another token; the old one fails at once."""

    worker_id: str
    token_hash: str


class RecordHeartbeats(Command, frozen=True, kw_only=True, gc=False):
    """Note that workers were heard of, many at once and seldom: an idle fleet writes next to nothing."""

    workers: tuple[str, ...]


class TickWorker(Command, frozen=True, kw_only=True, gc=False):
    """Look at a worker that was not heard of for long: it makes room for others."""

    worker_id: str


class WorkerState(Struct, frozen=True, gc=False):
    """A worker after a change, and how many tasks it had to give back."""

    worker_id: str
    status: str
    kinds: tuple[str, ...]
    requeued: int = 0
