"""Limits failed authentication by the client's IP address."""

import math
import time
from collections.abc import Callable

from callsheet.core.model.plural import pluralize
from callsheet.http.server.problems import Problem

_WINDOW_SECONDS = 60.0
_TRACKED_MAX = 10_000


class FailedAuthLimiter:
    """Counts failed authentication by IP address. A valid key is always accepted: workers may share an address."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._counts: dict[str, tuple[float, int]] = {}

    def record_failure(self, client_address: str, refused: Problem) -> None:
        """Count one failure. Over the limit, raise 429 instead of the original error."""
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
                429,
                "too_many_failed_auth",
                "Too many requests with invalid keys came from this IP address. Retry after "
                f"{pluralize(wait_seconds, 'second')}.",
                {"retry-after": str(wait_seconds)},
            ) from refused
