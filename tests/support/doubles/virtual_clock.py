"""Virtual time: a database whose connections tell the time of a clock that only the test moves."""

from collections.abc import Iterable
from typing import Any

from callsheet.core.model.clock import seconds
from callsheet.core.model.rows import Row
from callsheet.store.connection import Connection, Database, NamedQuery, Rows

START_MICROS = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z, where every test's time begins."""


class VirtualClock:
    """Stands still until it is moved."""

    def __init__(self, at: int = START_MICROS) -> None:
        self._at = at

    def now(self) -> int:
        return self._at

    def advance(self, by_seconds: float) -> None:
        """Move on; a negative number is a clock that was set back."""
        self._at += seconds(by_seconds)


class VirtualClockDatabase:
    """Another database, in virtual time."""

    def __init__(self, inner: Database, clock: VirtualClock) -> None:
        self.inner = inner
        self.clock = clock
        self.name = inner.name
        self.lanes = inner.lanes

    def connect(self, *, reading: bool = False) -> "VirtualClockConnection":
        return VirtualClockConnection(self.inner.connect(reading=reading), self.clock)


class VirtualClockConnection:
    """Everything is the other connection's, but the time."""

    def __init__(self, inner: Connection, clock: VirtualClock) -> None:
        self.inner = inner
        self.clock = clock

    def now(self) -> int:
        return self.clock.now()

    def version(self) -> int | None:
        return self.inner.version()

    def begin(self) -> None:
        self.inner.begin()

    def commit(self) -> None:
        self.inner.commit()

    def rollback(self) -> None:
        self.inner.rollback()

    def fetch(self, query: str, /, **parameters: Any) -> Rows:
        return self.inner.fetch(query, **parameters)

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        return self.inner.fetch_all(named_queries)

    def run(self, text: str) -> Rows:
        return self.inner.run(text)

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self.inner.insert(row, rows)

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        self.inner.update(row, rows)

    def push(self) -> None:
        self.inner.push()

    def notify(self, kinds: Iterable[str]) -> None:
        self.inner.notify(kinds)

    def close(self) -> None:
        self.inner.close()
