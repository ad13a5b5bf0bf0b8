"""Blocking reads, for threads, on connections of their own."""

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from callsheet.core.decisions.money import wallet_id
from callsheet.core.model.errors import NotFound
from callsheet.core.model.rows import Attempt, Document, Event, Job, LedgerEntry, Run, Stage, Task, Wallet
from callsheet.store.connection import Connection, ConnectionLost, Database

_NEWEST_MAX = 10_000
"""How many runs of a job, and attempts of a task, are read at most. Retries are not limited."""


class PositionedEvent(tuple[int, int, Event]):
    """An event with its position in the global order: transaction, id, event."""

    __slots__ = ()

    @property
    def position(self) -> tuple[int, int]:
        return self[0], self[1]

    @property
    def event(self) -> Event:
        return self[2]


class BlockingReader:
    """Reads rows with a fixed number of connections."""

    def __init__(self, database: Database, readers: int) -> None:
        self._database = database
        self._closed = False
        self._idle: queue.LifoQueue[Connection | None] = queue.LifoQueue()
        for _ in range(readers):
            self._idle.put(None)

    def fetch(self, query: str, /, **parameters: Any) -> Sequence[Sequence[Any]]:
        """Run a named query. A connection that was lost while idle is replaced once."""
        try:
            with self._connection() as connection:
                return connection.fetch(query, **parameters)
        except ConnectionLost:
            with self._connection() as connection:
                return connection.fetch(query, **parameters)

    def now(self) -> int:
        """Return the engine's time."""
        with self._connection() as connection:
            return connection.now()

    def engine_time(self, database_time: int) -> int:
        """Return the engine's time for a reading of the database's clock, the query `clock`."""
        return self._database.clock.read(database_time)

    def sync_clock(self) -> None:
        """Make sure that the engine's time is not before the newest stored time."""
        self._database.clock.advance_to(self.fetch("newest_time")[0][0] or 0)

    def job(self, tenant: str, job_id: str) -> Job:
        """Return a job of a tenant. Jobs of other tenants and deleted jobs are not found."""
        rows = self.fetch("job_of_tenant", id=job_id, tenant=tenant)
        if not rows:
            raise NotFound("job", job_id[:80])
        return Job(*rows[0])

    def runs(self, job_id: str) -> list[Run]:
        """Return the newest runs of a job, oldest first."""
        return [Run(*row) for row in reversed(self.fetch("runs_of", id=job_id, most=_NEWEST_MAX))]

    def stages(self, job_id: str) -> list[Stage]:
        return [Stage(*row) for row in self.fetch("stages_of", id=job_id)]

    def tasks(self, job_id: str) -> list[Task]:
        return [Task(*row) for row in self.fetch("tasks_of_job", id=job_id)]

    def attempts(self, task_id: str) -> list[Attempt]:
        """Return the newest attempts of a task, oldest first."""
        return [Attempt(*row) for row in reversed(self.fetch("attempts_of", id=task_id, most=_NEWEST_MAX))]

    def documents(self, job_id: str) -> list[Document]:
        return [Document(*row) for row in self.fetch("documents_of", id=job_id)]

    def wallet(self, tenant: str, user: str) -> Wallet:
        """Return a user's wallet; one that was never used is empty."""
        name = wallet_id(tenant, user)
        rows = self.fetch("wallet_of", id=name)
        return Wallet(*rows[0]) if rows else Wallet(name, tenant, user, 0, 0, 0, 0, 0)

    def ledger(self, tenant: str, user: str, after: int = 0, count: int = 1_000) -> list[LedgerEntry]:
        return [
            LedgerEntry(*row)
            for row in self.fetch("ledger_after", id=wallet_id(tenant, user), after=after, count=count)
        ]

    def events(self, job_id: str, after: int = 0, count: int = 1_000) -> list[Event]:
        """Return a job's events in the order of their numbers, which have no gaps."""
        return [Event(*row[2:]) for row in self.fetch("events_of", subject=job_id, after=after, count=count)]

    def feed(self, tx: int = 0, position: int = 0, count: int = 1_000) -> list[PositionedEvent]:
        """Return events in the global order. A later commit never appears before a position already read."""
        rows = self.fetch("events_after", tx=tx, position=position, count=count)
        return [PositionedEvent((row[1], row[0], Event(*row[2:]))) for row in rows]

    def feed_end(self) -> tuple[int, int]:
        """Return the position of the last event in the feed."""
        rows = self.fetch("feed_end", tx=0, position=0)
        return (rows[0][0], rows[0][1]) if rows else (0, 0)

    def subjects_not_yet_visible(self, tx: int, position: int, count: int = 1_000) -> list[str]:
        """Return the subjects of events after a position that are committed, but not in the feed yet."""
        return [row[0] for row in self.fetch("subjects_not_yet_visible", tx=tx, position=position, count=count)]

    def close(self) -> None:
        """Close the connections: idle ones now, others when their read ends. Later reads fail."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        """Replace the idle connections by empty slots, so that a waiting read wakes up and fails."""
        taken: list[Connection | None] = []
        with suppress(queue.Empty):
            while True:
                taken.append(self._idle.get_nowait())
        for connection in taken:
            if connection is not None:
                connection.close()
            self._idle.put(None)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        connection = self._idle.get()
        try:
            connection = connection or self._connect()
            yield connection
        except ConnectionLost:
            if connection is not None:
                connection.close()
                connection = None
            raise
        finally:
            self._idle.put(connection)
            if self._closed:
                self._close_idle()

    def _connect(self) -> Connection:
        if self._closed:
            raise ConnectionLost("The engine is closed.")
        return self._database.connect(reading=True)
