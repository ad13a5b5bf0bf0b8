"""The interface between engine and database: connections that run named queries and write rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from callsheet.core.model.rows import Row

NamedQuery = tuple[str, Mapping[str, Any]]
"""A named query and its parameters."""
Rows = Sequence[Sequence[Any]]


class StoreError(Exception):
    """Base class of database errors."""


class ConnectionLost(StoreError):  # noqa: N818 - says what happened
    """The connection was lost. The transaction may or may not have been committed."""


class TransactionConflict(StoreError):  # noqa: N818 - says what happened
    """A deadlock, lock timeout or serialization failure. Nothing was written; retry."""


class UniqueConflict(TransactionConflict):
    """A unique conflict with a concurrent transaction. A retry sees the other row; retry once, then fail."""


class DatabaseUnusable(ConnectionLost):
    """The database answers, but cannot be used until an operator acts. The message is a sentence that says what to do.

    It stays so until then, so a caller reports it at once instead of retrying.
    """


DISK_FULL = "The disk of the database is full. Free space on it."
READ_ONLY = "The database is read-only. Make its disk writable, or connect to the primary server."
MISSING_RIGHTS = "The database refuses this server's user. Grant it all rights on the tables of Callsheet."
DISK_ERROR = "The disk of the database cannot be read or written. Check the disk and its mount."
DAMAGED = "The database is damaged. Restore it from a backup."


class EngineClock(Protocol):
    """Turns readings of the database's clock into the engine's time."""

    def advance_to(self, at: int) -> None:
        """Make sure that the engine's time is not before a stored time."""
        ...

    def read(self, database_time: int) -> int:
        """Return the engine's time for a reading of the database's clock."""
        ...


class Connection(Protocol):
    """One connection to the database. Not thread-safe."""

    def begin(self) -> None:
        """Begin a read-write transaction."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def rollback(self) -> None:
        """Roll the transaction back."""
        ...

    def now(self) -> int:
        """Return the engine's time in microseconds; in a transaction, not earlier than its last read."""
        ...

    def version(self) -> int | None:
        """Return a number that changes when another connection writes; None if not supported."""
        ...

    def fetch(self, query: str, /, **parameters: Any) -> Rows:
        """Read the rows of a named query."""
        ...

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        """Run several named queries in order, with as few round trips as possible."""
        ...

    def run(self, text: str, /, **parameters: Any) -> Rows:
        """Run a trusted SQL text, such as a check or a migration, with parameters such as `:name`."""
        ...

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        """Insert rows."""
        ...

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        """Update rows."""
        ...

    def push(self) -> None:
        """Send buffered writes without waiting for their results."""
        ...

    def notify(self, kinds: Iterable[str]) -> None:
        """Notify other processes after the commit which kinds have new work."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Database(Protocol):
    """Opens connections to one database."""

    name: str
    lanes: int
    """How many connections may write at once."""

    @property
    def clock(self) -> "EngineClock":
        """The clock of all connections of this process."""
        ...

    def connect(self, *, reading: bool = False) -> Connection:
        """Open a connection."""
        ...
