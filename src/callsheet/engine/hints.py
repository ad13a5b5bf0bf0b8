"""Hints that new tasks are available. Hints only reduce latency: waiting claims also poll every few seconds."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

HintCallback = Callable[[], None]
_LOG = logging.getLogger(__name__)
_BUCKETS = 4_096
_WORK_EXPECTED_MAX = 10_000


def call_safely(call: HintCallback) -> None:
    """Call a listener and log its errors: the commit has succeeded, and the other listeners must be called too."""
    try:
        call()
    except Exception:  # noqa: BLE001 - listeners may raise anything
        _LOG.exception("A hint listener raised an error.")


class Hints:
    """Counts announcements of kinds, and wakes those who wait for one of them.

    Callers can choose any kind, so the counters are a fixed number of buckets. Kinds that share a bucket only cause an
    unnecessary read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * _BUCKETS
        self._callbacks: dict[str, set[HintCallback]] = {}
        self._work_expected_at: dict[tuple[str, ...], float] = {}

    def mark(self, kinds: Iterable[str]) -> int:
        """Return a counter to pass to `wait` or `subscribe`. Get it before you look for tasks, so no hint is missed."""
        with self._lock:
            return self._count(kinds)

    def announce(self, kinds: Iterable[str]) -> None:
        """Wake all waiters for one of these kinds."""
        callbacks: set[HintCallback] = set()
        with self._lock:
            for kind in kinds:
                self._counts[_bucket(kind)] += 1
                callbacks |= self._callbacks.pop(kind, set())
        for callback in callbacks:
            call_safely(callback)

    def expect_work_in(self, kinds: tuple[str, ...], seconds: float) -> None:
        """Record when waiting tasks may start that a rate or a lock delays, because that time is not announced."""
        if len(self._work_expected_at) >= _WORK_EXPECTED_MAX:
            self._work_expected_at.clear()
        self._work_expected_at[kinds] = time.monotonic() + seconds

    def poll_delay(self, kinds: tuple[str, ...], seconds: float) -> float:
        """Return the seconds until the next poll, or until delayed tasks may start if that is sooner.

        A time that has passed counts once. If the tasks still wait after that poll, the time is recorded again.
        """
        expected_at = self._work_expected_at.get(kinds)
        if expected_at is None:
            return seconds
        left = expected_at - time.monotonic()
        if left <= 0:
            self._work_expected_at.pop(kinds, None)
        return min(max(left, 0.0), seconds)

    def subscribe(self, kinds: Iterable[str], mark: int, callback: HintCallback) -> bool:
        """Call `callback` once at the next announcement. Return False if there was one since the mark."""
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
