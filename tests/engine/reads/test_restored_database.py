"""A PostgreSQL database that was dumped and restored into a new cluster keeps the order of its events."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from callsheet.core.policy.event_order import TRANSACTION_OFFSET, continued_offset
from callsheet.engine import Engine
from callsheet.engine.engine import database_for
from callsheet.engine.loops.sink_delivery import Relay
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.settings import Settings
from callsheet.store import verify
from callsheet.store.migrate import dialect_of, migrate
from tests.support.databases import postgres_binaries
from tests.support.databases.database_pool import DatabasePool
from tests.support.databases.postgres import Cluster
from tests.support.http.sse import open_stream, read_events
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

TRANSACTIONS_AHEAD = 3_000
RAISE = f"UPDATE event SET tx = tx + {TRANSACTIONS_AHEAD}; UPDATE cursor SET tx = tx + {TRANSACTIONS_AHEAD}"


class Backup:
    """A database with a past, and its copy in a cluster that has counted fewer transactions."""

    def __init__(self, source: str, target: Cluster) -> None:
        self.source = source
        self._target = target

    def restore(self) -> str:
        """Return the URL of the copy. Without pg_dump, the source is changed so that it looks restored."""
        tools = postgres_binaries.find(lambda _: None).bin
        pg_dump, psql = (shutil.which(name, path=str(tools)) for name in ("pg_dump", "psql"))
        if not (pg_dump and psql):
            with psycopg.connect(self.source, autocommit=True) as connection:
                connection.execute(RAISE.encode())
            return self.source
        url = self._target.create_database()
        dump = subprocess.run([pg_dump, self.source], capture_output=True, check=True).stdout
        subprocess.run([psql, "-q", "-v", "ON_ERROR_STOP=1", url], input=dump, capture_output=True, check=True)
        return url


@pytest.fixture
def backup(postgres: Cluster, database_pool: DatabasePool, report: Callable[[str], None]) -> Iterator[Backup]:
    postgres.spend_transactions(TRANSACTIONS_AHEAD)
    source = database_pool.acquire()
    with Cluster(report=report) as target:
        yield Backup(source, target)
    database_pool.release(source)


def keys(events: list[PositionedEvent]) -> list[tuple[str, int]]:
    return [(placed.event.subject, placed.event.seq) for placed in events]


def violations(url: str) -> list[str]:
    connection = database_for(url, Settings()).connect(reading=True)
    try:
        return [violation.name for violation in verify.check(connection)]
    finally:
        connection.close()


def recorded_offset(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT value FROM installation WHERE name = %s", (TRANSACTION_OFFSET,)).fetchone()
        return int(found[0]) if found else 0


def test_a_restored_database_keeps_its_feed_its_cursors_and_the_positions_of_clients(
    backup: Backup, tmp_path: Path
) -> None:
    delivered: list[PositionedEvent] = []
    with LiveServer(backup.source, tmp_path) as before:
        first = before.submit()["id"]
        before.work()
        wait_until(lambda: len(before.engine.reads.feed()) == len(before.engine.reads.events(first)))
        old = before.engine.reads.feed()
        Relay(before.engine, "sink audit", "a", delivered.extend).run_once(0)
        with open_stream(before, "/v1/events") as frames:
            seen = [next(frame for frame in frames if frame.id) for _ in old]
    restored = backup.restore()
    assert set(violations(restored)) == {"X5"}
    with LiveServer(restored, tmp_path) as after:
        assert [placed.position for placed in after.engine.reads.feed()] == [placed.position for placed in old] or (
            restored == backup.source
        )
        second = after.submit()["id"]
        after.work()
        expected = [(second, event.seq) for event in after.engine.reads.events(second)]
        wait_until(lambda: len(after.engine.reads.feed()) == len(old) + len(expected))
        assert keys(after.engine.reads.feed()) == keys(old) + expected
        Relay(after.engine, "sink audit", "b", delivered.extend).run_once(0)
        assert keys(delivered) == keys(old) + expected
        with open_stream(after, "/v1/events", seen[-1].id) as frames:
            rest = [next(frame for frame in frames if frame.id) for _ in expected]
        assert [(frame.data["job_id"], frame.data["seq"]) for frame in rest] == expected
        assert [frame.data["seq"] for frame in read_events(after, f"/v1/jobs/{first}/events", "1")] == [
            seq for _, seq in keys(old)[1:]
        ]
    assert violations(restored) == []


def test_servers_that_start_together_on_a_restored_database_continue_the_order_once(backup: Backup) -> None:
    Engine.open(backup.source).close()
    with psycopg.connect(backup.source) as connection:
        connection.execute("INSERT INTO cursor SELECT 'log', pg_current_xact_id()::text::bigint, 1, NULL, 0")
    restored = backup.restore()

    def start(_: int) -> int:
        Engine.open(restored).close()
        return recorded_offset(restored)

    with ThreadPoolExecutor(4) as threads:
        offsets = set(threads.map(start, range(4)))
    assert len(offsets) == 1
    assert offsets.pop() > 0
    assert violations(restored) == []


def test_the_order_continues_again_after_a_second_restore(database_pool: DatabasePool) -> None:
    url = database_pool.acquire()
    offsets = [0]
    for _ in range(2):
        Engine.open(url).close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DELETE FROM cursor")
            ahead = f"{offsets[-1]} + pg_current_xact_id()::text::bigint + 1000000"
            connection.execute(f"INSERT INTO cursor SELECT 'log', {ahead}, 1, NULL, 0".encode())
        connection_of_store = database_for(url, Settings()).connect()
        migrate(connection_of_store, dialect_of("postgresql"))
        connection_of_store.close()
        offsets.append(recorded_offset(url))
    assert offsets == sorted(set(offsets))
    assert violations(url) == []
    database_pool.release(url)


@pytest.mark.parametrize(
    ("offset", "newest", "upcoming", "expected"),
    [
        (0, 0, 1, None),
        (0, 900, 901, None),
        (0, 900, 900, 2**40),
        (0, 5_000, 800, 4_200 + 2**40),
        (7, 5_000, 807, 4_200 + 2**40),
    ],
)
def test_new_transactions_follow_the_stored_ones(offset: int, newest: int, upcoming: int, expected: int | None) -> None:
    assert continued_offset(offset, newest, upcoming) == expected
    if expected is not None:
        assert upcoming - offset + expected > newest
