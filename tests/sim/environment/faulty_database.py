"""A database that fails: before a statement, at commit, after the commit; and servers that die in between."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from callsheet.core.model.rows import Row
from callsheet.store.connection import Connection, ConnectionLost, NamedQuery, Rows, TransactionConflict
from callsheet.store.sqlite import SqliteDatabase
from tests.sim.environment.simulation_context import World

_BEFORE_COMMIT, _AFTER_COMMIT = 100, 101
_FAULT_POINTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, *(_BEFORE_COMMIT,) * 3, *(_AFTER_COMMIT,) * 7)


class Crash(BaseException):
    """The server process is gone: no `finally` of it counts, all that it knew is lost."""


class PlannedFault(NamedTuple):
    """What goes wrong in one transaction, and where."""

    kind: str
    at: int


class FaultInjectingDatabase:
    """The life's SQLite file, as one server reaches it."""

    name = "sqlite"
    lanes = 1

    def __init__(self, world: World, path: Path, on_commit: Callable[[], None]) -> None:
        self._world = world
        self._inner = SqliteDatabase(path)
        self._on_commit = on_commit

    def connect(self, *, reading: bool = False) -> "FaultInjectingConnection":
        if self._world.fault_occurs(0.01):
            raise ConnectionLost("the database cannot be reached")
        inner = self._inner.connect(reading=reading)
        if not reading:
            inner.run("PRAGMA synchronous = OFF")
        return FaultInjectingConnection(self._world, inner, self._on_commit, reading=reading)


class FaultInjectingConnection:
    """A connection on which a transaction may break, each in at most one place."""

    def __init__(self, world: World, inner: Connection, on_commit: Callable[[], None], *, reading: bool) -> None:
        self._world = world
        self._inner = inner
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
        return self._world.clock.now()

    def version(self) -> int | None:
        return self._inner.version()

    def fetch(self, query: str, /, **parameters: Any) -> Rows:
        self._count_statement()
        if self._reading and self._world.fault_occurs(0.01):
            self._raise_fault(PlannedFault("lost", self._statement_count))
        return self._inner.fetch(query, **parameters)

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        return [self.fetch(query, **parameters) for query, parameters in named_queries]

    def run(self, text: str) -> Rows:
        return self._inner.run(text)

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
            raise ConnectionLost("the connection is gone")
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
            raise TransactionConflict("a deadlock, so they say")
        self._closed = True
        if fault.kind == "crash":
            raise Crash
        raise ConnectionLost("the connection broke")
