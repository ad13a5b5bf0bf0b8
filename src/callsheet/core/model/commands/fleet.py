"""Commands for the fleet: registration of workers and their administration."""

from msgspec import Struct

from callsheet.core.model.commands.base import Command, Json


class Register(Command, frozen=True, kw_only=True, gc=False):
    """Register a worker under a name. A known name is a restart: leased tasks that it does not run are requeued."""

    worker_id: str
    kinds: tuple[str, ...]
    token_hash: str
    concurrency: int = 1
    capabilities: dict[str, Json] | None = None
    labels: dict[str, str] | None = None
    approved: bool = True
    """Whether a new worker may claim tasks without the approval of an operator."""
    held_task_ids: tuple[str, ...] = ()
    """Leased tasks that the worker is running: it registers again because its token was replaced."""


class Deregister(Command, frozen=True, kw_only=True, gc=False):
    """Deregister a worker; its leased tasks are requeued."""

    worker_id: str
    token_hash: str
    """Hash of the worker's token. A restarted worker has another one."""
    reason: str = ""


class UpdateWorker(Command, frozen=True, kw_only=True, gc=False):
    """Approve or drain a worker, or assign its kinds. None leaves a value unchanged."""

    worker_id: str
    approved: bool | None = None
    draining: bool | None = None
    kinds: tuple[str, ...] | None = None
    """The offered kinds that the worker may claim; empty for all of them."""


class RevokeWorker(Command, frozen=True, kw_only=True, gc=False):
    """Revoke a worker: its token becomes invalid at once and its leased tasks are requeued."""

    worker_id: str


class RotateWorker(Command, frozen=True, kw_only=True, gc=False):
    """Replace a worker's token; the old one becomes invalid at once."""

    worker_id: str
    token_hash: str


class RecordHeartbeats(Command, frozen=True, kw_only=True, gc=False):
    """Record heartbeats of many workers in one write, so that an idle fleet writes little."""

    workers: tuple[str, ...]


class TickWorker(Command, frozen=True, kw_only=True, gc=False):
    """Check a worker that has sent no heartbeat for long: it becomes offline and frees its place."""

    worker_id: str


class WorkerState(Struct, frozen=True, gc=False):
    """A worker after a change, and how many of its tasks were requeued."""

    worker_id: str
    status: str
    kinds: tuple[str, ...]
    requeued: int = 0
