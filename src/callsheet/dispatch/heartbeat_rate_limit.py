"""Limits how often a worker sends heartbeats."""

import math
import time
from collections.abc import Callable

from callsheet.core.model.errors import RateLimited
from callsheet.core.model.plural import pluralize
from callsheet.dispatch.token_buckets import TokenBuckets


class HeartbeatLimiter:
    """Allows each worker some heartbeats per second for every task that it may lease, with a burst of one second.

    A single call may exceed the limit; the next call must then wait longer. So no call is too large, and a worker that
    sends one heartbeat for each of its leases can call again within a second.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = max(per_second, 1.0)
        self._buckets = TokenBuckets(clock)

    def acquire(self, worker: str, concurrency: int, heartbeats: int) -> None:
        """Count the heartbeats of a call. A call that comes too soon is refused and does not count."""
        rate = self._per_second * concurrency
        tokens = self._buckets.available(worker, rate)
        if tokens < 1:
            raise RateLimited(
                "too_many_heartbeats",
                f"A worker may send at most {pluralize(self._per_second, 'heartbeat')} per second for each task that "
                "it may lease. Retry after Retry-After seconds.",
                retry_after_seconds=math.ceil((1 - tokens) / rate),
            )
        self._buckets.set(worker, tokens - max(heartbeats, 1))
