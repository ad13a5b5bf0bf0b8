"""Limits how fast a worker writes log lines."""

import time
from collections.abc import Callable, Sequence

from callsheet.core.model.plural import pluralize
from callsheet.dispatch.token_buckets import TokenBuckets


class LogLimiter:
    """Allows each worker some bytes of log per second, with a burst of one second. Further lines are dropped.

    A heartbeat is never refused for its log, because that could cost the lease.
    """

    def __init__(self, bytes_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_second = bytes_per_second
        self._buckets = TokenBuckets(clock)

    def limit_lines(self, worker: str, lines: Sequence[str]) -> tuple[str, ...]:
        """Return the lines to keep. If only some are kept, a last line says so."""
        left = self._buckets.available(worker, self._bytes_per_second)
        kept: list[str] = []
        for line in lines:
            if left <= 0:
                break
            left -= len(line.encode(errors="replace"))
            kept.append(line)
        self._buckets.set(worker, left)
        if kept and len(kept) < len(lines):
            kept.append(
                f"Lines were dropped here: a worker may log {pluralize(self._bytes_per_second, 'byte')} per second "
                "(log_bytes_per_second_max)."
            )
        return tuple(kept)
