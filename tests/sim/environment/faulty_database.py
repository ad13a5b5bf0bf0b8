"""A database that fails before a statement, before or after a commit, and crashes of the server at these points."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Row
from callsheet.store.connection import Connection, ConnectionLost, NamedQuery, Rows, TransactionConflict
from callsheet.store.sqlite import SqliteDatabase
from callsheet.store.steady_clock import SteadyClock
from tests.sim.environment.simulation_context import World

_BEFORE_COMMIT, _AFTER_COMMIT = 100, 101
_FAULT_POINTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, *(_BEFORE_COMMIT,) * 3, *(_AFTER_COMMIT,) * 7)


class Crash(BaseException):
    """The server process is killed: its state in memory is lost."""


class PlannedFault(NamedTuple):
    """The fault of one transaction, and its point."""

    kind: str
    at: int


class FaultInjectingDatabase:
    """The SQLite file of the simulation, with faults on the connections of one server."""

    name = "sqlite"
    lanes = 1

    def __init__(self, world: World, path: Path, on_commit: Callable[[], None]) -> None:
        self._world = world
        self._inner = SqliteDatabase(path)
        self._on_commit = on_commit
        self.clock = SteadyClock()
        self._behind = 0
        """How far the time of the current batch is behind that of the other servers."""
        self._clock_reader = self._inner.connect(reading=True)

    def restart_clock(self) -> None:
        """Start a new clock, as a new process does: it knows only the stored times."""
        self.clock = SteadyClock()
        self.sync_clock()

    def sync_clock(self) -> None:
        """Do what the loop for it does in a real server, every few seconds."""
        self.clock.advance_to(self._clock_reader.fetch("newest_time")[0][0] or 0)

    def now(self) -> int:
        """Return the engine's time of this server."""
        return self.clock.read(self._world.clock.now())

    def begin_batch(self) -> None:
        """Let the time of the next batch sometimes be behind."""
        self._behind = self._world.random.choice((1, 600, 3_600)) * SECOND if self._world.fault_occurs(0.02) else 0

    def batch_time(self) -> int:
        """Return the time of the current or the last batch."""
        return self.now() - self._behind

    def close(self) -> None:
        self._clock_reader.close()

    def connect(self, *, reading: bool = False) -> "FaultInjectingConnection":
        if self._world.fault_occurs(0.01):
            raise ConnectionLost("the database cannot be reached")
        inner = self._inner.connect(reading=reading)
        if not reading:
            inner.run("PRAGMA synchronous = OFF")
        return FaultInjectingConnection(self._world, inner, self, self._on_commit, reading=reading)


class FaultInjectingConnection:
    """A connection on which each transaction has at most one fault."""

    def __init__(
        self, world: World, inner: Connection, database: FaultInjectingDatabase, on_commit: Callable[[], None], *,
        reading: bool,
    ) -> None:  # fmt: skip
        self._world = world
        self._inner = inner
        self._database = database
        self._reading = reading
        self._on_commit = on_commit
        self._fault: PlannedFault | None = None
        self._statement_count = 0
        self._closed = False

    def begin(self) -> None:
        self._fault = self._draw_fault()
        self._statement_count = -1
        self._count_statement()
        self._inner.begin()

    def commit(self) -> None:
        fault = self._fault
        if fault is not None and fault.at != _AFTER_COMMIT:
            self._raise_fault(fault)
        self._inner.commit()
        self._world.commits += 1
        self._on_commit()
        if fault is not None:
            self._raise_fault(fault)

    def rollback(self) -> None:
        if not self._closed:
            self._inner.rollback()

    def now(self) -> int:
        return self._database.now() if self._reading else self._database.batch_time()

    def version(self) -> int | None:
        return self._inner.version()

    def fetch(self, query: str, /, **parameters: Any) -> Rows:
        self._count_statement()
        if self._reading and self._world.fault_occurs(0.01):
            self._raise_fault(PlannedFault("lost", self._statement_count))
        return self._inner.fetch(query, **parameters)

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        return [self.fetch(query, **parameters) for query, parameters in named_queries]

    def run(self, text: str, /, **parameters: Any) -> Rows:
        return self._inner.run(text, **parameters)

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._count_statement()
        self._inner.insert(row, rows)

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._count_statement()
        self._inner.update(row, rows)

    def push(self) -> None:
        self._count_statement()
        self._inner.push()

    def notify(self, kinds: Iterable[str]) -> None:
        self._inner.notify(kinds)

    def close(self) -> None:
        self._closed = True
        self._inner.close()

    def _draw_fault(self) -> PlannedFault | None:
        if not self._world.fault_occurs(0.09):
            return None
        kind = self._world.random.choice(("contended", "lost", "lost", "crash"))
        at = self._world.random.choice(_FAULT_POINTS)
        return PlannedFault(kind, _BEFORE_COMMIT if kind == "contended" and at == _AFTER_COMMIT else at)

    def _count_statement(self) -> None:
        if self._closed:
            raise ConnectionLost("the connection is closed")
        self._statement_count += 1
        if self._fault is not None and self._fault.at == self._statement_count:
            self._raise_fault(self._fault)

    def _raise_fault(self, fault: PlannedFault) -> None:
        where = {_BEFORE_COMMIT: "before commit", _AFTER_COMMIT: "after commit"}.get(
            fault.at, f"at {self._statement_count}"
        )
        self._world.log(f"  fault: {fault.kind} {where}")
        self._fault = None
        self._inner.rollback()
        if fault.kind == "contended":
            raise TransactionConflict("an injected deadlock")
        self._closed = True
        if fault.kind == "crash":
            raise Crash
        raise ConnectionLost("the connection broke")
