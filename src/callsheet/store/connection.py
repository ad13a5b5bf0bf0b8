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


class DiskFull(ConnectionLost):
    """The disk is full."""


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
        """Return the database's time in microseconds; in a transaction, not earlier than its last read."""
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

    def run(self, text: str) -> Rows:
        """Run a trusted SQL text, such as a check or a migration."""
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

    def connect(self, *, reading: bool = False) -> Connection:
        """Open a connection."""
        ...
