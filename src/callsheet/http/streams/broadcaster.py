"""Live events: one thread follows the global event order and passes each event to the channels of its job and tenant.

A stream subscribes first, then reads past events from the database, then takes live events, so it misses none.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from callsheet.core.model.errors import TemporarilyUnavailable
from callsheet.engine.engine import Engine
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.engine.stoppable_thread import BackgroundThread
from callsheet.http.server.problems import Problem, unavailable
from callsheet.http.streams.send_scheduler import Turns
from callsheet.http.streams.shared_event_buffer import Channel, Subscription
from callsheet.queries.events.global_order import EventFeed
from callsheet.queries.events.shared_batches import PlaceOf
from callsheet.settings import HttpSettings

_PAGE = 1_000
_RETRY_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05)
"""Pauses between reads after a commit: an older open transaction can delay when committed events become visible."""
_HIDDEN_CHECK_SECONDS = 0.25
"""Under constant load, how often to look for committed events that an open transaction still hides."""
JOB, TENANT = "job", "tenant"
Key = tuple[str, str]
_PLACES: dict[str, PlaceOf] = {
    JOB: lambda positioned: positioned.event.seq,
    TENANT: lambda positioned: positioned.position,
}


class Broadcaster(BackgroundThread):
    """Follows the event feed while there are subscriptions."""

    def __init__(self, engine: Engine, settings: HttpSettings) -> None:
        super().__init__("broadcaster")
        self._feed = EventFeed(engine.reads)
        self._poll_seconds = engine.settings.poll_seconds
        self._settings = settings
        self._channels: dict[Key, Channel] = {}
        self._turns = Turns()
        self._by_owner: dict[str, int] = {}
        self.count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake_up = threading.Event()
        self._positioned = asyncio.Event()
        """The thread has found its position in the feed, so no later event is missed."""
        self._generation = 0
        """Incremented when the last subscription ends. The position of an earlier generation is outdated."""
        self._feed_generation = -1
        """The generation for which the thread has found its position."""
        self._hidden_check_at = 0.0
        self._ended = False
        engine.commit_listeners.append(self._wake_up.set)

    async def subscribe(self, key: Key, owner: str, *, browser: bool = False) -> Subscription:
        """Subscribe to all events that are committed from now on. A browser has a user token and a lower limit."""
        if self._ended:
            raise Problem(503, "stopping", "This server is shutting down. Retry in a second.", {"retry-after": "1"})
        own = self._by_owner.get(owner, 0)
        own_max = self._settings.streams_per_user_max if browser else self._settings.streams_per_key_max
        if own >= own_max:
            subject = "user" if browser else "key"
            raise _too_many_streams(
                f"This {subject} has {own} open streams; at most {own_max} are allowed. Close some."
            )
        if self.count >= self._settings.streams_max:
            raise _too_many_streams(f"This server has {self.count} open streams, which is its limit. Retry later.")
        self._loop = asyncio.get_running_loop()
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(_PLACES[key[0]], self._turns, self._settings)
        subscription = channel.subscribe()
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
        """End a subscription; ending it again has no effect."""
        channel = self._channels.get(key)
        if channel is None or not channel.unsubscribe(subscription):
            return
        if not channel.subscriptions:
            del self._channels[key]
        self._by_owner[owner] -= 1
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        self.count -= 1
        if not self.count:
            self._generation += 1
            self._positioned.clear()

    def end(self) -> None:
        """End all subscriptions, because the server is shutting down. Call it from the loop's thread."""
        self._ended = True
        for channel in self._channels.values():
            channel.end()

    def request_stop(self) -> None:
        super().request_stop()
        self._wake_up.set()

    # -- the thread

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake_up.wait(self._poll_seconds)
            self._wake_up.clear()
            try:
                self._follow()
            except TemporarilyUnavailable:
                self._stopping.wait(self._poll_seconds)
                self._wake_up.set()

    def _follow(self) -> None:
        generation = self._generation
        if not self.count:
            return
        if self._feed_generation != generation:
            self._feed.seek_end()
            self._feed_generation = generation
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
        while page := self._feed.read_page(_PAGE):
            found = True
            self._call_in_loop(partial(self._dispatch, page))
        return found

    def _notify_hidden(self) -> None:
        """Make streams of jobs read committed events that the feed still hides: a job's own order needs no feed."""
        self._hidden_check_at = time.monotonic() + _HIDDEN_CHECK_SECONDS
        if jobs := self._feed.subjects_not_yet_visible():
            self._call_in_loop(partial(self._mark_jobs_behind, jobs))

    def _mark_jobs_behind(self, jobs: list[str]) -> None:
        for job in jobs:
            if (channel := self._channels.get((JOB, job))) is not None:
                channel.mark_behind()

    def _call_in_loop(self, callback: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(callback)

    def _dispatch(self, page: list[PositionedEvent]) -> None:
        found: dict[Key, list[PositionedEvent]] = {}
        for positioned in page:
            event = positioned.event
            for key in ((JOB, event.subject), (TENANT, event.tenant)):
                if key in self._channels:
                    found.setdefault(key, []).append(positioned)
        for key, events in found.items():
            self._channels[key].push(events)


def _too_many_streams(message: str) -> Problem:
    return Problem(429, "too_many_streams", message, {"retry-after": "5"})
