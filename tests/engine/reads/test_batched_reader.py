"""Batched reads from asyncio: concurrent queries share one round trip, and an error affects only its own caller."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from callsheet.core.model.commands import PutTenant
from callsheet.core.policy.admission import QueueLimits
from callsheet.engine import Engine
from callsheet.engine.engine import database_for
from callsheet.engine.reads.batched import BatchedReader
from callsheet.settings import Settings
from callsheet.store.connection import Connection, ConnectionLost, NamedQuery, Rows, StoreError
from tests.support.wait import wait_until

TENANT_QUERY = ("tenants", {"ids": ["acme"]})
LIMITS = QueueLimits(waiting_max=10_000, wait_seconds_max=60.0, batch_max=256)
INVALID_QUERIES: list[NamedQuery] = [
    ("no_such_query", {}),
    ("events_of", {"subject": "x", "after": 10**40, "count": 1}),
    ("events_of", {"subject": "x"}),
    ("events_of", {"subject": "x", "after": "text", "count": "text"}),
]


class CountingDatabase:
    """A database that counts connections and round trips; round trips can be held up or lost."""

    def __init__(self, database_url: str) -> None:
        Engine.open(database_url).close()
        self.inner = database_for(database_url, Settings())
        self.name, self.lanes, self.clock = self.inner.name, self.inner.lanes, self.inner.clock
        self.connections = 0
        self.round_trips: list[int] = []
        self.hold: threading.Event | None = None
        self.lost = 0
        self.hold_clock: threading.Event | None = None
        """Holds up a clock query that is sent alone."""

    def connect(self, *, reading: bool = False) -> Any:
        self.connections += 1
        return CountingConnection(self.inner.connect(reading=reading), self)


class CountingConnection:
    """A connection that counts its round trips."""

    def __init__(self, inner: Connection, database: CountingDatabase) -> None:
        self._inner = inner
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fetch_all(self, named_queries: Iterable[NamedQuery]) -> list[Rows]:
        queries = list(named_queries)
        self._database.round_trips.append(len(queries))
        if self._database.hold is not None and len(self._database.round_trips) == 1:
            self._database.hold.wait(30)
        if self._database.hold_clock is not None and queries == [("clock", {})]:
            self._database.hold_clock.wait(30)
        if self._database.lost:
            self._database.lost -= 1
            raise ConnectionLost("cut")
        return self._inner.fetch_all(queries)


@contextmanager
def open_reader(database: CountingDatabase) -> Iterator[BatchedReader]:
    reader = BatchedReader(database, "test", LIMITS)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()


@pytest.fixture
def database(database_url: str) -> CountingDatabase:
    return CountingDatabase(database_url)


def test_waiting_queries_share_one_round_trip(database: CountingDatabase) -> None:
    database.hold = threading.Event()

    async def scenario(reader: BatchedReader) -> list[Any]:
        first = asyncio.ensure_future(reader.fetch("clock"))
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        rest = [asyncio.ensure_future(reader.fetch_all([TENANT_QUERY, ("clock", {})])) for _ in range(50)]
        await asyncio.sleep(0)
        assert database.hold is not None
        database.hold.set()
        return [await first, *[await one for one in rest]]

    with open_reader(database) as reader:
        answers = asyncio.run(scenario(reader))
    assert database.round_trips == [1, 100]
    assert database.connections == 1
    assert [len(answer) for answer in answers] == [1] + [2] * 50


def test_each_caller_gets_its_own_results_in_order(database: CountingDatabase) -> None:
    async def scenario(reader: BatchedReader) -> list[Any]:
        many = [[("clock", {}), TENANT_QUERY, ("tenants", {"ids": [f"t{n}"]})] for n in range(30)]
        return await asyncio.gather(*(reader.fetch_all(named_queries) for named_queries in many))

    with open_reader(database) as reader:
        for clock, acme, other in asyncio.run(scenario(reader)):
            assert clock[0][0] > 1_600_000_000_000_000
            assert (list(acme), list(other)) == ([], [])


def test_rows_by_key_share_one_query_and_each_caller_gets_its_own(database: CountingDatabase) -> None:
    with Engine(database.inner) as engine:
        engine.start()
        for name in ("acme", "blue"):
            engine.execute(PutTenant(tenant=name))
    database.hold = threading.Event()

    async def scenario(reader: BatchedReader) -> list[Any]:
        first = asyncio.ensure_future(reader.fetch("clock"))
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        keys = ["acme", "unknown", "blue", "acme"]
        mixed = asyncio.gather(*(reader.row("tenants", key) for key in keys), reader.fetch_all([TENANT_QUERY]))
        await asyncio.sleep(0)
        assert database.hold is not None
        database.hold.set()
        await first
        return await mixed

    with open_reader(database) as reader:
        acme, unknown, blue, repeated, listed = asyncio.run(scenario(reader))
    assert database.round_trips == [1, 2]
    assert (acme[0], unknown, blue[0], repeated[0]) == ("acme", None, "blue", "acme")
    assert listed[0][0][0] == "acme"


@pytest.mark.parametrize("invalid", INVALID_QUERIES, ids=[f"{q[0]}-{n}" for n, q in enumerate(INVALID_QUERIES)])
def test_an_invalid_query_fails_only_its_own_caller(database: CountingDatabase, invalid: NamedQuery) -> None:
    database.hold = threading.Event()

    async def scenario(reader: BatchedReader) -> tuple[list[Any], Any]:
        first = asyncio.ensure_future(reader.fetch("clock"))
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        queries = ([TENANT_QUERY], [TENANT_QUERY, invalid, TENANT_QUERY], [TENANT_QUERY])
        mixed = [reader.fetch_all(several) for several in queries]
        waiting = asyncio.gather(*mixed, return_exceptions=True)
        await asyncio.sleep(0)
        assert database.hold is not None
        database.hold.set()
        await first
        return await waiting, await reader.fetch("clock")

    with open_reader(database) as reader:
        (before, failed, after), later = asyncio.run(scenario(reader))
    assert [list(rows) for rows in before] == [list(rows) for rows in after] == [[]]
    assert later
    assert isinstance(failed, Exception)


def test_a_lost_connection_is_replaced_without_an_error(database: CountingDatabase) -> None:
    database.lost = 1

    async def scenario(reader: BatchedReader) -> Any:
        return await asyncio.gather(*(reader.fetch("clock") for _ in range(5)))

    with open_reader(database) as reader:
        assert len(asyncio.run(scenario(reader))) == 5
    assert database.connections == 2


def test_queries_fail_while_the_database_is_unavailable_and_succeed_afterwards(database: CountingDatabase) -> None:
    database.lost = 2

    async def scenario(reader: BatchedReader) -> tuple[Any, Any]:
        (first,) = await asyncio.gather(reader.fetch("clock"), return_exceptions=True)
        return first, await reader.fetch("clock")

    with open_reader(database) as reader:
        first, second = asyncio.run(scenario(reader))
    assert isinstance(first, ConnectionLost)
    assert second


def test_an_unavailable_database_gets_two_round_trips_for_any_number_of_callers(database: CountingDatabase) -> None:
    """Otherwise each caller would wait for its own connection timeout, one after another."""
    database.lost = 2

    async def scenario(reader: BatchedReader) -> Any:
        queries = [reader.fetch("clock") for _ in range(50)]
        return await asyncio.gather(*queries, return_exceptions=True)

    with open_reader(database) as reader:
        answers = asyncio.run(scenario(reader))
    assert {type(answer) for answer in answers} == {ConnectionLost}
    assert len({id(answer) for answer in answers}) == 50, "each caller gets its own exception object"
    assert (database.round_trips, database.connections) == ([50, 50], 2)


def test_queries_that_are_repeated_one_by_one_are_answered_one_by_one(database: CountingDatabase) -> None:
    database.hold_clock = hold = threading.Event()

    async def scenario(reader: BatchedReader) -> Any:
        queries: list[NamedQuery] = [INVALID_QUERIES[0], TENANT_QUERY, ("clock", {})]
        futures = [asyncio.ensure_future(reader.fetch_all([query])) for query in queries]
        await asyncio.wait(futures[:2], timeout=30)
        done = [future.done() for future in futures]
        hold.set()
        return done, await asyncio.gather(*futures, return_exceptions=True)

    with open_reader(database) as reader:
        done, answers = asyncio.run(scenario(reader))
    assert done == [True, True, False]
    assert [isinstance(answer, Exception) for answer in answers] == [True, False, False]


def test_a_canceled_caller_does_not_affect_others(database: CountingDatabase) -> None:
    database.hold = threading.Event()

    async def scenario(reader: BatchedReader) -> Any:
        canceled = asyncio.ensure_future(reader.fetch("clock"))
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        canceled.cancel()
        assert database.hold is not None
        database.hold.set()
        return await reader.fetch("clock")

    with open_reader(database) as reader:
        assert asyncio.run(scenario(reader))


def test_two_event_loops_can_use_one_reader(database: CountingDatabase) -> None:
    async def fetch_many(reader: BatchedReader) -> Any:
        return await asyncio.gather(*(reader.fetch("clock") for _ in range(20)))

    found: list[Any] = []
    with open_reader(database) as reader:
        threads = [threading.Thread(target=lambda: found.append(asyncio.run(fetch_many(reader)))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [len(one) for one in found] == [20, 20]


def test_queries_before_the_stop_are_answered_and_later_ones_fail(database: CountingDatabase) -> None:
    database.hold = threading.Event()

    async def scenario(reader: BatchedReader) -> list[Any]:
        futures = [asyncio.ensure_future(reader.fetch("clock"))]
        await asyncio.to_thread(wait_until, lambda: database.round_trips)
        futures += [asyncio.ensure_future(reader.fetch("clock")) for _ in range(3)]
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(asyncio.to_thread(reader.stop))
        assert database.hold is not None
        database.hold.set()
        await stopping
        late = await asyncio.gather(reader.fetch("clock"), return_exceptions=True)
        return [*await asyncio.gather(*futures), *late]

    with open_reader(database) as reader:
        *answers, late = asyncio.run(scenario(reader))
    assert all(answers)
    assert len(answers) == 4
    assert isinstance(late, StoreError)


def test_queries_during_the_stop_get_a_result_or_an_error_and_never_wait(database: CountingDatabase) -> None:
    async def scenario(reader: BatchedReader) -> list[Any]:
        stopping = asyncio.ensure_future(asyncio.to_thread(reader.stop))
        results: list[Any] = []
        while not stopping.done():
            queries = [reader.fetch("clock") for _ in range(20)]
            results += await asyncio.wait_for(asyncio.gather(*queries, return_exceptions=True), 30)
        await stopping
        return results

    for _ in range(10):
        with open_reader(database) as reader:
            for result in asyncio.run(scenario(reader)):
                assert isinstance(result, ConnectionLost | list | tuple)


def test_a_reader_that_never_started_can_be_stopped(database: CountingDatabase) -> None:
    reader = BatchedReader(database, "test", LIMITS)
    reader.stop()
    with pytest.raises(ConnectionLost):
        asyncio.run(reader.fetch("clock"))
