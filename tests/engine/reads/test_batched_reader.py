"""Reads from asyncio: many callers share a trip, and what goes wrong for one of them is that one's alone."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.model.commands import PutTenant
from callsheet.engine import Engine
from callsheet.engine.engine import database_for
from callsheet.engine.reads.batched import BatchedReader
from callsheet.store.connection import Connection, ConnectionLost, NamedQuery, Rows, StoreError
from tests.support.wait import wait_until

WHO = ("tenants", {"ids": ["acme"]})
BAD: list[NamedQuery] = [
    ("no_such_query", {}),
    ("events_of", {"subject": "x", "after": 10**40, "count": 1}),
    ("events_of", {"subject": "x"}),
    ("events_of", {"subject": "x", "after": "a word", "count": "another"}),
]


class CountingDatabase:
    """A database that counts connections and trips, and whose first trip can be held up or lost."""

    def __init__(self, database_url: str) -> None:
        Engine.open(database_url).close()
        self.inner = database_for(database_url, Settings())
        self.name, self.lanes = self.inner.name, self.inner.lanes
        self.connections = 0
        self.round_trips: list[int] = []
        self.hold: threading.Event | None = None
        self.lost = 0
        self.hold_clock: threading.Event | None = None
        """Holds up a clock that is asked for alone."""

    def connect(self, *, reading: bool = False) -> Any:
        self.connections += 1
        return CountingConnection(self.inner.connect(reading=reading), self)


class CountingConnection:
    """The other connection, watched."""

    def __init__(self, inner: Connection, database: CountingDatabase) -> None:
        self._inner = inner
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        given = list(named_queries)
        self._database.round_trips.append(len(given))
        if self._database.hold is not None and len(self._database.round_trips) == 1:
            self._database.hold.wait(30)
        if self._database.hold_clock is not None and given == [("clock", {})]:
            self._database.hold_clock.wait(30)
        if self._database.lost:
            self._database.lost -= 1
            raise ConnectionLost("cut")
        return self._inner.fetch_all(given)


@contextmanager
def lane_on(database: CountingDatabase) -> Iterator[BatchedReader]:
    lane = BatchedReader(database, "test")
    lane.start()
    try:
        yield lane
    finally:
        lane.stop()


@pytest.fixture
def database(database_url: str) -> CountingDatabase:
    return CountingDatabase(database_url)


def test_questions_that_wait_share_one_trip(database: CountingDatabase) -> None:
    database.hold = threading.Event()

    async def scenario(lane: BatchedReader) -> list[Any]:
        first = asyncio.ensure_future(lane.fetch("clock"))
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        rest = [asyncio.ensure_future(lane.fetch_all([WHO, ("clock", {})])) for _ in range(50)]
        await asyncio.sleep(0)
        assert database.hold is not None
        database.hold.set()
        return [await first, *[await one for one in rest]]

    with lane_on(database) as lane:
        answers = asyncio.run(scenario(lane))
    assert database.round_trips == [1, 100]
    assert database.connections == 1
    assert [len(answer) for answer in answers] == [1] + [2] * 50


def test_each_caller_gets_its_own_answer_in_the_order_it_asked(database: CountingDatabase) -> None:
    async def scenario(lane: BatchedReader) -> list[Any]:
        many = [[("clock", {}), WHO, ("tenants", {"ids": [f"t{n}"]})] for n in range(30)]
        return await asyncio.gather(*(lane.fetch_all(named_queries) for named_queries in many))

    with lane_on(database) as lane:
        for clock, acme, other in asyncio.run(scenario(lane)):
            assert clock[0][0] > 1_600_000_000_000_000
            assert (list(acme), list(other)) == ([], [])


def test_rows_asked_by_key_in_one_trip_are_one_question_and_each_caller_gets_its_own(
    database: CountingDatabase,
) -> None:
    with Engine(database.inner) as engine:
        engine.start()
        for name in ("acme", "blue"):
            engine.execute(PutTenant(tenant=name))
    database.hold = threading.Event()

    async def scenario(lane: BatchedReader) -> list[Any]:
        first = asyncio.ensure_future(lane.fetch("clock"))
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        keys = ["acme", "nobody", "blue", "acme"]
        mixed = asyncio.gather(*(lane.row("tenants", key) for key in keys), lane.fetch_all([WHO]))
        await asyncio.sleep(0)
        assert database.hold is not None
        database.hold.set()
        await first
        return await mixed

    with lane_on(database) as lane:
        acme, nobody, blue, again, who = asyncio.run(scenario(lane))
    assert database.round_trips == [1, 2]
    assert (acme[0], nobody, blue[0], again[0]) == ("acme", None, "blue", "acme")
    assert who[0][0][0] == "acme"


@pytest.mark.parametrize("bad", BAD, ids=[f"{ask[0]}-{n}" for n, ask in enumerate(BAD)])
def test_one_bad_question_does_not_spoil_its_neighbours_or_the_lane(
    database: CountingDatabase, bad: NamedQuery
) -> None:
    database.hold = threading.Event()

    async def scenario(lane: BatchedReader) -> tuple[list[Any], Any]:
        first = asyncio.ensure_future(lane.fetch("clock"))
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        mixed = [lane.fetch_all([WHO]), lane.fetch_all([WHO, bad, WHO]), lane.fetch_all([WHO])]
        waiting = asyncio.gather(*mixed, return_exceptions=True)
        await asyncio.sleep(0)
        assert database.hold is not None
        database.hold.set()
        await first
        return await waiting, await lane.fetch("clock")

    with lane_on(database) as lane:
        (before, spoilt, after), later = asyncio.run(scenario(lane))
    assert [list(rows) for rows in before] == [list(rows) for rows in after] == [[]]
    assert later
    assert isinstance(spoilt, Exception)


def test_a_lost_connection_is_replaced_and_nobody_notices(database: CountingDatabase) -> None:
    database.lost = 1

    async def scenario(lane: BatchedReader) -> Any:
        return await asyncio.gather(*(lane.fetch("clock") for _ in range(5)))

    with lane_on(database) as lane:
        assert len(asyncio.run(scenario(lane))) == 5
    assert database.connections == 2


def test_while_the_database_is_away_callers_hear_of_it_and_later_ones_are_answered(database: CountingDatabase) -> None:
    database.lost = 2

    async def scenario(lane: BatchedReader) -> tuple[Any, Any]:
        (away,) = await asyncio.gather(lane.fetch("clock"), return_exceptions=True)
        return away, await lane.fetch("clock")

    with lane_on(database) as lane:
        away, back = asyncio.run(scenario(lane))
    assert isinstance(away, ConnectionLost)
    assert back


def test_however_many_ask_a_database_that_is_away_is_asked_twice_and_all_hear_at_once(
    database: CountingDatabase,
) -> None:
    """Each would wait as long as a connection takes to be made, behind all those before it."""
    database.lost = 2

    async def scenario(lane: BatchedReader) -> Any:
        asked = [lane.fetch("clock") for _ in range(50)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with lane_on(database) as lane:
        answers = asyncio.run(scenario(lane))
    assert {type(answer) for answer in answers} == {ConnectionLost}
    assert len({id(answer) for answer in answers}) == 50, "an error that two raise grows two tracebacks"
    assert (database.round_trips, database.connections) == ([50, 50], 2)


def test_whoever_is_asked_for_alone_hears_at_once_and_not_when_all_were(database: CountingDatabase) -> None:
    database.hold_clock = hold = threading.Event()

    async def scenario(lane: BatchedReader) -> Any:
        asked = [asyncio.ensure_future(lane.fetch_all([ask])) for ask in (BAD[0], WHO, ("clock", {}))]
        await asyncio.wait(asked[:2], timeout=30)
        early = [one.done() for one in asked]
        hold.set()
        return early, await asyncio.gather(*asked, return_exceptions=True)

    with lane_on(database) as lane:
        early, answers = asyncio.run(scenario(lane))
    assert early == [True, True, False]
    assert [isinstance(answer, Exception) for answer in answers] == [True, False, False]


def test_a_caller_that_went_away_harms_nobody(database: CountingDatabase) -> None:
    database.hold = threading.Event()

    async def scenario(lane: BatchedReader) -> Any:
        gone = asyncio.ensure_future(lane.fetch("clock"))
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        gone.cancel()
        assert database.hold is not None
        database.hold.set()
        return await lane.fetch("clock")

    with lane_on(database) as lane:
        assert asyncio.run(scenario(lane))


def test_two_event_loops_are_answered_each_on_its_own(database: CountingDatabase) -> None:
    async def ask(lane: BatchedReader) -> Any:
        return await asyncio.gather(*(lane.fetch("clock") for _ in range(20)))

    found: list[Any] = []
    with lane_on(database) as lane:
        threads = [threading.Thread(target=lambda: found.append(asyncio.run(ask(lane)))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [len(one) for one in found] == [20, 20]


def test_what_was_asked_before_the_end_is_answered_and_afterwards_nothing(database: CountingDatabase) -> None:
    database.hold = threading.Event()

    async def scenario(lane: BatchedReader) -> list[Any]:
        asked = [asyncio.ensure_future(lane.fetch("clock"))]
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        asked += [asyncio.ensure_future(lane.fetch("clock")) for _ in range(3)]
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(asyncio.to_thread(lane.stop))
        assert database.hold is not None
        database.hold.set()
        await ending
        late = await asyncio.gather(lane.fetch("clock"), return_exceptions=True)
        return [*await asyncio.gather(*asked), *late]

    with lane_on(database) as lane:
        *answers, late = asyncio.run(scenario(lane))
    assert all(answers)
    assert len(answers) == 4
    assert isinstance(late, StoreError)


def test_callers_that_arrive_while_the_lane_ends_get_an_error_and_never_wait(database: CountingDatabase) -> None:
    async def scenario(lane: BatchedReader) -> list[Any]:
        ending = asyncio.ensure_future(asyncio.to_thread(lane.stop))
        results: list[Any] = []
        while not ending.done():
            asked = [lane.fetch("clock") for _ in range(20)]
            results += await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 30)
        await ending
        return results

    for _ in range(10):
        with lane_on(database) as lane:
            for result in asyncio.run(scenario(lane)):
                assert isinstance(result, ConnectionLost | list | tuple)


def test_a_lane_that_never_began_can_be_stopped(database: CountingDatabase) -> None:
    lane = BatchedReader(database, "test")
    lane.stop()
    with pytest.raises(ConnectionLost):
        asyncio.run(lane.fetch("clock"))
