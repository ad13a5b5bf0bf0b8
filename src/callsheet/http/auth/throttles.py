"""Too much of something: wrong secrets from one address, heartbeats of one worker."""

import math
import time
from collections.abc import Callable

from callsheet.core.model.plural import counted
from callsheet.http.server.problems import Problem

_WINDOW_SECONDS = 60.0
_TRACKED_MAX = 10_000


class FailedAuthLimiter:
    """Counts wrong secrets by address. A right one is always let in: workers share an address with those who err."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._counts: dict[str, tuple[float, int]] = {}

    def record_failure(self, client_address: str, refused: Problem) -> None:
        """Count one that was wrong; beyond the limit it is told to wait instead of why."""
        now = self._clock()
        since, count = self._counts.get(client_address, (now, 0))
        if now - since >= _WINDOW_SECONDS:
            since, count = now, 0
        if len(self._counts) >= _TRACKED_MAX:
            self._counts.clear()
        self._counts[client_address] = since, count + 1
        if count >= self._limit:
            wait_seconds = math.ceil(since + _WINDOW_SECONDS - now)
            raise Problem(
                429, "too_many_failed_auth", "Too many wrong keys came from this address: wait, then send yours.",
                {"retry-after": str(wait_seconds)},
            ) from refused  # fmt: skip


class HeartbeatLimiter:
    """Lets each worker beat so often a second for every task it may have in hand, with a burst of a second's worth.

    One call may go beyond that: what it took too much is owed, and waited for. So a call is never too large to be
    heard, and a worker that beats once for each of its leases has its next turn within a second.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = max(per_second, 1.0)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def acquire(self, worker: str, concurrency: int, heartbeats: int) -> None:
        """Count the beats of a call; one that comes too soon is told when to come, and costs nothing."""
        now, rate = self._clock(), self._per_second * concurrency
        at, tokens = self._buckets.get(worker, (now, rate))
        tokens = min(rate, tokens + (now - at) * rate)
        if tokens < 1:
            wait = math.ceil((1 - tokens) / rate)
            raise Problem(
                429, "too_many_heartbeats",
                f"A worker beats at most {counted(self._per_second, 'time')} a second for each task it may hold: wait.",
                {"retry-after": str(wait)},
            )  # fmt: skip
        if len(self._buckets) >= _TRACKED_MAX:
            self._buckets.clear()
        self._buckets[worker] = now, tokens - max(heartbeats, 1)
