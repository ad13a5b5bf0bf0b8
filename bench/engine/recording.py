"""Databases that record what the engine writes, so that bare SQL can write the same rows again.

Only references to the rows are kept while the clock runs: a few calls per transaction.
"""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from callsheet.core.model.rows import Row
from callsheet.store.connection import Connection, Database
from callsheet.store.postgres import PostgresDatabase
from callsheet.store.sqlite import SqliteDatabase


class Write(NamedTuple):
    """Rows of one table that one call wrote."""

    new: bool
    row: type[Row]
    rows: list[Row]


class Transaction(NamedTuple):
    """One committed transaction: its writes, and the ticks of its first write and its commit."""

    began: int
    ended: int
    writes: list[Write]


class WriteLog:
    """The transactions of each connection."""

    def __init__(self) -> None:
        self.lanes: list[list[Transaction]] = []
        self._mark = 0
        self._ticks = itertools.count()

    def tick(self) -> int:
        return next(self._ticks)

    def lane(self) -> list[Transaction]:
        self.lanes.append([])
        return self.lanes[-1]

    def split_at_mark(self) -> tuple[list[list[Transaction]], list[list[Transaction]]]:
        """Split the log at the mark: set-up before it, measured work after it."""
        before = [[t for t in lane if t.ended < self._mark] for lane in self.lanes]
        after = [[t for t in lane if t.ended >= self._mark] for lane in self.lanes]
        return before, after

    @property
    def commits(self) -> int:
        """The number of commits since the mark."""
        return sum(len(lane) for lane in self.split_at_mark()[1])

    def mark(self) -> None:
        """Mark the start of the measured work."""
        self._mark = self.tick()


class RecordingConnection:
    """A connection that records its writes and forwards every call."""

    def __init__(self, inner: Connection, log: WriteLog) -> None:
        self._inner = inner
        self._log = log
        self._lane = log.lane()
        self._began = 0
        self._writes: list[Write] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._inner.insert(row, self._record(row, rows, new=True))

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._inner.update(row, self._record(row, rows, new=False))

    def commit(self) -> None:
        self._inner.commit()
        self._lane.append(Transaction(self._began, self._log.tick(), self._writes))
        self._writes = []

    def rollback(self) -> None:
        self._inner.rollback()
        self._writes = []

    def _record(self, row: type[Row], rows: Iterable[Row], *, new: bool) -> list[Row]:
        if not self._writes:
            self._began = self._log.tick()
        recorded = list(rows)
        self._writes.append(Write(new, row, recorded))
        return recorded


class RecordingSqlite(SqliteDatabase):
    """A SQLite file whose writing connections record."""

    log: WriteLog

    def connect(self, *, reading: bool = False) -> Any:
        inner = super().connect(reading=reading)
        return inner if reading else RecordingConnection(inner, self.log)


class RecordingPostgres(PostgresDatabase):
    """A PostgreSQL database whose writing connections record."""

    log: WriteLog

    def connect(self, *, reading: bool = False) -> Any:
        inner = super().connect(reading=reading)
        return inner if reading else RecordingConnection(inner, self.log)


def recording(dsn: str, lanes: int) -> tuple[Database, WriteLog]:
    """Return a database that records into a log."""
    log = WriteLog()
    postgresql = dsn.startswith("postgresql://")
    database = RecordingPostgres(dsn, lanes=lanes) if postgresql else RecordingSqlite(dsn)
    database.log = log
    return database, log
