"""Live events: one thread follows the global event order and hands each event to whoever watches its job or tenant.

A watcher first joins, then reads the past from the database, then takes what comes: so nothing falls between.
One that cannot keep up is told that it is behind, and reads the database again: memory stays bounded.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from callsheet.config import HttpSettings
from callsheet.engine.background import Background
from callsheet.engine.engine import Engine
from callsheet.engine.reading import Placed
from callsheet.http.problem import Problem, unavailable
from callsheet.store.connection import StoreError

_PAGE = 1_000
_AGAIN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05)
"""What was committed may stay hidden behind an older transaction for a moment: look again soon."""
_PAST_SECONDS = 0.25
"""How often, in a bustle, those are told to look for themselves whose news a transaction elsewhere hides."""
JOB, TENANT = "job", "tenant"
Key = tuple[str, str]


class Watch:
    """One watcher's events since it joined."""

    __slots__ = ("_most", "_wake", "behind", "ended", "events")

    def __init__(self, most: int) -> None:
        self.events: deque[Placed] = deque()
        self.behind = False
        self.ended = False
        """The server stops: whoever watches goes home."""
        self._most = most
        self._wake = asyncio.Event()

    def push(self, placed: Placed) -> None:
        if len(self.events) >= self._most:
            self.events.clear()
            self.behind = True
        self.events.append(placed)
        self._wake.set()

    def end(self) -> None:
        self.ended = True
        self._wake.set()

    def look(self) -> None:
        """Say that there is something in the database that was not pushed."""
        self.behind = True
        self._wake.set()

    def caught_up(self) -> None:
        """Say that the database was read: what is still missing will be pushed."""
        self.behind = False

    async def wait(self, seconds: float) -> bool:
        """Wait until there is something; False if there was nothing in that time."""
        if not self.events and not self.behind and not self.ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        self._wake.clear()
        return bool(self.events) or self.behind or self.ended


class Hub(Background):
    """Follows the events while somebody watches."""

    def __init__(self, engine: Engine, settings: HttpSettings) -> None:
        super().__init__("hub")
        self._engine = engine
        self._settings = settings
        self._watches: dict[Key, set[Watch]] = {}
        self._by_caller: dict[str, int] = {}
        self.count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stirred = threading.Event()
        self._place: tuple[int, int] | None = None
        self._placed = asyncio.Event()
        self._era = 0
        """Grows when the last watcher leaves: a place that was found for those before is too late for who comes."""
        self._place_era = -1
        self._past_at = 0.0
        self._ended = False
        engine.watchers.append(self._stirred.set)

    async def join(self, key: Key, caller: str, *, browser: bool = False) -> Watch:
        """Begin to watch; what is committed from now on will come. A browser has a user's token, and fewer streams."""
        if self._ended:
            raise Problem(503, "stopping", "This server stops: come back in a moment.", {"retry-after": "1"})
        mine = self._by_caller.get(caller, 0)
        if mine >= (self._settings.streams_per_user_max if browser else self._settings.streams_per_key_max):
            raise _too_many(f"{mine} streams of this {'user' if browser else 'key'} are open: close some.")
        if self.count >= self._settings.streams_max:
            raise _too_many(f"{self.count} streams are open here: try again later.")
        watch = Watch(self._settings.stream_buffer_max)
        self._loop = asyncio.get_running_loop()
        self._watches.setdefault(key, set()).add(watch)
        self._by_caller[caller] = mine + 1
        self.count += 1
        self._stirred.set()
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                await self._placed.wait()
        except TimeoutError:
            self.leave(key, caller, watch)
            raise unavailable() from None
        except BaseException:
            self.leave(key, caller, watch)
            raise
        return watch

    def leave(self, key: Key, caller: str, watch: Watch) -> None:
        """Watch no longer."""
        mine = self._watches.get(key)
        if mine is None or watch not in mine:
            return
        mine.discard(watch)
        if not mine:
            del self._watches[key]
        self._by_caller[caller] -= 1
        if not self._by_caller[caller]:
            del self._by_caller[caller]
        self.count -= 1
        if not self.count:
            self._era += 1
            self._placed.clear()

    def end(self) -> None:
        """Let everybody who watches go; from the loop's own thread."""
        self._ended = True
        for watches in self._watches.values():
            for watch in watches:
                watch.end()

    def ask_to_stop(self) -> None:
        super().ask_to_stop()
        self._stirred.set()

    # -- the thread

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._stirred.wait(self._engine.settings.poll_seconds)
            self._stirred.clear()
            try:
                self._follow()
            except StoreError:
                self._stopping.wait(self._engine.settings.poll_seconds)
                self._stirred.set()

    def _follow(self) -> None:
        era = self._era
        if not self.count:
            return
        if self._place_era != era:
            self._place = self._engine.read.feed_end()
            self._place_era = era
            self._tell(partial(self._begin, era))
        if self._pages():
            return
        if time.monotonic() >= self._past_at:
            self._look_past()
        for seconds in _AGAIN_SECONDS:
            if self._stirred.wait(seconds) or self._pages():
                return
        self._look_past()

    def _begin(self, era: int) -> None:
        if era == self._era:
            self._placed.set()

    def _pages(self) -> bool:
        found = False
        while self._place is not None and (page := self._engine.read.feed(*self._place, count=_PAGE)):
            found = True
            self._place = page[-1].place
            self._tell(partial(self._dispatch, page))
        return found

    def _look_past(self) -> None:
        """Let watchers of jobs look whose events are committed and hidden: a job's own order waits for nobody."""
        self._past_at = time.monotonic() + _PAST_SECONDS
        if self._place is not None and (hidden := self._engine.read.hidden(*self._place)):
            self._tell(partial(self._nudge, hidden))

    def _nudge(self, jobs: list[str]) -> None:
        for job in jobs:
            for watch in self._watches.get((JOB, job), ()):
                watch.look()

    def _tell(self, what: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(what)

    def _dispatch(self, page: list[Placed]) -> None:
        for placed in page:
            event = placed.event
            for key in ((JOB, event.subject), (TENANT, event.tenant)):
                for watch in self._watches.get(key, ()):
                    watch.push(placed)


def _too_many(message: str) -> Problem:
    return Problem(429, "too_many_streams", message, {"retry-after": "5"})
