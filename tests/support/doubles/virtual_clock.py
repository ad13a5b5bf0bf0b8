"""Virtual time: a clock that only the test advances, and a database whose connections use it."""

from collections.abc import Iterable
from typing import Any

from callsheet.core.model.clock import seconds
from callsheet.core.model.rows import Row
from callsheet.store.connection import Connection, Database, NamedQuery, Rows
from callsheet.store.steady_clock import SteadyClock

START_MICROS = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z, the start of every test's virtual time."""


class VirtualClock:
    """A clock that stands still until the test advances it."""

    def __init__(self, at: int = START_MICROS) -> None:
        self._at = at

    def now(self) -> int:
        return self._at

    def advance(self, by_seconds: float) -> None:
        """Advance the clock; a negative number sets it back."""
        self._at += seconds(by_seconds)


class VirtualEngineClock(SteadyClock):
    """The engine's time of one server, from virtual time instead of the database's clock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def read(self, database_time: int = 0) -> int:  # noqa: ARG002 - the virtual time counts
        return super().read(self._clock.now())


class VirtualClockDatabase:
    """A database with connections in virtual time, as one server sees it."""

    def __init__(self, inner: Database, clock: VirtualClock) -> None:
        self.inner = inner
        self.clock = VirtualEngineClock(clock)
        self.name = inner.name
        self.lanes = inner.lanes

    def connect(self, *, reading: bool = False) -> "VirtualClockConnection":
        return VirtualClockConnection(self.inner.connect(reading=reading), self.clock)


class VirtualClockConnection:
    """A connection that returns the virtual time; everything else is passed on."""

    def __init__(self, inner: Connection, clock: VirtualEngineClock) -> None:
        self.inner = inner
        self.clock = clock

    def now(self) -> int:
        return self.clock.read()

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

    def run(self, text: str, /, **parameters: Any) -> Rows:
        return self.inner.run(text, **parameters)

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
