"""Hints that there is work. Hints only reduce latency: waiters also poll every few seconds."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

HintCallback = Callable[[], None]
_LOG = logging.getLogger(__name__)
_BUCKETS = 4_096
_WORK_EXPECTED_MAX = 10_000


def call_safely(call: HintCallback) -> None:
    """Call a listener and ignore its errors: the work is committed, and other listeners must be called."""
    try:
        call()
    except Exception:  # noqa: BLE001 - whatever it is
        _LOG.exception("whoever waited for a hint broke")


class Hints:
    """Counts announcements of kinds, and wakes whoever waits for one.

    Anybody may name a kind, so nothing is kept for each that was ever named. Kinds that share a counter cost whoever
    waits one look for nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * _BUCKETS
        self._callbacks: dict[str, set[HintCallback]] = {}
        self._work_expected_at: dict[tuple[str, ...], float] = {}

    def mark(self, kinds: Iterable[str]) -> int:
        """Return a number to compare later: look for work after this, then wait."""
        with self._lock:
            return self._count(kinds)

    def announce(self, kinds: Iterable[str]) -> None:
        """Wake all waiters for one of these kinds."""
        callback: set[HintCallback] = set()
        with self._lock:
            for kind in kinds:
                self._counts[_bucket(kind)] += 1
                callback |= self._callbacks.pop(kind, set())
        for call in callback:
            call_safely(call)

    def expect_work_in(self, kinds: tuple[str, ...], seconds: float) -> None:
        """Record when rate-limited work may start, since it has no announcement."""
        if len(self._work_expected_at) >= _WORK_EXPECTED_MAX:
            self._work_expected_at.clear()
        self._work_expected_at[kinds] = time.monotonic() + seconds

    def poll_delay(self, kinds: tuple[str, ...], seconds: float) -> float:
        """Return the seconds until the next poll, or until expected work if that is sooner."""
        left = self._work_expected_at.get(kinds, 0.0) - time.monotonic()
        return min(left, seconds) if left > 0 else seconds

    def subscribe(self, kinds: Iterable[str], mark: int, callback: HintCallback) -> bool:
        """Call back once at the next announcement; False if there has been one since the mark."""
        kinds = tuple(kinds)
        with self._lock:
            if self._count(kinds) != mark:
                return False
            for kind in kinds:
                self._callbacks.setdefault(kind, set()).add(callback)
            return True

    def unsubscribe(self, kinds: Iterable[str], callback: HintCallback) -> None:
        """Stop waiting."""
        with self._lock:
            for kind in kinds:
                waiting = self._callbacks.get(kind, set())
                waiting.discard(callback)
                if not waiting:
                    self._callbacks.pop(kind, None)

    def wait(self, kinds: Iterable[str], mark: int, seconds: float) -> bool:
        """Block until there is a hint; False on timeout."""
        event = threading.Event()
        kinds = tuple(kinds)
        if not self.subscribe(kinds, mark, event.set):
            return True
        try:
            return event.wait(seconds)
        finally:
            self.unsubscribe(kinds, event.set)

    def _count(self, kinds: Iterable[str]) -> int:
        return sum(self._counts[_bucket(kind)] for kind in kinds)


def _bucket(kind: str) -> int:
    return hash(kind) % _BUCKETS
