"""A loop that asks PostgreSQL by itself: quicker for as long as all goes well, and otherwise as good as the thread."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import uvloop

from callsheet.core.model.commands import PutTenant
from callsheet.engine import Engine
from callsheet.engine.reads.batched import BatchedReader
from callsheet.store.connection import ConnectionLost, NamedQuery
from callsheet.store.postgres import PostgresConnection, PostgresDatabase
from tests.engine.reads.test_batched_reader import BAD, WHO
from tests.support.databases.postgres import Cluster
from tests.support.wait import wait_until

OURS = "FROM pg_stat_activity WHERE application_name = 'callsheet' AND datname = current_database()"
WAITING = f"SELECT count(*) {OURS} AND wait_event_type = 'Lock'"


Run = Callable[[Coroutine[Any, Any, Any]], Any]


class LimitedDatabase(PostgresDatabase):
    """A database that gives so many connections and no more."""

    def __init__(self, url: str, left: int = 2) -> None:
        super().__init__(url)
        self.left = left
        self.made: list[PostgresConnection] = []
        self.refused = 0

    def connect(self, *, reading: bool = False) -> PostgresConnection:
        if not self.left:
            self.refused += 1
            raise ConnectionLost("there are no more")
        self.left -= 1
        self.made.append(super().connect(reading=reading))
        return self.made[-1]

    def only_near(self) -> None:
        """Take the thread's connection away, which is made before that of its loop; it gets no other."""
        self.left = 0
        self.made[-2].close()


@pytest.fixture
def url(migrated_postgres: Cluster) -> Iterator[str]:
    made = migrated_postgres.create_database()
    with Engine.open(made) as engine:
        for name in ("acme", "blue"):
            engine.execute(PutTenant(tenant=name))
    yield made
    migrated_postgres.drop(made)


@contextmanager
def lane_on(database: PostgresDatabase, direct_timeout_seconds: float = 30.0) -> Iterator[BatchedReader]:
    lane = BatchedReader(database, "test", direct_timeout_seconds=direct_timeout_seconds)
    lane.start()
    try:
        yield lane
    finally:
        lane.stop()


async def direct(lane: BatchedReader) -> None:
    """Ask until the loop has a connection of its own."""
    loop = asyncio.get_running_loop()
    await lane.fetch("clock")
    await asyncio.to_thread(wait_until, lambda: loop in lane.direct)


def run_scenario(
    url: str, scenario: Callable[[BatchedReader, LimitedDatabase], Awaitable[Any]], run: Run = uvloop.run, **given: Any
) -> Any:
    """Let a loop that asks by itself go through a scenario; the thread gets no connection until it is given one."""
    database = LimitedDatabase(url)
    with lane_on(database, **given) as lane:

        async def run_whole() -> Any:
            await direct(lane)
            return await scenario(lane, database)

        return run(run_whole())


async def wait_for_lock_queue(other: psycopg.Connection, count: int = 1) -> None:
    """Wait until so many of ours stand in the queue for a lock."""
    await asyncio.to_thread(wait_until, lambda: other.execute(WAITING).fetchone() == (count,))


def test_each_caller_gets_its_own_answer_without_the_thread(url: str) -> None:
    async def scenario(lane: BatchedReader, database: LimitedDatabase) -> Any:
        database.only_near()
        keys = ["acme", "nobody", "blue", "acme"]
        found = [await asyncio.gather(*(lane.row("tenants", key) for key in keys), lane.fetch_all([WHO, ("clock", {})]))
                 for _ in range(3)]  # fmt: skip
        return found[-1]

    acme, nobody, blue, again, (who, clock) = run_scenario(url, scenario)
    assert (acme[0], nobody, blue[0], again[0]) == ("acme", None, "blue", "acme")
    assert (who[0][0], clock[0][0] > 1_600_000_000_000_000) == ("acme", True)


def test_what_is_asked_while_a_trip_is_under_way_makes_the_next_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[list[NamedQuery]] = []
    ask = PostgresConnection.ask

    def counted(connection: PostgresConnection, named_queries: Sequence[NamedQuery]) -> None:
        trips.append(list(named_queries))
        ask(connection, named_queries)

    with psycopg.connect(url) as other:

        async def scenario(lane: BatchedReader, database: LimitedDatabase) -> Any:
            database.only_near()
            monkeypatch.setattr(PostgresConnection, "ask", counted)
            other.execute("LOCK TABLE tenant IN ACCESS EXCLUSIVE MODE")
            first = asyncio.ensure_future(lane.fetch(*WHO[:1], **WHO[1]))
            await wait_for_lock_queue(other)
            rest = [asyncio.ensure_future(lane.row("tenants", "blue")) for _ in range(5)]
            await asyncio.sleep(0)
            other.rollback()
            return [(await first)[0][0], *[(await one)[0] for one in rest]]

        assert run_scenario(url, scenario) == ["acme", *["blue"] * 5]
    assert trips == [[WHO], [("tenants", {"ids": ["blue"]})]]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_answer_that_comes_in_many_pieces_is_waited_for(url: str, run: Run) -> None:
    async def scenario(lane: BatchedReader, database: LimitedDatabase) -> Any:
        database.only_near()
        return await asyncio.gather(*(lane.fetch_all([WHO]) for _ in range(20_000)))

    assert {rows[0][0][0] for rows in run_scenario(url, scenario, run)} == {"acme"}


def test_a_question_too_long_for_the_socket_is_asked_aside(url: str) -> None:
    async def scenario(lane: BatchedReader, database: LimitedDatabase) -> Any:
        database.left = 5
        return await lane.fetch("tenants", ids=["acme", *(f"{n:0>200}" for n in range(100_000))])

    assert run_scenario(url, scenario)[0][0] == "acme"


