"""Too much of something: wrong secrets from one address, calls of one worker."""

import math
import time
from collections.abc import Callable

from callsheet.http.problem import Problem

_WINDOW_SECONDS = 60.0
_KNOWN_MAX = 10_000


class Strikes:
    """Counts wrong secrets by address. A right one is always let in: workers share an address with those who err."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._counts: dict[str, tuple[float, int]] = {}

    def count(self, address: str, refused: Problem) -> None:
        """Count one that was wrong; beyond the limit it is told to wait instead of why."""
        now = self._clock()
        since, count = self._counts.get(address, (now, 0))
        if now - since >= _WINDOW_SECONDS:
            since, count = now, 0
        if len(self._counts) >= _KNOWN_MAX:
            self._counts.clear()
        self._counts[address] = since, count + 1
        if count >= self._most:
            rest = math.ceil(since + _WINDOW_SECONDS - now)
            raise Problem(
                429, "too_many_wrong_keys", "Too many wrong keys came from this address: wait, then send yours.",
                {"retry-after": str(rest)},
            ) from refused  # fmt: skip


class Pace:
    """Lets each caller through so often a second, with a burst of as many."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        """Count one call; one too many is told to wait."""
        now = self._clock()
        at, left = self._left.get(caller, (now, self._per_second))
        left = min(self._per_second, left + (now - at) * self._per_second)
        if len(self._left) >= _KNOWN_MAX:
            self._left.clear()
        self._left[caller] = now, max(left - 1, 0.0)
        if left < 1:
            raise Problem(
                429, "too_many_calls", f"A worker calls at most {self._per_second:g} times a second: say it together.",
                {"retry-after": "1"},
            )  # fmt: skip
