"""A task in hand: what its handler said, how long its lease lasts, and whether it must stop.

The handler's thread says, the heart tells; both meet here. Time is this machine's own, never the house's clock.
"""

import threading
import time
from collections.abc import Callable

from callsheet.core.commands import Beat, Leased
from callsheet.core.errors import LeaseLost, Unknown
from callsheet.worker.errors import Canceled, Leaving, Lost, Stop
from callsheet.worker.link import Said

TELL_SECONDS = 0.2
"""How often the house is told of progress at most; what was said in between is told as the last of it."""
AGAIN_SECONDS = 1.0
"""How soon a heartbeat that was not answered is sent again."""


class Hand:
    """One task in hand."""

    def __init__(self, task: Leased, beat_seconds_max: float) -> None:
        self.task = task
        now = time.monotonic()
        self._beat_seconds_max = beat_seconds_max
        self._lock = threading.Lock()
        self._said = Said()
        self._shown = 0
        self._news = False
        self._told_at = float("-inf")
        self._expires_at = now + task.lease_seconds
        self._beat_at = now + self._pace(task.lease_seconds)
        self._stop: type[Stop] | None = None
        self._stopped: Callable[[], None] | None = None

    # -- the handler's side

    def say(self, progress: int, message: str | None) -> None:
        with self._lock:
            message = self._said.message if message is None else message
            self._said = Said(progress, message, self._said.preview)
            self._news = True

    def show(self, picture: int) -> None:
        """Say that there is a new preview; it goes out with the progress."""
        with self._lock:
            self._said = Said(self._said.progress or 0, self._said.message, picture)
            self._news = True

    @property
    def shown(self) -> bool:
        """Say whether the house knows of the newest preview."""
        return self._said.preview == self._shown

    @property
    def stop(self) -> type[Stop] | None:
        """Return why the handler must stop, if it must."""
        if self._stop is None and self.expired:
            self.end(Lost)
        return self._stop

    @property
    def expired(self) -> bool:
        """Say whether the lease has run out, as far as this machine knows."""
        return time.monotonic() >= self._expires_at

    def check(self) -> None:
        """Raise inside the handler what it must stop for."""
        if (stop := self.stop) is not None:
            raise stop

    def on_stop(self, call: Callable[[], None] | None) -> None:
        """Call back, from any thread, when the handler must stop; at once if it must already."""
        with self._lock:
            self._stopped = call
            now = call if self._stop is not None else None
        if now is not None:
            now()

    # -- the heart's side

    def due_at(self) -> float:
        """Return when the house must hear of this task next."""
        return min(self._beat_at, self._told_at + TELL_SECONDS) if self._news else self._beat_at

    def beat(self) -> Said:
        """Return what to tell now; without news, a heartbeat only prolongs."""
        with self._lock:
            said = self._said if self._news else Said()
            self._news = False
            self._shown = self._said.preview
            self._told_at = time.monotonic()
            return said

    def heard(self, answer: Beat | Exception, sent_at: float) -> None:
        """Take in what the house answered to a heartbeat."""
        if isinstance(answer, Beat):
            self._expires_at = max(self._expires_at, sent_at + answer.lease_seconds)
            self._beat_at = sent_at + self._pace(self.task.lease_seconds)
            if answer.cancel:
                self.end(Canceled)
        elif isinstance(answer, LeaseLost | Unknown):
            self.end(Lost)
        else:
            self._news = self._news or self._said.progress is not None
            self._beat_at = time.monotonic() + min(AGAIN_SECONDS, self._pace(self.task.lease_seconds))

    def leave(self) -> bool:
        """Stop the handler because the worker goes away; False if it has stopped for another reason."""
        self.end(Leaving)
        return self._stop is Leaving

    def end(self, stop: type[Stop]) -> None:
        """Tell the handler to stop; the first reason counts."""
        with self._lock:
            if self._stop is not None:
                return
            self._stop = stop
            call = self._stopped
        if call is not None:
            call()

    def _pace(self, lease_seconds: float) -> float:
        return min(lease_seconds / 3, self._beat_seconds_max)
