"""A database that loses its connection at a commit: before it takes effect, or after."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from callsheet.engine import Engine
from callsheet.settings import Settings
from callsheet.store.connection import Connection, ConnectionLost, Database

FaultPoint = Literal["before", "after"]
FaultPlan = Callable[[], FaultPoint | None]
"""Called at every commit: lose the connection before it, after it, or not at all."""


class FaultyDatabase:
    """A database whose commits fail by plan; `before_reconnect` runs before a lost connection is replaced."""

    def __init__(self, inner: Database, plan: FaultPlan, before_reconnect: Callable[[], None] | None = None) -> None:
        self.inner = inner
        self.plan = plan
        self.before_reconnect = before_reconnect
        self.lost = False
        self.name = inner.name
        self.lanes = inner.lanes
        self.clock = inner.clock

    def connect(self, *, reading: bool = False) -> Connection:
        if self.lost and not reading and self.before_reconnect is not None:
            before_reconnect, self.before_reconnect = self.before_reconnect, None
            before_reconnect()
        inner = self.inner.connect(reading=reading)
        return inner if reading else FaultyConnection(inner, self)


class FaultyConnection:
    """A connection whose commits may fail by plan; everything else is passed on."""

    def __init__(self, inner: Connection, database: FaultyDatabase) -> None:
        self._inner = inner
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> None:
        when = self._database.plan()
        self._database.lost = self._database.lost or when is not None
        if when == "before":
            self._inner.rollback()
            raise ConnectionLost("lost before the commit")
        self._inner.commit()
        if when == "after":
            raise ConnectionLost("lost after the commit")


@contextmanager
def faulty_engine(
    database: Database,
    plan: FaultPlan,
    settings: Settings | None = None,
    before_reconnect: Callable[[], None] | None = None,
) -> Iterator[Engine]:
    """Open another server on a database, with connections that fail by plan."""
    engine = Engine(FaultyDatabase(database, plan, before_reconnect), settings)
    engine.start()
    with engine:
        yield engine


def fail_once(when: FaultPoint) -> FaultPlan:
    """Plan one fault, at the next commit."""
    waiting: list[FaultPoint] = [when]
    return lambda: waiting.pop() if waiting else None
