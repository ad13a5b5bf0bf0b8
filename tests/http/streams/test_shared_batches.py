"""Streams of one tenant share their events: each is encoded once, streams take turns, and slow ones read the database.

In most tests the database is a list in memory, so that every read can be counted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import callsheet.api.events as api
from callsheet.core.model.rows import Event
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.http.auth.authenticator import Caller, Signer
from callsheet.http.routes import events
from callsheet.http.streams.send_scheduler import TURNS_MAX, Turns
from callsheet.http.streams.shared_event_buffer import Channel, Subscription
from callsheet.queries.events.shared_batches import BYTES_MAX, EVENTS_MAX, EventFilter
from callsheet.queries.events.streams import follow_tenant
from callsheet.settings import HttpSettings
from tests.support.http.raw_http import RawConnection
from tests.support.http.sse import STREAM
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

BUFFER_MAX = 4
CALLER = Caller("client", "acme", "key")
ALL = EventFilter()


class Log:
    """The part of a query context that the streams of a tenant read, with the channel of that tenant."""

    def __init__(self, turns: Turns | None = None, **settings: Any) -> None:
        self.settings = HttpSettings(**{"heartbeat_seconds": 0.01} | settings)
        self.signer = Signer(b"secret")
        self.reads = self
        self.channel = Channel(lambda positioned: positioned.position, turns or Turns(), self.settings)
        self.encoded: Counter[int] = Counter()
        """How often each event was encoded."""
        self.reads_from: list[int] = []
        self._events: list[PositionedEvent] = []

    async def scan(self, _query: str, *, tenant: str, tx: int, position: int, count: int) -> list[tuple[Any, ...]]:
        assert tenant == "acme"
        self.reads_from.append(position)
        found = [placed for placed in self._events if placed.position > (tx, position)][:count]
        await asyncio.sleep(0)
        return [(p[1], p[0], *(getattr(p.event, name) for name in Event.__struct_fields__)) for p in found]

    def publish(self, *numbers: int, data: str | None = None, pushed: bool = True) -> None:
        """Commit events; the channel gets them if they are pushed."""
        kinds = ("task.progressed", "job.completed")
        new = [
            PositionedEvent((1, n, Event("job", n, "acme", 1, n, kinds[n % 2], None, None, None, "worker", data)))
            for n in numbers
        ]
        self._events += new
        if pushed:
            self.channel.push(new)

    def encode(self, positioned: PositionedEvent) -> bytes:
        self.encoded[positioned[1]] += 1
        return b"%d," % positioned[1]


class Reader:
    """A stream that collects what it sends."""

    def __init__(self, log: Log, selected: EventFilter = ALL, after: int = 0) -> None:
        self.log = log
        self.seen: list[int] = []
        self.bodies: list[bytes] = []
        self.idle = 0
        self.subscription: Subscription = log.channel.subscribe()
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._selected = selected
        self._after = (1, after) if after else (0, 0)

    async def run(self, until: int, sends: "list[int] | None" = None) -> None:
        """Read the stream until an event arrives."""
        async for one in follow_tenant(self.log, CALLER, self._after, self.subscription):  # type: ignore[arg-type]
            if one is None:
                self.idle += 1
                continue
            body = one.batch.body(self.log.encode, one.skip, self._selected)
            if sends is not None:
                sends.append(len(self.bodies))
            self.bodies.append(body)
            self.seen += [int(number) for number in body.split(b",") if number]
            if one.batch.last[1] >= until:
                return
            await self.may_send.wait()


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(bounded())


async def until(condition: Callable[..., Any]) -> None:
    """Let the event loop run until a condition is true."""
    while not condition():  # noqa: ASYNC110 - nothing signals most conditions
        await asyncio.sleep(0)


async def live(*readers: Reader) -> None:
    """Wait until the readers have read the past."""
    await until(lambda: all(reader.idle for reader in readers))


def test_many_streams_share_one_encoding_of_each_event_and_one_read_of_the_past() -> None:
    async def main() -> None:
        log = Log(heartbeat_seconds=60.0)
        log.publish(*range(1, 1_001), pushed=False)
        readers = [Reader(log) for _ in range(50)]
        running = [asyncio.create_task(reader.run(1_300)) for reader in readers]
        await until(lambda: all(len(reader.seen) >= 1_000 for reader in readers))
        for first in range(1_001, 1_301, 3):
            log.publish(*range(first, first + 3))
            await asyncio.sleep(0)
        await asyncio.gather(*running)
        assert all(reader.seen == list(range(1, 1_301)) for reader in readers)
        assert set(log.encoded.values()) == {1}
        assert log.reads_from == [0, 256, 512, 768]

    run(main())


def test_streams_with_the_same_filter_share_the_bytes() -> None:
    async def main() -> None:
        log = Log()
        completed = EventFilter(("job.",))
        readers = [Reader(log, completed if number % 2 else ALL) for number in range(10)]
        running = [asyncio.create_task(reader.run(50)) for reader in readers]
        await live(*readers)
        log.publish(*range(1, 51))
        await asyncio.gather(*running)
        assert [reader.seen for reader in readers] == [list(range(1, 51, 1 + number % 2)) for number in range(10)]
        assert len({id(body) for reader in readers for body in reader.bodies}) == 2
        assert set(log.encoded.values()) == {1}

    run(main())


@pytest.mark.parametrize("past", [True, False])
def test_few_streams_send_before_the_event_loop_does_other_work(past: bool) -> None:
    async def main() -> None:
        log, count = Log(heartbeat_seconds=60.0), 4 * TURNS_MAX
        readers = [Reader(log) for _ in range(count)]
        sends: list[int] = []
        sends_per_iteration = []
        if past:
            log.publish(*range(1, EVENTS_MAX + 1), pushed=False)
        running = [asyncio.create_task(reader.run(EVENTS_MAX, sends)) for reader in readers]
        if not past:
            await until(lambda: log.channel.waiting == log.channel.subscriptions)
            log.publish(*range(1, EVENTS_MAX + 1))
        while not all(one.done() for one in running):
            before = len(sends)
            await asyncio.sleep(0)
            sends_per_iteration.append(len(sends) - before)
        assert max(sends_per_iteration) <= TURNS_MAX
        assert sum(sends_per_iteration) == len(sends) >= count

    run(main())


def test_a_batch_is_limited_by_the_size_of_its_events() -> None:
    async def main() -> None:
        log = Log()
        reader = Reader(log)
        running = asyncio.create_task(reader.run(2_000))
        await live(reader)
        log.publish(*range(1, 1_001))
        log.publish(*range(1_001, 1_011), data="x" * (BYTES_MAX // 2 - 1_000))
        log.publish(*range(1_011, 1_013), data="x" * BYTES_MAX * 2)
        log.publish(2_000)
        await running
        sizes = [len([number for number in body.split(b",") if number]) for body in reader.bodies]
        assert max(sizes) <= EVENTS_MAX
        assert 2 in sizes
        assert sizes.count(1) >= 2
        assert reader.seen == [*range(1, 1_013), 2_000]

    run(main())


def test_a_tenant_with_many_streams_does_not_delay_another_one() -> None:
    async def main() -> None:
        turns = Turns()
        busy, quiet = Log(turns, heartbeat_seconds=60.0), Log(turns, heartbeat_seconds=60.0)
        readers, other = [Reader(busy) for _ in range(20 * TURNS_MAX)], Reader(quiet)
        running = [asyncio.create_task(reader.run(1)) for reader in readers]
        running.append(asyncio.create_task(other.run(1)))
        await until(lambda: busy.channel.waiting == busy.channel.subscriptions and quiet.channel.waiting)
        busy.publish(1)
        quiet.publish(1)
        await running[-1]
        assert sum(1 for reader in readers if reader.seen) <= 2 * TURNS_MAX
        await asyncio.gather(*running)

    run(main())


def test_a_stream_that_does_not_read_costs_a_bounded_buffer_and_continues_from_the_database() -> None:
    async def main() -> None:
        log = Log(stream_buffer_events_max=BUFFER_MAX, heartbeat_seconds=60.0)
        slow, fast = Reader(log), Reader(log)
        running = [asyncio.create_task(reader.run(50)) for reader in (slow, fast)]
        await until(lambda: log.channel.waiting == log.channel.subscriptions)
        slow.may_send.clear()
        for number in range(1, 51):
            log.publish(number)
            assert sum(len(batch.events) for batch in log.channel.batches_from(0)) <= BUFFER_MAX
            await until(lambda number=number: len(fast.seen) == number)
        assert len(slow.seen) == 1
        assert slow.subscription.behind
        slow.may_send.set()
        await asyncio.gather(*running)
        assert slow.seen == fast.seen == list(range(1, 51))
        assert set(log.encoded.values()) <= {1, 2}

    run(main())


def test_events_that_no_stream_needs_are_not_kept() -> None:
    async def main() -> None:
        log = Log()
        readers = [Reader(log) for _ in range(3)]
        running = [asyncio.create_task(reader.run(11)) for reader in readers]
        await live(*readers)
        log.publish(*range(1, 11))
        await until(lambda: all(len(reader.seen) == 10 for reader in readers) and not log.channel.batches_from(0))
        log.publish(11)
        await asyncio.gather(*running)
        assert [reader.seen for reader in readers] == [list(range(1, 12))] * 3

    run(main())


def test_a_page_that_was_read_before_a_mark_does_not_replace_the_read_that_the_mark_demands() -> None:
    async def main() -> None:
        log = Log(heartbeat_seconds=60.0)
        log.publish(*range(1, 11), pushed=False)
        first, second = Reader(log), Reader(log, after=5)  # the second one keeps the page in memory
        running = asyncio.create_task(first.run(11))
        await until(lambda: len(first.seen) == 10)
        log.publish(11, pushed=False)
        log.channel.mark_behind()
        await asyncio.gather(running, second.run(11))
        assert (first.seen, second.seen) == (list(range(1, 12)), list(range(6, 12)))

    run(main())


@pytest.mark.parametrize("burst", [1, BUFFER_MAX, BUFFER_MAX + 1, 3 * BUFFER_MAX])
def test_events_that_overflow_the_buffer_are_read_from_the_database(burst: int) -> None:
    # R140
    async def main() -> None:
        log, last = Log(stream_buffer_events_max=BUFFER_MAX), 10 * burst
        reader = Reader(log)
        running = asyncio.create_task(reader.run(last))
        for first in range(1, last + 1, burst):
            idle = reader.idle
            await until(lambda idle=idle: reader.idle > idle)  # the stream waits; now the buffer can overflow
            log.publish(*range(first, first + burst))
        await running
        assert reader.seen == list(range(1, last + 1))

    run(main())


def test_a_page_that_streams_share_never_hides_newer_events() -> None:
    """A page that one stream read is older than what another stream, which uses it later, must get."""

    async def main() -> None:
        log = Log(stream_buffer_events_max=BUFFER_MAX, heartbeat_seconds=60.0)
        log.publish(*range(1, 11), pushed=False)
        first = Reader(log)
        busy = Reader(log)  # it never takes its events, so that the page is kept
        running = asyncio.create_task(first.run(40))
        await until(lambda: len(first.seen) == 10)
        log.publish(*range(11, 31))
        await until(lambda: len(first.seen) == 30)
        second = Reader(log, after=5)
        catching_up = asyncio.create_task(second.run(40))
        await until(lambda: len(second.seen) == 25)
        log.publish(*range(31, 41))
        await asyncio.gather(running, catching_up)
        assert first.seen == list(range(1, 41))
        assert second.seen == list(range(6, 41))
        assert log.channel.unsubscribe(busy.subscription)

    run(main())


def test_the_streams_of_a_tenant_and_of_a_job_encode_each_event_once(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: Counter[tuple[int, bool]] = Counter()
    encode = events._frame  # noqa: SLF001 - the test counts its calls

    def count(event: api.Event) -> bytes:
        encoded[event.seq, event.cursor is None] += 1
        return encode(event)

    monkeypatch.setattr(events, "_frame", count)
    with LiveServer(database_url, tmp_path) as live_server, ExitStack() as stack:
        job = live_server.submit()["id"]
        for path in ["/v1/events?cursor=now", f"/v1/jobs/{job}/events?cursor=1"] * 20:
            reader = stack.enter_context(RawConnection(live_server.url))
            reader.send_request("GET", path, live_server.keys["client"], accept=STREAM)
            stack.callback(reader.read_until, b"event: job.completed")
        channels = live_server.callsheet.state.broadcaster._channels  # noqa: SLF001 - the test waits for live streams
        wait_until(lambda: [len(channel.waiting) for channel in list(channels.values())] == [20, 20])
        live_server.work()
        stack.close()
    assert len(encoded) > 2
    assert set(encoded.values()) == {1}
