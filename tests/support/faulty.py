"""A database that loses its connection at a commit: before it, so that nothing was done, or after it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from callsheet.config import Settings
from callsheet.engine import Engine
from callsheet.store.connection import Connection, ConnectionLost, Database

When = Literal["before", "after"]
Plan = Callable[[], When | None]
"""Asked at every commit: lose the connection before it, after it, or not at all."""


class FaultyDatabase:
    """Another database, with a plan for its commits, and with what others do before a lost connection is replaced."""

    def __init__(self, inner: Database, plan: Plan, between: Callable[[], None] | None = None) -> None:
        self.inner = inner
        self.plan = plan
        self.between = between
        self.lost = False
        self.name = inner.name
        self.lanes = inner.lanes

    def connect(self, *, reading: bool = False) -> Connection:
        if self.lost and not reading and self.between is not None:
            between, self.between = self.between, None
            between()
        inner = self.inner.connect(reading=reading)
        return inner if reading else FaultyConnection(inner, self)


class FaultyConnection:
    """Everything is the other connection's, but a commit may be the last thing that it does."""

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
    database: Database, plan: Plan, settings: Settings | None = None, between: Callable[[], None] | None = None
) -> Iterator[Engine]:
    """Open another server on a database, over connections that break by plan."""
    engine = Engine(FaultyDatabase(database, plan, between), settings)
    engine.start()
    with engine:
        yield engine


def once(when: When) -> Plan:
    """Plan one fault, at the next commit."""
    waiting: list[When] = [when]
    return lambda: waiting.pop() if waiting else None