@pytest.mark.parametrize("bad", BAD, ids=[f"{ask[0]}-{n}" for n, ask in enumerate(BAD)])
def test_one_bad_question_does_not_spoil_its_neighbours(url: str, bad: Any) -> None:
    async def scenario(lane: BatchedReader, _: LimitedDatabase) -> Any:
        mixed = [lane.fetch_all([WHO]), lane.fetch_all([WHO, bad, WHO]), lane.fetch_all([WHO])]
        return await asyncio.gather(*mixed, return_exceptions=True), await lane.row("tenants", "blue")

    (before, spoilt, after), later = run_scenario(url, scenario)
    assert before[0][0][0] == after[0][0][0] == "acme"
    assert isinstance(spoilt, Exception)
    assert later[0] == "blue"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("busy", [True, False])
def test_a_connection_that_is_cut_is_replaced_and_nobody_notices(url: str, run: Run, *, busy: bool) -> None:
    with psycopg.connect(url, autocommit=True) as other, psycopg.connect(url) as holder:

        async def scenario(lane: BatchedReader, database: LimitedDatabase) -> Any:
            loop = asyncio.get_running_loop()
            database.left = 2
            first = lane.direct[loop]
            asking = []
            if busy:
                holder.execute("LOCK TABLE tenant IN ACCESS EXCLUSIVE MODE")
                asking = [asyncio.ensure_future(lane.row("tenants", "acme")) for _ in range(3)]
                await wait_for_lock_queue(other)
            other.execute(f"SELECT pg_terminate_backend(pid) {OURS}")
            holder.rollback()
            found = [await one for one in (*asking, lane.row("tenants", "acme"))]
            await asyncio.to_thread(wait_until, lambda: lane.direct.get(loop) not in {None, first})
            database.only_near()
            return [*found, await lane.row("tenants", "acme")]

        assert {row[0] for row in run_scenario(url, scenario, run)} == {"acme"}


def test_a_server_that_is_silent_is_left_to_the_thread(url: str) -> None:
    with psycopg.connect(url) as other:

        async def scenario(lane: BatchedReader, _: LimitedDatabase) -> Any:
            first = lane.direct[asyncio.get_running_loop()]
            other.execute("LOCK TABLE tenant IN ACCESS EXCLUSIVE MODE")
            asking = asyncio.ensure_future(lane.row("tenants", "acme"))
            await asyncio.to_thread(wait_until, lambda: first.closed)
            other.rollback()
            return await asking

        assert run_scenario(url, scenario, direct_timeout_seconds=0.05)[0] == "acme"


def test_what_was_asked_before_the_end_is_answered_and_afterwards_nothing(url: str) -> None:
    with psycopg.connect(url) as other:

        async def scenario(lane: BatchedReader, _: LimitedDatabase) -> Any:
            other.execute("LOCK TABLE tenant IN ACCESS EXCLUSIVE MODE")
            asking = [asyncio.ensure_future(lane.row("tenants", "acme")) for _ in range(3)]
            await wait_for_lock_queue(other)
            ending = asyncio.ensure_future(asyncio.to_thread(lane.stop))
            await asyncio.to_thread(wait_until, lambda: all(one.closed for one in lane.direct.values()))
            other.rollback()
            await ending
            late = await asyncio.gather(lane.fetch("clock"), return_exceptions=True)
            return [await one for one in asking], late

        answers, (late,) = run_scenario(url, scenario)
    assert [answer[0] for answer in answers] == ["acme"] * 3
    assert isinstance(late, ConnectionLost)


def test_a_loop_that_is_gone_keeps_no_connection(url: str) -> None:
    database = LimitedDatabase(url, 1_000)
    with psycopg.connect(url, autocommit=True) as other:
        with lane_on(database) as lane:
            for _ in range(4):
                asyncio.run(direct(lane))
            assert len(database.made) >= 5
            wait_until(lambda: other.execute(f"SELECT count(*) <= 2 {OURS}").fetchone() == (True,))
        wait_until(lambda: other.execute(f"SELECT count(*) {OURS}").fetchone() == (0,))


def test_where_there_is_no_other_connection_the_thread_goes_on_and_does_not_ask_for_one_each_time(url: str) -> None:
    database = LimitedDatabase(url, 1)

    async def scenario(lane: BatchedReader) -> list[Any]:
        return [await lane.row("tenants", "acme") for _ in range(20)]

    with lane_on(database) as lane:
        assert {row[0] for row in asyncio.run(scenario(lane))} == {"acme"}
    assert (len(database.made), database.refused) == (1, 1)


def test_on_its_own_loop_a_lane_can_be_stopped_too(url: str) -> None:
    async def scenario(lane: BatchedReader, _: LimitedDatabase) -> Any:
        lane.stop()
        return await asyncio.gather(lane.fetch("clock"), return_exceptions=True)

    assert isinstance(run_scenario(url, scenario)[0], ConnectionLost)


def test_a_lane_that_ends_while_a_loop_gets_its_connection_lets_that_go(url: str) -> None:
    """The loop and whoever stops the lane may both be about to begin or end it."""
    database = LimitedDatabase(url, 1_000)

    async def scenario(lane: BatchedReader) -> None:
        await lane.fetch("clock")
        await asyncio.to_thread(lane.stop)

    with psycopg.connect(url, autocommit=True) as other:
        for _ in range(20):
            with lane_on(database) as lane:
                asyncio.run(scenario(lane))
        assert len(database.made) >= 20
        wait_until(lambda: other.execute(f"SELECT count(*) {OURS}").fetchone() == (0,))
