"""All reads of an engine: from threads, and from asyncio by key or as a scan.

Each of the three has its own connections. A slow scan never delays a lookup, and no read waits for a write.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from callsheet.core.policy.admission import QueueLimits, is_overloaded
from callsheet.engine.queue_stats import QueueStats
from callsheet.engine.reads.batched import BatchedReader
from callsheet.engine.reads.synchronous import BlockingReader
from callsheet.settings import Settings
from callsheet.store.connection import Database, NamedQuery, Rows
from callsheet.store.postgres import PostgresDatabase

_LOOKUPS_PER_BATCH = 256
_SCANS_PER_BATCH = 32
_ESSENTIAL_FACTOR = 2
"""The factor of `reads_waiting_max` up to which lookups are accepted for requests that were admitted."""


class Reads(BlockingReader):
    """Reads from a database.

    From a thread: `fetch` and the typed getters (`job`, `tasks`, `events`, …).
    From asyncio: `lookup`, `lookup_row` and `lookup_many` read by key, in microseconds. `scan` and `scan_many` read
    lists and counts, which may take long.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__(database, settings.readers)
        self._lookup_limits = QueueLimits(
            settings.reads_waiting_max, settings.queue_wait_seconds_max, _LOOKUPS_PER_BATCH
        )
        hard_limits = self._lookup_limits._replace(
            waiting_max=settings.reads_waiting_max * _ESSENTIAL_FACTOR, wait_seconds_max=math.inf
        )
        self._lookups = BatchedReader(_with_timeout(database, settings.read_timeout_seconds), "lookups", hard_limits)
        self._scans = BatchedReader(database, "scans", self._lookup_limits._replace(batch_max=_SCANS_PER_BATCH))

    def start(self) -> None:
        self._lookups.start()
        self._scans.start()

    def close(self) -> None:
        self._lookups.stop()
        self._scans.stop()
        super().close()

    @property
    def is_overloaded(self) -> bool:
        """Whether new reads of clients should be refused. Lookups of essential requests are still accepted."""
        return is_overloaded(self._lookups.load, self._lookup_limits)

    @property
    def queue_stats(self) -> list[QueueStats]:
        """Waits and refusals of both readers."""
        return [self._lookups.stats, self._scans.stats]

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


def _with_timeout(database: Database, timeout_seconds: float) -> Database:
    """Return the database for lookups, whose statements have a timeout on PostgreSQL."""
    return database.with_timeout(timeout_seconds) if isinstance(database, PostgresDatabase) else database
