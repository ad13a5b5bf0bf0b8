"""Estimates from past durations: progress, remaining time, start time.

Percentiles use the nearest rank, so that they are durations that were measured. With fewer than `SAMPLES_MIN` samples
there is no estimate.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import ceil

SAMPLES_MIN = 5
SAMPLES_MAX = 100
"""Number of the newest samples that are used; older ones say little about today."""
_MEDIAN, _P90 = 50, 90
_SHOWN_AT_MEDIAN, _SHOWN_AT_P90 = 90, 99
"""Progress shown at the median and at the 90th percentile of past durations; 100 is reserved for ended tasks."""


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return a quantile of sorted numbers by nearest rank."""
    return ordered[max(ceil(percent * len(ordered) / 100), 1) - 1]


class PastDurations:
    """Durations of comparable tasks, in microseconds."""

    def __init__(self, durations: Iterable[int]) -> None:
        self._ordered = sorted(max(duration, 0) for duration in durations)
        self.samples = len(self._ordered)
        self.has_enough_samples = self.samples >= SAMPLES_MIN

    @property
    def p50(self) -> int:
        return percentile(self._ordered, _MEDIAN)

    @property
    def p90(self) -> int:
        return percentile(self._ordered, _P90)

    def percent(self, elapsed: int) -> int:
        """Return the estimated progress after `elapsed`. It never decreases and never reaches 100."""
        half, most, elapsed = self.p50, self.p90, max(elapsed, 0)
        if elapsed < half:
            return _SHOWN_AT_MEDIAN * elapsed // half
        if elapsed < most:
            return _SHOWN_AT_MEDIAN + (_SHOWN_AT_P90 - _SHOWN_AT_MEDIAN) * (elapsed - half) // (most - half)
        return _SHOWN_AT_P90

    def remaining(self, elapsed: int) -> tuple[int, int] | None:
        """Return the remaining time (p50, p90) of tasks that took longer than `elapsed`; None if none did."""
        longer = self._ordered[bisect_right(self._ordered, elapsed) :]
        if not longer:
            return None
        return percentile(longer, _MEDIAN) - elapsed, percentile(longer, _P90) - elapsed

    def estimate_wait(self, before: int, places: int) -> int:
        """Return the time until `before` tasks are done, with `places` of them running at once."""
        return before * self.p50 // places
