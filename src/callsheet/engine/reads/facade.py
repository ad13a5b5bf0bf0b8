"""All reads of an engine: from threads, and from asyncio by key or as a scan.

Each of the three has its own connections. A slow scan never delays a lookup, and no read waits for a write.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from callsheet.engine.reads.batched import BatchedReader
from callsheet.engine.reads.synchronous import BlockingReader
from callsheet.settings import Settings
from callsheet.store.connection import Database, NamedQuery, Rows
from callsheet.store.postgres import PostgresDatabase


class Reads(BlockingReader):
    """Reads from a database.

    From a thread: `fetch` and the typed getters (`job`, `tasks`, `events`, …).
    From asyncio: `lookup`, `lookup_row` and `lookup_many` read by key, in microseconds. `scan` and `scan_many` read
    lists and counts, which may take long.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__(database, settings.readers)
        self._lookups = _lookup_reader(database, settings.read_timeout_seconds)
        self._scans = BatchedReader(database, "scans")

    def start(self) -> None:
        self._lookups.start()
        self._scans.start()

    def close(self) -> None:
        self._lookups.stop()
        self._scans.stop()
        super().close()

    async def current_time(self) -> int:
        """Return the engine's time."""
        ((database_time,),) = await self.lookup("clock")
        return self.engine_time(database_time)

    async def lookup(self, query: str, /, **parameters: Any) -> Rows:
        """Run a named query that reads by key."""
        return await self._lookups.fetch(query, **parameters)

    def lookup_row(self, query: str, key: str) -> "asyncio.Future[Sequence[Any] | None]":
        """Read one row by its key. The query takes `ids`, and its first column is the key."""
        return self._lookups.row(query, key)

    def lookup_many(self, named_queries: Sequence[NamedQuery]) -> "asyncio.Future[list[Rows]]":
        """Run several named queries that read by key, in one trip to the database."""
        return self._lookups.fetch_all(named_queries)

    async def scan(self, query: str, /, **parameters: Any) -> Rows:
        """Run a named query that reads a list or a count."""
        return await self._scans.fetch(query, **parameters)

    def scan_many(self, named_queries: Sequence[NamedQuery]) -> "asyncio.Future[list[Rows]]":
        """Run several named queries that read lists or counts, in one trip to the database."""
        return self._scans.fetch_all(named_queries)


def _lookup_reader(database: Database, timeout_seconds: float) -> BatchedReader:
    """Return the reader for lookups, whose statements have a timeout on PostgreSQL."""
    with_timeout = database.with_timeout(timeout_seconds) if isinstance(database, PostgresDatabase) else database
    return BatchedReader(with_timeout, "lookups")
