"""The event feed: every event once and in order; at most one relay per name delivers at a time."""

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from callsheet.core.model.commands import AcquireCursor, AdvanceCursor
from callsheet.engine.loops.sink_delivery import DeliveryError, Relay
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.store.dialect import CURRENT_TRANSACTION
from tests.support.databases.database_pool import DatabasePool
from tests.support.databases.faulty_database import faulty_engine
from tests.support.engine.engine_harness import EngineHarness
from tests.support.wait import wait_until


class Sink:
    """Keeps the events that a relay delivers; fails on demand."""

    def __init__(self) -> None:
        self.delivered: list[PositionedEvent] = []
        self.failing = False

    def __call__(self, events: Sequence[PositionedEvent]) -> None:
        if self.failing:
            raise OSError("the sink is unavailable")
        self.delivered.extend(events)

    @property
    def event_keys(self) -> list[tuple[str, int]]:
        return [(placed.event.subject, placed.event.seq) for placed in self.delivered]


def run_jobs(harness: EngineHarness, count: int) -> list[tuple[str, int]]:
    """Run jobs to their end and return all their events."""
    jobs = [harness.submit_job() for _ in range(count)]
    for job in jobs:
        harness.finish(job)
    return [(job, event.seq) for job in jobs for event in harness.reads.events(job)]


def wait_for_feed(harness: EngineHarness, count: int) -> None:
    """Wait until the feed has so many events: it holds back events that an older open transaction might precede."""
    wait_until(lambda: len(harness.reads.feed()) >= count)


def test_the_feed_has_every_event_once_and_the_events_of_a_job_in_order(harness: EngineHarness) -> None:
    # R25, R140, H21
    expected = run_jobs(harness, 4)
    wait_for_feed(harness, len(expected))
    feed = harness.reads.feed()
    event_keys = [(placed.event.subject, placed.event.seq) for placed in feed]
    assert sorted(event_keys) == sorted(expected)
    assert [placed.position for placed in feed] == sorted({placed.position for placed in feed})
    for job in {job for job, _ in expected}:
        own = [seq for subject, seq in event_keys if subject == job]
        assert own == list(range(1, len(own) + 1))


def test_a_reader_that_resumes_gets_no_gap_and_no_duplicate(harness: EngineHarness) -> None:
    # R140, H21
    expected = run_jobs(harness, 4)
    wait_for_feed(harness, len(expected))
    events: list[PositionedEvent] = []
    place = (0, 0)
    while page := harness.reads.feed(*place, count=3):
        events += page
        place = page[-1].position
    assert events == harness.reads.feed()
    assert len(events) == len(expected)


def test_a_relay_delivers_each_event_once_in_the_global_order(harness: EngineHarness) -> None:
    # H21, H22
    sink = Sink()
    relay = Relay(harness.engine, "log", "relay-1", sink, page=4)
    expected = run_jobs(harness, 3)
    wait_for_feed(harness, len(expected))
    while relay.run_once(harness.clock.now()):
        pass
    more = run_jobs(harness, 2)
    wait_for_feed(harness, len(expected) + len(more))
    while relay.run_once(harness.clock.now()):
        pass
    assert sorted(sink.event_keys) == sorted(expected + more)
    assert [placed.position for placed in sink.delivered] == sorted({placed.position for placed in sink.delivered})


def test_relays_with_different_names_each_deliver_every_event(harness: EngineHarness) -> None:
    expected = run_jobs(harness, 2)
    wait_for_feed(harness, len(expected))
    sinks = [Sink(), Sink()]
    for name, sink in zip(("log", "webhooks"), sinks, strict=True):
        assert Relay(harness.engine, name, "relay-1", sink).run_once(harness.clock.now()) == len(expected)
    assert sinks[0].event_keys == sinks[1].event_keys


def test_a_second_relay_of_the_same_name_waits_for_the_lock(harness: EngineHarness) -> None:
    expected = run_jobs(harness, 1)
    wait_for_feed(harness, len(expected))
    assert harness.do(AcquireCursor(name="log", holder="first", lock_seconds=60)).reserved is True
    sink = Sink()
    second = Relay(harness.engine, "log", "second", sink)
    assert (second.run_once(harness.clock.now()), sink.event_keys) == (0, [])
    harness.clock.advance(60)
    assert second.run_once(harness.clock.now()) == len(expected), "a relay that died is replaced"


def test_a_relay_that_lost_its_lock_does_not_move_the_cursor(harness: EngineHarness) -> None:
    run_jobs(harness, 1)
    harness.do(AcquireCursor(name="log", holder="first", lock_seconds=10))
    harness.clock.advance(10)
    cursor = harness.do(AcquireCursor(name="log", holder="second"))
    late = harness.do(AdvanceCursor(name="log", holder="first", tx=2**40, position=2**40))
    assert (late.reserved, late.position) == (False, cursor.position)
    assert harness.do(AdvanceCursor(name="unknown", holder="first", tx=1, position=1)).reserved is False


