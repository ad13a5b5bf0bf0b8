"""The global order of events: nothing is missed, nothing comes twice, and a named reader is one at a time."""

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from callsheet.core.model.commands import AcquireCursor, AdvanceCursor
from callsheet.engine.loops.relay import Relay
from callsheet.engine.reads.synchronous import PositionedEvent
from tests.support.databases.database_pool import DatabasePool
from tests.support.engine.engine_harness import EngineHarness
from tests.support.wait import wait_until


class Sink:
    """Keeps what it was given; breaks on demand."""

    def __init__(self) -> None:
        self.got: list[PositionedEvent] = []
        self.broken = False

    def __call__(self, events: Sequence[PositionedEvent]) -> None:
        if self.broken:
            raise OSError("the reader is away")
        self.got.extend(events)

    @property
    def event_keys(self) -> list[tuple[str, int]]:
        return [(placed.event.subject, placed.event.seq) for placed in self.got]


def run_jobs(harness: EngineHarness, count: int) -> list[tuple[str, int]]:
    """Let jobs live, and return all their events."""
    jobs = [harness.submit_job() for _ in range(count)]
    for job in jobs:
        harness.finish(job)
    return [(job, event.seq) for job in jobs for event in harness.reads.events(job)]


def wait_for_feed(harness: EngineHarness, count: int) -> None:
    """Wait until the feed shows so many events: it holds back what an unrelated older transaction might precede."""
    wait_until(lambda: len(harness.reads.feed()) >= count)


def test_the_feed_shows_every_event_once_and_each_jobs_in_order(harness: EngineHarness) -> None:
    # R25, R140, H21
    expected = run_jobs(harness, 4)
    wait_for_feed(harness, len(expected))
    feed = harness.reads.feed()
    event_keys = [(placed.event.subject, placed.event.seq) for placed in feed]
    assert sorted(event_keys) == sorted(expected)
    assert [placed.place for placed in feed] == sorted({placed.place for placed in feed})
    for job in {job for job, _ in expected}:
        own = [seq for subject, seq in event_keys if subject == job]
        assert own == list(range(1, len(own) + 1))


def test_a_reader_that_resumes_gets_neither_gap_nor_duplicate(harness: EngineHarness) -> None:
    # R140, H21
    expected = run_jobs(harness, 4)
    wait_for_feed(harness, len(expected))
    got: list[PositionedEvent] = []
    database_url = (0, 0)
    while page := harness.reads.feed(*database_url, count=3):
        got += page
        database_url = page[-1].place
    assert got == harness.reads.feed()
    assert len(got) == len(expected)


def test_a_relay_delivers_each_event_once_in_the_global_order(harness: EngineHarness) -> None:
    # H21, H22, X1
    sink = Sink()
    relay = Relay(harness.engine, "log", "me", sink, page=4)
    expected = run_jobs(harness, 3)
    wait_for_feed(harness, len(expected))
    while relay.run_once(harness.clock.now()):
        pass
    more = run_jobs(harness, 2)
    wait_for_feed(harness, len(expected) + len(more))
    while relay.run_once(harness.clock.now()):
        pass
    assert sorted(sink.event_keys) == sorted(expected + more)
    assert [placed.place for placed in sink.got] == sorted({placed.place for placed in sink.got})


def test_readers_of_different_names_each_get_everything(harness: EngineHarness) -> None:
    # R92
    expected = run_jobs(harness, 2)
    wait_for_feed(harness, len(expected))
    sinks = [Sink(), Sink()]
    for name, sink in zip(("log", "webhooks"), sinks, strict=True):
        assert Relay(harness.engine, name, "me", sink).run_once(harness.clock.now()) == len(expected)
    assert sinks[0].event_keys == sinks[1].event_keys


def test_a_second_relay_of_the_same_name_waits(harness: EngineHarness) -> None:
    # R317
    expected = run_jobs(harness, 1)
    wait_for_feed(harness, len(expected))
    assert harness.do(AcquireCursor(name="log", holder="first", lock_seconds=60)).reserved is True
    sink = Sink()
    second = Relay(harness.engine, "log", "second", sink)
    assert (second.run_once(harness.clock.now()), sink.event_keys) == (0, [])
    harness.clock.advance(60)
    assert second.run_once(harness.clock.now()) == len(expected), "a reader that died is replaced"


def test_a_reader_that_lost_its_hold_moves_nothing(harness: EngineHarness) -> None:
    # R317
    run_jobs(harness, 1)
    harness.do(AcquireCursor(name="log", holder="first", lock_seconds=10))
    harness.clock.advance(10)
    database_url = harness.do(AcquireCursor(name="log", holder="second"))
    late = harness.do(AdvanceCursor(name="log", holder="first", tx=2**40, position=2**40))
    assert (late.reserved, late.position) == (False, database_url.position)
    assert harness.do(AdvanceCursor(name="nobody", holder="first", tx=1, position=1)).reserved is False


def test_what_a_broken_reader_did_not_take_comes_again(harness: EngineHarness) -> None:
    # V3
    expected = run_jobs(harness, 1)
    wait_for_feed(harness, len(expected))
    sink = Sink()
    relay = Relay(harness.engine, "log", "me", sink)
    sink.broken = True
    with pytest.raises(OSError, match="away"):
        relay.run_once(harness.clock.now())
    sink.broken = False
    assert relay.run_once(harness.clock.now()) == len(expected)
    assert sorted(sink.event_keys) == sorted(expected)


@pytest.fixture
def on_postgres(database_pool: DatabasePool) -> Any:
    url = database_pool.acquire()
    with EngineHarness(url) as harness:
        harness.tenant()
        harness.workflow()
        harness.top_up(100)
        yield harness
    database_pool.release(url)


LATE = """INSERT INTO event (subject, seq, tenant, run, at, type, actor)
VALUES ('late', 1, 'acme', 1, 0, 'job.changed', 'system')"""


class SlowServer:
    """Another server that has written an event and takes its time to commit."""

    def __init__(self, database_url: str) -> None:
        self._connection = psycopg.connect(database_url)
        self._connection.execute(LATE)

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def roll_back(self) -> None:
        self._connection.rollback()
        self._connection.close()


def test_an_event_that_commits_late_is_shown_and_never_skipped(on_postgres: EngineHarness) -> None:
    # R140, H21
    harness = on_postgres
    slow = SlowServer(harness.database_url)
    early = harness.submit_job()
    sink = Sink()
    relay = Relay(harness.engine, "log", "me", sink)
    for _ in range(3):
        relay.run_once(harness.clock.now())
    assert sink.event_keys == [], "what came after an open transaction waits for it"
    slow.commit()
    wait_for_feed(harness, 2)
    relay.run_once(harness.clock.now())
    assert sink.event_keys == [("late", 1), (early, 1)]


def test_an_event_that_is_rolled_back_holds_nobody_up(on_postgres: EngineHarness) -> None:
    # R140
    harness = on_postgres
    slow = SlowServer(harness.database_url)
    job = harness.submit_job()
    assert harness.reads.feed() == []
    slow.roll_back()
    wait_for_feed(harness, 1)
    assert [placed.event.subject for placed in harness.reads.feed()] == [job]
