"""The global order of events: nothing is missed, nothing comes twice, and a named reader is one at a time."""

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from callsheet.core.commands import MoveCursor, TakeCursor
from callsheet.engine.loops import Relay
from callsheet.engine.reading import Placed
from tests.support.places import Places
from tests.support.studio import Studio
from tests.support.waiting import wait_until


class Sink:
    """Keeps what it was given; breaks on demand."""

    def __init__(self) -> None:
        self.got: list[Placed] = []
        self.broken = False

    def __call__(self, events: Sequence[Placed]) -> None:
        if self.broken:
            raise OSError("the reader is away")
        self.got.extend(events)

    @property
    def told(self) -> list[tuple[str, int]]:
        return [(placed.event.subject, placed.event.seq) for placed in self.got]


def busy(studio: Studio, count: int) -> list[tuple[str, int]]:
    """Let jobs live, and return all their events."""
    jobs = [studio.ask() for _ in range(count)]
    for job in jobs:
        studio.finish(job)
    return [(job, event.seq) for job in jobs for event in studio.read.events(job)]


def settled(studio: Studio, count: int) -> None:
    """Wait until the feed shows so many events: it holds back what an unrelated older transaction might precede."""
    wait_until(lambda: len(studio.read.feed()) >= count)


def test_the_feed_shows_every_event_once_and_each_jobs_in_order(studio: Studio) -> None:
    # R25, R140, H21
    expected = busy(studio, 4)
    settled(studio, len(expected))
    feed = studio.read.feed()
    told = [(placed.event.subject, placed.event.seq) for placed in feed]
    assert sorted(told) == sorted(expected)
    assert [placed.place for placed in feed] == sorted({placed.place for placed in feed})
    for job in {job for job, _ in expected}:
        own = [seq for subject, seq in told if subject == job]
        assert own == list(range(1, len(own) + 1))


def test_a_reader_that_resumes_gets_neither_gap_nor_duplicate(studio: Studio) -> None:
    # R140, H21
    expected = busy(studio, 4)
    settled(studio, len(expected))
    got: list[Placed] = []
    place = (0, 0)
    while page := studio.read.feed(*place, count=3):
        got += page
        place = page[-1].place
    assert got == studio.read.feed()
    assert len(got) == len(expected)


def test_a_relay_delivers_each_event_once_in_the_global_order(studio: Studio) -> None:
    # H21, H22, X1
    sink = Sink()
    relay = Relay(studio.engine, "log", "me", sink, page=4)
    expected = busy(studio, 3)
    settled(studio, len(expected))
    while relay.run_once(studio.clock.now()):
        pass
    more = busy(studio, 2)
    settled(studio, len(expected) + len(more))
    while relay.run_once(studio.clock.now()):
        pass
    assert sorted(sink.told) == sorted(expected + more)
    assert [placed.place for placed in sink.got] == sorted({placed.place for placed in sink.got})


def test_readers_of_different_names_each_get_everything(studio: Studio) -> None:
    # R92
    expected = busy(studio, 2)
    settled(studio, len(expected))
    sinks = [Sink(), Sink()]
    for name, sink in zip(("log", "webhooks"), sinks, strict=True):
        assert Relay(studio.engine, name, "me", sink).run_once(studio.clock.now()) == len(expected)
    assert sinks[0].told == sinks[1].told


def test_a_second_relay_of_the_same_name_waits(studio: Studio) -> None:
    # R317
    expected = busy(studio, 1)
    settled(studio, len(expected))
    assert studio.do(TakeCursor(name="log", holder="first", hold_seconds=60)).held is True
    sink = Sink()
    second = Relay(studio.engine, "log", "second", sink)
    assert (second.run_once(studio.clock.now()), sink.told) == (0, [])
    studio.clock.advance(60)
    assert second.run_once(studio.clock.now()) == len(expected), "a reader that died is replaced"


def test_a_reader_that_lost_its_hold_moves_nothing(studio: Studio) -> None:
    # R317
    busy(studio, 1)
    studio.do(TakeCursor(name="log", holder="first", hold_seconds=10))
    studio.clock.advance(10)
    place = studio.do(TakeCursor(name="log", holder="second"))
    late = studio.do(MoveCursor(name="log", holder="first", tx=2**40, position=2**40))
    assert (late.held, late.position) == (False, place.position)
    assert studio.do(MoveCursor(name="nobody", holder="first", tx=1, position=1)).held is False


def test_what_a_broken_reader_did_not_take_comes_again(studio: Studio) -> None:
    # V3
    expected = busy(studio, 1)
    settled(studio, len(expected))
    sink = Sink()
    relay = Relay(studio.engine, "log", "me", sink)
    sink.broken = True
    with pytest.raises(OSError, match="away"):
        relay.run_once(studio.clock.now())
    sink.broken = False
    assert relay.run_once(studio.clock.now()) == len(expected)
    assert sorted(sink.told) == sorted(expected)


@pytest.fixture
def on_postgres(places: Places) -> Any:
    url = places.lend()
    with Studio(url) as studio:
        studio.tenant()
        studio.workflow()
        studio.top_up(100)
        yield studio
    places.give_back(url)


LATE = """INSERT INTO event (subject, seq, tenant, run, at, type, actor)
VALUES ('late', 1, 'acme', 1, 0, 'job.changed', 'system')"""


class SlowServer:
    """Another server that has written an event and takes its time to commit."""

    def __init__(self, place: str) -> None:
        self._connection = psycopg.connect(place)
        self._connection.execute(LATE)

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def roll_back(self) -> None:
        self._connection.rollback()
        self._connection.close()


def test_an_event_that_commits_late_is_shown_and_never_skipped(on_postgres: Studio) -> None:
    # R140, H21
    studio = on_postgres
    slow = SlowServer(studio.place)
    early = studio.ask()
    sink = Sink()
    relay = Relay(studio.engine, "log", "me", sink)
    for _ in range(3):
        relay.run_once(studio.clock.now())
    assert sink.told == [], "what came after an open transaction waits for it"
    slow.commit()
    settled(studio, 2)
    relay.run_once(studio.clock.now())
    assert sink.told == [("late", 1), (early, 1)]


def test_an_event_that_is_rolled_back_holds_nobody_up(on_postgres: Studio) -> None:
    # R140
    studio = on_postgres
    slow = SlowServer(studio.place)
    job = studio.ask()
    assert studio.read.feed() == []
    slow.roll_back()
    settled(studio, 1)
    assert [placed.event.subject for placed in studio.read.feed()] == [job]
