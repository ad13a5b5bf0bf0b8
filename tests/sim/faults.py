"""A database that fails: before a statement, at commit, after the commit; and servers that die in between."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from callsheet.core.rows import Row
from callsheet.store.connection import Ask, Connection, ConnectionLost, Contended, Rows
from callsheet.store.sqlite import SqliteDatabase
from tests.sim.world import World

_BEFORE_COMMIT, _AFTER_COMMIT = 100, 101
_PLACES = (0, 1, 2, 3, 4, 5, 6, 8, 10, *(_BEFORE_COMMIT,) * 3, *(_AFTER_COMMIT,) * 7)


class Crash(BaseException):
    """The server process is gone: no `finally` of it counts, all that it knew is lost."""


class Plan(NamedTuple):
    """What goes wrong in one transaction, and where."""

    kind: str
    at: int


class StormyDatabase:
    """The life's SQLite file, as one server reaches it."""

    name = "sqlite"
    lanes = 1

    def __init__(self, world: World, path: Path, committed: Callable[[], None]) -> None:
        self._world = world
        self._inner = SqliteDatabase(path)
        self._committed = committed

    def connect(self, *, reading: bool = False) -> "StormyConnection":
        if self._world.mishap(0.01):
            raise ConnectionLost("the database cannot be reached")
        inner = self._inner.connect(reading=reading)
        if not reading:
            inner.run("PRAGMA synchronous = OFF")
        return StormyConnection(self._world, inner, self._committed, reading=reading)


class StormyConnection:
    """A connection on which a transaction may break, each in at most one place."""

    def __init__(self, world: World, inner: Connection, committed: Callable[[], None], *, reading: bool) -> None:
        self._world = world
        self._inner = inner
        self._reading = reading
        self._committed = committed
        self._plan: Plan | None = None
        self._done = 0
        self._dead = False

    def begin(self) -> None:
        self._plan = self._planned()
        self._done = -1
        self._step()
        self._inner.begin()

    def commit(self) -> None:
        plan = self._plan
        if plan is not None and plan.at != _AFTER_COMMIT:
            self._strike(plan)
        self._inner.commit()
        self._world.commits += 1
        self._committed()
        if plan is not None:
            self._strike(plan)

    def rollback(self) -> None:
        if not self._dead:
            self._inner.rollback()

    def now(self) -> int:
        return self._world.clock.now()

    def version(self) -> int | None:
        return self._inner.version()

    def fetch(self, query: str, /, **given: Any) -> Rows:
        self._step()
        if self._reading and self._world.mishap(0.01):
            self._strike(Plan("lost", self._done))
        return self._inner.fetch(query, **given)

    def fetch_all(self, asks: Iterable[Ask]) -> list[Rows]:
        return [self.fetch(query, **given) for query, given in asks]

    def run(self, text: str) -> Rows:
        return self._inner.run(text)

    def insert(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._step()
        self._inner.insert(row, rows)

    def update(self, row: type[Row], rows: Iterable[Row]) -> None:
        self._step()
        self._inner.update(row, rows)

    def push(self) -> None:
        self._step()
        self._inner.push()

    def notify(self, kinds: Iterable[str]) -> None:
        self._inner.notify(kinds)

    def close(self) -> None:
        self._dead = True
        self._inner.close()

    def _planned(self) -> Plan | None:
        if not self._world.mishap(0.09):
            return None
        kind = self._world.random.choice(("contended", "lost", "lost", "crash"))
        at = self._world.random.choice(_PLACES)
        return Plan(kind, _BEFORE_COMMIT if kind == "contended" and at == _AFTER_COMMIT else at)

    def _step(self) -> None:
        if self._dead:
            raise ConnectionLost("the connection is gone")
        self._done += 1
        if self._plan is not None and self._plan.at == self._done:
            self._strike(self._plan)

    def _strike(self, plan: Plan) -> None:
        where = {_BEFORE_COMMIT: "before commit", _AFTER_COMMIT: "after commit"}.get(plan.at, f"at {self._done}")
        self._world.say(f"  fault: {plan.kind} {where}")
        self._plan = None
        self._inner.rollback()
        if plan.kind == "contended":
            raise Contended("a deadlock, so they say")
        self._dead = True
        if plan.kind == "crash":
            raise Crash
        raise ConnectionLost("the connection broke")
