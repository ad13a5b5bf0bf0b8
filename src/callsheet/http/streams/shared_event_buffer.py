"""A channel: the latest events of one job or tenant in memory, which all its streams share.

Events become a batch when every stream that waits has had its turn to send the previous one. So batches grow with the
load, and each stream sends many events at once. The oldest batches are dropped when the memory of the channel is full;
a stream that needs them reads the database. Streams that read the same part of the past share those pages too.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.http.streams.send_scheduler import Line, Turn, Turns
from callsheet.queries.events.shared_batches import EVENTS_MAX, EventBatch, Place, PlaceOf, cut_batches
from callsheet.queries.events.streams import PAGE_EVENTS, FetchPage
from callsheet.settings import HttpSettings

_PAGES_MAX = 8


class Page(NamedTuple):
    """Events that were read from the database, for all streams that continue after a place in it."""

    start: Place
    batches: Sequence[EventBatch]
    full: bool
    """The database may have more events."""
    next_batch: int
    """The first shared batch that the page may lack."""
    marks: int
    """The number of calls of `mark_behind` before the page was read."""

    def continues(self, after: Place) -> bool:
        """Return whether the page has the next event after a place."""
        return bool(self.batches) and self.start <= after < self.batches[-1].last


class PageRead(NamedTuple):
    """What a stream gets from a page."""

    batches: Sequence[EventBatch]
    more: bool


class Channel:
    """The streams and long polls of one job or tenant."""

    def __init__(self, place_of: PlaceOf, turns: Turns, settings: HttpSettings) -> None:
        self.subscriptions: set[Subscription] = set()
        self.waiting: set[Subscription] = set()
        """Subscriptions that have taken all batches."""
        self._place_of = place_of
        self._turns = turns
        self._line = Line(self._share)
        self._settings = settings
        self._unshared: list[PositionedEvent] = []
        self._batches: deque[EventBatch] = deque()
        self.first_batch = 0
        """The number of the oldest batch in memory."""
        self._events = self._bytes = 0
        self._marks = 0
        self._pages: deque[Page] = deque(maxlen=_PAGES_MAX)
        self._reading = asyncio.Lock()

    @property
    def next_batch(self) -> int:
        """The number of the next batch."""
        return self.first_batch + len(self._batches)

    def subscribe(self) -> "Subscription":
        """Subscribe to all events that are pushed from now on."""
        subscription = Subscription(self)
        self.subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: "Subscription") -> bool:
        """End a subscription; return False if it has ended before."""
        if subscription not in self.subscriptions:
            return False
        self.subscriptions.discard(subscription)
        self.forget_if_all_wait()
        return True

    # -- events

    def push(self, events: Sequence[PositionedEvent]) -> None:
        """Add events."""
        self._unshared.extend(events)
        if not self._line.turns or len(self._unshared) >= self._settings.stream_buffer_events_max:
            self._share()

    def mark_behind(self) -> None:
        """Make all streams read the database: it has events that were not pushed."""
        self._marks += 1
        for subscription in self.subscriptions:
            subscription.marked = True
        self._wake_waiting()

    def end(self) -> None:
        """End all streams."""
        for subscription in self.subscriptions:
            subscription.end()

    def batches_from(self, number: int) -> list[EventBatch]:
        """Return the shared batches from a number on."""
        return list(self._batches)[max(number - self.first_batch, 0) :]

    def forget_if_all_wait(self) -> None:
        """Free the memory if no stream needs it."""
        if len(self.waiting) == len(self.subscriptions):
            self._drop_batches(len(self._batches))
            self._pages.clear()

    def _share(self) -> None:
        """Make batches of the new events, and let the waiting streams send them."""
        if not self._unshared:
            return
        events, self._unshared = self._unshared, []
        events_max = min(EVENTS_MAX, self._settings.stream_buffer_events_max)
        for batch in cut_batches(events, self._place_of, events_max):
            self._batches.append(batch)
            self._events += len(batch.events)
            self._bytes += batch.size
        while self._batches and (
            self._events > self._settings.stream_buffer_events_max
            or self._bytes > self._settings.stream_buffer_bytes_max
        ):
            self._drop_batches(1)
        self._wake_waiting()

    def _drop_batches(self, count: int) -> None:
        for _ in range(count):
            batch = self._batches.popleft()
            self._events -= len(batch.events)
            self._bytes -= batch.size
        self.first_batch += count

    # -- turns

    def join_line(self, turn: Turn) -> None:
        """Let a stream wait for its turn."""
        self._turns.join(self._line, (turn,))

    def _wake_waiting(self) -> None:
        waiting, self.waiting = self.waiting, set()
        self._turns.join(self._line, [one.waker for one in waiting if one.waker is not None])

    # -- the database

    async def read_page(self, after: Place, fetch: FetchPage) -> Page:
        """Return the events after a place. Streams that read the same part of the past share one read."""
        if (page := self._find_page(after)) is not None:
            return page
        async with self._reading:
            if (page := self._find_page(after)) is not None:
                return page
            next_batch, marks = self.next_batch, self._marks
            events = await fetch(after)
            batches = tuple(cut_batches(events, self._place_of, EVENTS_MAX))
            page = Page(after, batches, len(events) == PAGE_EVENTS, next_batch, marks)
            if sum(batch.size for batch in batches) * _PAGES_MAX <= self._settings.stream_buffer_bytes_max:
                self._pages.append(page)
            return page

    def lacks_events(self, page: Page) -> bool:
        """Return whether the database may have more events than a page and the batches that follow it."""
        return page.full or page.marks != self._marks

    def _find_page(self, after: Place) -> Page | None:
        return next((page for page in self._pages if page.continues(after)), None)


class Subscription:
    """One stream or long poll of a channel."""

    __slots__ = ("_channel", "_has_turn", "_next_batch", "ended", "marked", "waker")

    def __init__(self, channel: Channel) -> None:
        self.ended = False
        """The server is shutting down."""
        self.marked = False
        """The database has events that were not pushed."""
        self.waker: Turn | None = None
        """Ends `wait`."""
        self._channel = channel
        self._next_batch = channel.next_batch
        self._has_turn = False

    @property
    def behind(self) -> bool:
        """The database has events that are not in the shared batches."""
        return self.marked or self._next_batch < self._channel.first_batch

    def take(self) -> Sequence[EventBatch]:
        """Return the shared batches since the last call."""
        batches = self._channel.batches_from(self._next_batch)
        self._next_batch = self._channel.next_batch
        return batches

    async def read_page(self, after: Place, fetch: FetchPage) -> PageRead:
        """Read the database after a place, and continue with the shared batches that follow."""
        self.marked = False
        page = await self._channel.read_page(after, fetch)
        self._next_batch = page.next_batch
        return PageRead(page.batches, self._channel.lacks_events(page))

    def discard_events(self) -> None:
        """Skip all events until now, because the caller reads the database next."""
        self.marked = False
        self._next_batch = self._channel.next_batch

    def end(self) -> None:
        self.ended = True
        if self.waker is not None:
            _resolve(self.waker)

    async def wait(self, seconds: float) -> bool:
        """Wait for events, a mark or the end; return False on timeout."""
        self._has_turn = False
        if not self._has_news():
            loop, channel = asyncio.get_running_loop(), self._channel
            self.waker = loop.create_future()
            channel.waiting.add(self)
            channel.forget_if_all_wait()
            timer = loop.call_later(seconds, _resolve, self.waker)
            try:
                self._has_turn = await self.waker
            finally:
                timer.cancel()
                channel.waiting.discard(self)
                self.waker = None
        return self._has_news()

    async def turn(self) -> None:
        """Wait until this stream may send a batch."""
        if not self._has_turn:
            turn: Turn = asyncio.get_running_loop().create_future()
            self._channel.join_line(turn)
            await turn
        self._has_turn = False

    def _has_news(self) -> bool:
        return self.ended or self.behind or self._next_batch < self._channel.next_batch


def _resolve(waker: Turn) -> None:
    if not waker.done():
        waker.set_result(False)
