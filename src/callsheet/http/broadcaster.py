"""Live events: one thread follows the global event order and passes each event to the matching subscriptions.

A stream subscribes, then reads past events from the database, then takes live events, so it misses none.
A slow one is marked as behind and reads the database again, so memory is bounded.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from callsheet.config import HttpSettings
from callsheet.engine.background_thread import BackgroundThread
from callsheet.engine.engine import Engine
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.http.server.problems import Problem, unavailable
from callsheet.store.connection import StoreError

_PAGE = 1_000
_RETRY_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05)
"""What was committed may stay hidden behind an older transaction for a moment: look again soon."""
_HIDDEN_CHECK_SECONDS = 0.25
"""How often, in a bustle, those are told to look for themselves whose news a transaction elsewhere hides."""
JOB, TENANT = "job", "tenant"
Key = tuple[str, str]


class Subscription:
    """The events of one stream since it subscribed."""

    __slots__ = ("_most", "_wake", "behind", "ended", "events")

    def __init__(self, most: int) -> None:
        self.events: deque[PositionedEvent] = deque()
        self.behind = False
        self.ended = False
        """End the subscription because the server shuts down."""
        self._most = most
        self._wake = asyncio.Event()

    def push(self, placed: PositionedEvent) -> None:
        if len(self.events) >= self._most:
            self.events.clear()
            self.behind = True
        self.events.append(placed)
        self._wake.set()

    def end(self) -> None:
        self.ended = True
        self._wake.set()

    def mark_behind(self) -> None:
        """Say that there is something in the database that was not pushed."""
        self.behind = True
        self._wake.set()

    def clear_behind(self) -> None:
        """Say that the database was read: what is still missing will be pushed."""
        self.behind = False

    def discard_events(self) -> None:
        """Forget the events so far, for a reader that reads the database next."""
        self.events.clear()
        self.behind = False

    async def wait(self, seconds: float) -> bool:
        """Wait until there is something; False if there was nothing in that time."""
        if not self.events and not self.behind and not self.ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        self._wake.clear()
        return bool(self.events) or self.behind or self.ended


class Broadcaster(BackgroundThread):
    """Follows the events while there are subscriptions."""

    def __init__(self, engine: Engine, settings: HttpSettings) -> None:
        super().__init__("broadcaster")
        self._engine = engine
        self._settings = settings
        self._subscriptions: dict[Key, set[Subscription]] = {}
        self._by_owner: dict[str, int] = {}
        self.count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake_up = threading.Event()
        self._position: tuple[int, int] | None = None
        self._positioned = asyncio.Event()
        self._generation = 0
        """Grows when the last watcher leaves: a place that was found for those before is too late for who comes."""
        self._position_generation = -1
        self._hidden_check_at = 0.0
        self._ended = False
        engine.commit_listeners.append(self._wake_up.set)

    async def subscribe(self, key: Key, owner: str, *, browser: bool = False) -> Subscription:
        """Begin to watch; what is committed from now on will come. A browser has a user's token, and fewer streams."""
        if self._ended:
            raise Problem(503, "stopping", "This server stops: come back in a moment.", {"retry-after": "1"})
        own = self._by_owner.get(owner, 0)
        if own >= (self._settings.streams_per_user_max if browser else self._settings.streams_per_key_max):
            raise _too_many_streams(f"{own} streams of this {'user' if browser else 'key'} are open: close some.")
        if self.count >= self._settings.streams_max:
            raise _too_many_streams(f"{self.count} streams are open here: try again later.")
        subscription = Subscription(self._settings.stream_buffer_events_max)
        self._loop = asyncio.get_running_loop()
        self._subscriptions.setdefault(key, set()).add(subscription)
        self._by_owner[owner] = own + 1
        self.count += 1
        self._wake_up.set()
        try:
            async with asyncio.timeout(self._settings.body_timeout_seconds):
                await self._positioned.wait()
        except TimeoutError:
            self.unsubscribe(key, owner, subscription)
            raise unavailable() from None
        except BaseException:
            self.unsubscribe(key, owner, subscription)
            raise
        return subscription

    def unsubscribe(self, key: Key, owner: str, subscription: Subscription) -> None:
        """Watch no longer."""
        own = self._subscriptions.get(key)
        if own is None or subscription not in own:
            return
        own.discard(subscription)
        if not own:
            del self._subscriptions[key]
        self._by_owner[owner] -= 1
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        self.count -= 1
        if not self.count:
            self._generation += 1
            self._positioned.clear()

    def end(self) -> None:
        """Let everybody who watches go; from the loop's own thread."""
        self._ended = True
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.end()

    def request_stop(self) -> None:
        super().request_stop()
        self._wake_up.set()

    # -- the thread

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake_up.wait(self._engine.settings.poll_seconds)
            self._wake_up.clear()
            try:
                self._follow()
            except StoreError:
                self._stopping.wait(self._engine.settings.poll_seconds)
                self._wake_up.set()

    def _follow(self) -> None:
        generation = self._generation
        if not self.count:
            return
        if self._position_generation != generation:
            self._position = self._engine.reads.feed_end()
            self._position_generation = generation
            self._call_in_loop(partial(self._mark_positioned, generation))
        if self._read_pages():
            return
        if time.monotonic() >= self._hidden_check_at:
            self._notify_hidden()
        for seconds in _RETRY_SECONDS:
            if self._wake_up.wait(seconds) or self._read_pages():
                return
        self._notify_hidden()

    def _mark_positioned(self, generation: int) -> None:
        if generation == self._generation:
            self._positioned.set()

    def _read_pages(self) -> bool:
        found = False
        while self._position is not None and (page := self._engine.reads.feed(*self._position, count=_PAGE)):
            found = True
            self._position = page[-1].place
            self._call_in_loop(partial(self._dispatch, page))
        return found

    def _notify_hidden(self) -> None:
        """Let watchers of jobs look whose events are committed and hidden: a job's own order waits for nobody."""
        self._hidden_check_at = time.monotonic() + _HIDDEN_CHECK_SECONDS
        if self._position is not None and (
            subjects_not_yet_visible := self._engine.reads.subjects_not_yet_visible(*self._position)
        ):
            self._call_in_loop(partial(self._mark_jobs_behind, subjects_not_yet_visible))

    def _mark_jobs_behind(self, jobs: list[str]) -> None:
        for job in jobs:
            for subscription in self._subscriptions.get((JOB, job), ()):
                subscription.mark_behind()

    def _call_in_loop(self, what: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(what)

    def _dispatch(self, page: list[PositionedEvent]) -> None:
        for placed in page:
            event = placed.event
            for key in ((JOB, event.subject), (TENANT, event.tenant)):
                for subscription in self._subscriptions.get(key, ()):
                    subscription.push(placed)


def _too_many_streams(message: str) -> Problem:
    return Problem(429, "too_many_streams", message, {"retry-after": "5"})