def test_events_that_a_sink_did_not_accept_are_delivered_again(harness: EngineHarness) -> None:
    # V3
    expected = run_jobs(harness, 1)
    wait_for_feed(harness, len(expected))
    sink = Sink()
    relay = Relay(harness.engine, "log", "relay-1", sink)
    sink.failing = True
    for delay in ("1 second", "2 seconds"):
        message = rf"log: OSError: the sink is unavailable. {len(expected)} events will be delivered again in {delay}."
        with pytest.raises(DeliveryError, match=message):
            relay.run_once(harness.clock.now())
        assert relay.run_once(harness.clock.now()) == 0, "it waits before it tries again"
        harness.clock.advance(2)
    sink.failing = False
    assert relay.run_once(harness.clock.now()) == len(expected)
    assert sorted(sink.event_keys) == sorted(expected)


def test_a_failed_sink_does_not_keep_the_lock_from_the_next_server(harness: EngineHarness) -> None:
    expected = run_jobs(harness, 1)
    wait_for_feed(harness, len(expected))
    sink = Sink()
    sink.failing = True
    with pytest.raises(DeliveryError):
        Relay(harness.engine, "log", "stopped", sink).run_once(harness.clock.now())
    sink.failing = False
    assert Relay(harness.engine, "log", "restarted", sink).run_once(harness.clock.now()) == len(expected)


@pytest.fixture
def on_postgres(database_pool: DatabasePool) -> Any:
    url = database_pool.acquire()
    with EngineHarness(url) as harness:
        harness.tenant()
        harness.workflow()
        harness.top_up(100)
        yield harness
    database_pool.release(url)


LATE = f"""INSERT INTO event (subject, seq, tenant, run, at, type, actor, tx)
VALUES ('late', 1, 'acme', 1, 0, 'job.changed', 'system', {CURRENT_TRANSACTION})"""


class SlowServer:
    """Another server that has written an event and has not committed it yet."""

    def __init__(self, database_url: str) -> None:
        self._connection = psycopg.connect(database_url)
        self._connection.execute(LATE.encode())

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def roll_back(self) -> None:
        self._connection.rollback()
        self._connection.close()


def test_an_event_that_commits_late_is_delivered_and_never_skipped(on_postgres: EngineHarness) -> None:
    # R140, H21
    harness = on_postgres
    slow = SlowServer(harness.database_url)
    early = harness.submit_job()
    sink = Sink()
    relay = Relay(harness.engine, "log", "relay-1", sink)
    for _ in range(3):
        relay.run_once(harness.clock.now())
    assert sink.event_keys == [], "later events wait for an open transaction"
    slow.commit()
    wait_for_feed(harness, 2)
    relay.run_once(harness.clock.now())
    assert sink.event_keys == [("late", 1), (early, 1)]


def test_an_event_that_is_rolled_back_does_not_block_later_ones(on_postgres: EngineHarness) -> None:
    # R140
    harness = on_postgres
    slow = SlowServer(harness.database_url)
    job = harness.submit_job()
    assert harness.reads.feed() == []
    slow.roll_back()
    wait_for_feed(harness, 1)
    assert [placed.event.subject for placed in harness.reads.feed()] == [job]


# -- without new events


def test_a_relay_commits_nothing_while_there_are_no_new_events(harness: EngineHarness) -> None:
    commits: list[None] = []
    delivered: list[PositionedEvent] = []

    def consume(events: Sequence[PositionedEvent]) -> None:
        delivered.extend(events)

    job = harness.submit_job()
    harness.finish(job)
    expected = len(harness.reads.events(job))
    with faulty_engine(harness.database, lambda: commits.append(None)) as engine:
        relay = Relay(engine, "log", "relay-1", consume)
        wait_until(lambda: relay.run_once(0) or len(delivered) >= expected)
        wait_until(lambda: not relay.run_once(0) and len(delivered) >= expected)
        before = len(commits)
        assert before >= 2
        assert [relay.run_once(0) for _ in range(20)] == [0] * 20
        assert len(commits) == before
        harness.submit_job()
        wait_until(lambda: relay.run_once(0))
        assert len(commits) > before


def test_a_second_relay_of_the_same_name_commits_nothing_either(harness: EngineHarness) -> None:
    commits: list[None] = []
    delivered: list[PositionedEvent] = []
    harness.submit_job()
    with faulty_engine(harness.database, lambda: commits.append(None)) as engine:
        relays = [Relay(engine, "log", name, delivered.extend) for name in ("one", "two")]
        wait_until(lambda: delivered or relays[0].run_once(0))
        for relay in relays:
            relay.run_once(0)
        before = len(commits)
        assert [relay.run_once(0) for relay in relays * 10] == [0] * 20
        assert len(commits) == before
        assert len(delivered) == len({placed.position for placed in delivered})
