"""Hints that there is work. A hint saves waiting and promises nothing: whoever waits also looks every few seconds."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

Heard = Callable[[], None]
_LOG = logging.getLogger(__name__)
_COUNTERS = 4_096
_EXPECTED_MAX = 10_000


def told(call: Heard) -> None:
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
        self._counts = [0] * _COUNTERS
        self._waiting: dict[str, set[Heard]] = {}
        self._expected: dict[tuple[str, ...], float] = {}

    def mark(self, kinds: Iterable[str]) -> int:
        """Return a number to compare later: look for work after this, then wait."""
        with self._lock:
            return self._count(kinds)

    def announce(self, kinds: Iterable[str]) -> None:
        """Wake everybody who waits for one of these kinds."""
        heard: set[Heard] = set()
        with self._lock:
            for kind in kinds:
                self._counts[_counter(kind)] += 1
                heard |= self._waiting.pop(kind, set())
        for call in heard:
            told(call)

    def expect(self, kinds: tuple[str, ...], seconds: float) -> None:
        """Note when work that a rate holds back may start: no announcement comes with it. Forgetting costs a poll."""
        if len(self._expected) >= _EXPECTED_MAX:
            self._expected.clear()
        self._expected[kinds] = time.monotonic() + seconds

    def patience(self, kinds: tuple[str, ...], seconds: float) -> float:
        """Return how long to wait before looking again: so long, or until what is expected."""
        left = self._expected.get(kinds, 0.0) - time.monotonic()
        return min(left, seconds) if left > 0 else seconds

    def subscribe(self, kinds: Iterable[str], mark: int, heard: Heard) -> bool:
        """Call back once at the next announcement; False if there has been one since the mark."""
        kinds = tuple(kinds)
        with self._lock:
            if self._count(kinds) != mark:
                return False
            for kind in kinds:
                self._waiting.setdefault(kind, set()).add(heard)
            return True

    def unsubscribe(self, kinds: Iterable[str], heard: Heard) -> None:
        """Stop waiting."""
        with self._lock:
            for kind in kinds:
                waiting = self._waiting.get(kind, set())
                waiting.discard(heard)
                if not waiting:
                    self._waiting.pop(kind, None)

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
        return sum(self._counts[_counter(kind)] for kind in kinds)


def _counter(kind: str) -> int:
    return hash(kind) % _COUNTERS
