"""The clock's own commands, and the places of readers in the event order."""

from msgspec import Struct

from callsheet.core.model.commands.base import Command


class TickJob(Command, frozen=True, kw_only=True, gc=False):
    """Look at a job whose moment has come: its schedule, its deadline, the end of its grace."""

    job_id: str


class TickTask(Command, frozen=True, kw_only=True, gc=False):
    """Look at a task whose moment has come: its lease, its backoff."""

    job_id: str
    task_id: str


class AcquireCursor(Command, frozen=True, kw_only=True, gc=False):
    """Become the one reader of a named place in the event order, for a while."""

    name: str
    holder: str
    lock_seconds: int = 60


class AdvanceCursor(Command, frozen=True, kw_only=True, gc=False):
    """Say how far the reader has come, and let go."""

    name: str
    holder: str
    tx: int
    position: int


class CursorPosition(Struct, frozen=True, gc=False):
    """A place in the global event order."""

    tx: int
    position: int
    reserved: bool = True
