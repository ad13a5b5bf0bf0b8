"""A connection to SQLite waits for the lock of another, and signals are handled during the wait."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from callsheet.store.connection import Connection, TransactionConflict
from callsheet.store.sqlite import SqliteDatabase

SOON_SECONDS = 0.05


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[tuple[Connection, Connection]]:
    """Two connections to one database; the first has the lock."""
    database = SqliteDatabase(tmp_path / "callsheet.db")
    with closing(database.connect()) as first, closing(database.connect()) as second:
        first.begin()
        yield first, second


def test_a_signal_is_handled_while_a_connection_waits(connections: tuple[Connection, Connection]) -> None:
    first, second = connections
    previous = signal.signal(signal.SIGALRM, lambda *_: first.commit())
    signal.setitimer(signal.ITIMER_REAL, SOON_SECONDS)
    try:
        second.begin()  # the handler has released the lock
    finally:
        signal.signal(signal.SIGALRM, previous)
    with pytest.raises(TransactionConflict):
        _begin_without_wait(first)


def _begin_without_wait(connection: Connection) -> None:
    connection.run("PRAGMA busy_timeout = 0")
    connection.begin()
