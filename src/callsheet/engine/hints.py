"""Hints that there is work. A hint saves waiting and promises nothing: whoever waits also looks every few seconds."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

HintCallback = Callable[[], None]
_LOG = logging.getLogger(__name__)
_BUCKETS = 4_096
_WORK_EXPECTED_MAX = 10_000


def call_safely(call: HintCallback) -> None:
    """Tell one who waits. What breaks there is his: the work is committed, and the others are told all the same."""
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
        """Wake everybody who waits for one of these kinds."""
        callback: set[HintCallback] = set()
        with self._lock:
            for kind in kinds:
                self._counts[_bucket(kind)] += 1
                callback |= self._callbacks.pop(kind, set())
        for call in callback:
            call_safely(call)

    def expect_work_in(self, kinds: tuple[str, ...], seconds: float) -> None:
        """Note when work that a rate holds back may start: no announcement comes with it. Forgetting costs a poll."""
        if len(self._work_expected_at) >= _WORK_EXPECTED_MAX:
            self._work_expected_at.clear()
        self._work_expected_at[kinds] = time.monotonic() + seconds

    def poll_delay(self, kinds: tuple[str, ...], seconds: float) -> float:
        """Return how long to wait before looking again: so long, or until what is expected."""
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
        """Block a thread until there is a hint; False if the time ran out."""
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
