"""Commands of the background loops: due timers, and the cursors of event readers."""

from msgspec import Struct

from callsheet.core.model.commands.base import Command


class TickJob(Command, frozen=True, kw_only=True, gc=False):
    """Apply what is due for a job: its start time, its deadline, or the end of a grace period."""

    job_id: str


class TickTask(Command, frozen=True, kw_only=True, gc=False):
    """Apply what is due for a task: the end of its lease or of its backoff."""

    job_id: str
    task_id: str


class AcquireCursor(Command, frozen=True, kw_only=True, gc=False):
    """Lock a named cursor of the event order for `lock_seconds`."""

    name: str
    holder: str
    lock_seconds: int = 60


class AdvanceCursor(Command, frozen=True, kw_only=True, gc=False):
    """Advance a cursor and release its lock."""

    name: str
    holder: str
    tx: int
    position: int


class CursorPosition(Struct, frozen=True, gc=False):
    """A position in the global event order; `reserved` says whether the caller holds the lock."""

    tx: int
    position: int
    reserved: bool = True
