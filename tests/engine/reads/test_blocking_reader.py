"""Blocking reads: a closed reader refuses them, also those that waited for a connection."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from callsheet.engine import Engine
from callsheet.engine.engine import database_for
from callsheet.engine.reads.synchronous import BlockingReader
from callsheet.settings import Settings
from callsheet.store.connection import Connection, ConnectionLost
from tests.support.wait import wait_until

_WAIT_SECONDS = 30


class SlowDatabase:
    """A database whose reads wait until they are released."""

    def __init__(self, database_url: str) -> None:
        Engine.open(database_url).close()
        self.inner = database_for(database_url, Settings())
        self.reading = threading.Event()
        self.release = threading.Event()

    def connect(self, *, reading: bool = False) -> Any:
        return SlowConnection(self.inner.connect(reading=reading), self)


class SlowConnection:
    """A connection that reports a read and holds it up."""

    def __init__(self, inner: Connection, database: SlowDatabase) -> None:
        self._inner = inner
        self._database = database

    def fetch(self, query: str, /, **parameters: Any) -> Any:
        self._database.reading.set()
        self._database.release.wait(_WAIT_SECONDS)
        return self._inner.fetch(query, **parameters)

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def database(database_url: str) -> SlowDatabase:
    return SlowDatabase(database_url)


@pytest.fixture
def reader(database: SlowDatabase) -> BlockingReader:
    return BlockingReader(database, readers=1)  # type: ignore[arg-type]


def start_read(pool: ThreadPoolExecutor, reader: BlockingReader) -> "Future[Any]":
    return pool.submit(reader.fetch, "tenants", ids=["acme"])


def test_a_read_after_close_fails(database: SlowDatabase, reader: BlockingReader) -> None:
    database.release.set()
    assert not reader.fetch("tenants", ids=["acme"])
    reader.close()
    with ThreadPoolExecutor() as pool, pytest.raises(ConnectionLost, match="closed"):
        start_read(pool, reader).result(_WAIT_SECONDS)


def test_close_fails_the_reads_that_wait_and_lets_the_running_one_end(
    database: SlowDatabase, reader: BlockingReader
) -> None:
    with ThreadPoolExecutor() as pool:
        running = start_read(pool, reader)
        wait_until(database.reading.is_set)
        waiting = [start_read(pool, reader) for _ in range(3)]
        reader.close()
        database.release.set()
        assert not running.result(_WAIT_SECONDS)
        for read in waiting:
            with pytest.raises(ConnectionLost, match="closed"):
                read.result(_WAIT_SECONDS)
