"""Too much of something: wrong secrets from one address, heartbeats of one worker."""

import math
import time
from collections.abc import Callable

from callsheet.core.counting import counted
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
    """Lets each worker beat so often a second for every task it may have in hand, with a burst of a second's worth.

    One call may go beyond that: what it took too much is owed, and waited for. So a call is never too large to be
    heard, and a worker that beats once for each of its leases has its next turn within a second.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = max(per_second, 1.0)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, worker: str, places: int, beats: int) -> None:
        """Count the beats of a call; one that comes too soon is told when to come, and costs nothing."""
        now, rate = self._clock(), self._per_second * places
        at, left = self._left.get(worker, (now, rate))
        left = min(rate, left + (now - at) * rate)
        if left < 1:
            wait = math.ceil((1 - left) / rate)
            raise Problem(
                429, "too_many_calls",
                f"A worker beats at most {counted(self._per_second, 'time')} a second for each task it may hold: wait.",
                {"retry-after": str(wait)},
            )  # fmt: skip
        if len(self._left) >= _KNOWN_MAX:
            self._left.clear()
        self._left[worker] = now, left - max(beats, 1)
