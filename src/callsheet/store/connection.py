"""The seam between the engine and a database: a connection that reads named queries and writes rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from callsheet.core.model.rows import Row

NamedQuery = tuple[str, Mapping[str, Any]]
"""A named query and what it is given."""
Rows = Sequence[Sequence[Any]]


class StoreError(Exception):
    """The database did not do what was asked."""


class ConnectionLost(StoreError):  # noqa: N818 - says what happened
    """The connection broke: what was under way may or may not have been committed."""


class TransactionConflict(StoreError):  # noqa: N818 - says what happened
    """A deadlock, a lock timeout, a serialization failure: nothing was written; try again."""


class UniqueConflict(TransactionConflict):
    """A unique value was taken meanwhile: whoever looks again sees it. If it clashes still, it never will not."""


class DiskFull(ConnectionLost):
    """The disk has no room left."""


class Connection(Protocol):
    """One connection to the database. Not for two threads at once."""

    def begin(self) -> None:
        """Open a transaction that may write."""
        ...

    def commit(self) -> None:
        """Make it durable."""
        ...

    def rollback(self) -> None:
        """Forget it."""
        ...

    def now(self) -> int:
        """Tell the database's time, in microseconds: in a transaction, not before what was last read in it."""
        ...

    def version(self) -> int | None:
        """Return a number that stays the same for as long as nobody but this connection writes; None if none can."""
        ...

    def fetch(self, query: str, /, **parameters: Any) -> Rows:
        """Read the rows of a named query."""
        ...

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        """Read several named queries, one after the other, in as few trips as there can be."""
        ...

    def run(self, text: str) -> Rows:
        """Run SQL of our own making, such as a check or a migration."""
        ...

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        """Write new rows."""
        ...

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        """Write changed rows."""
        ...

    def push(self) -> None:
        """Let what has been written go on its way, without waiting for it."""
        ...

    def notify(self, kinds: Iterable[str]) -> None:
        """Tell other processes, once this is committed, that something happened, and which kinds have work: a hint."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Database(Protocol):
    """Where connections come from."""

    name: str
    lanes: int
    """How many connections may write at once."""

    def connect(self, *, reading: bool = False) -> Connection:
        """Open a connection."""
        ...
