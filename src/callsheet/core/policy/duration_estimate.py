"""Guesses from past durations: how far something is, how long it will take, when it will start. Never a promise.

Quantiles are by nearest rank: always a duration that really happened. Below `SAMPLES_MIN` of them there is no guess.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import ceil

SAMPLES_MIN = 5
SAMPLES_MAX = 100
"""The newest so many are looked at: what took long last year says little about today."""
_MEDIAN, _P90 = 50, 90
_SHOWN_AT_MEDIAN, _SHOWN_AT_P90 = 90, 99
"""What is shown when half, and when nine of ten, of the past ones were done; 100 is for what has ended."""


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Return a quantile of sorted numbers by nearest rank."""
    return ordered[max(ceil(percent * len(ordered) / 100), 1) - 1]


class PastDurations:
    """How long the like took before, in microseconds."""

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
        """Say how far something is that began so long ago: it never goes back and never reaches 100."""
        half, most, elapsed = self.p50, self.p90, max(elapsed, 0)
        if elapsed < half:
            return _SHOWN_AT_MEDIAN * elapsed // half
        if elapsed < most:
            return _SHOWN_AT_MEDIAN + (_SHOWN_AT_P90 - _SHOWN_AT_MEDIAN) * (elapsed - half) // (most - half)
        return _SHOWN_AT_P90

    def remaining(self, elapsed: int) -> tuple[int, int] | None:
        """Say how much longer (p50, p90) those took that took longer than this; None if none ever did."""
        longer = self._ordered[bisect_right(self._ordered, elapsed) :]
        if not longer:
            return None
        return percentile(longer, _MEDIAN) - elapsed, percentile(longer, _P90) - elapsed

    def estimate_wait(self, before: int, places: int) -> int:
        """Say how long it takes until so many have made room, with so many running at a time."""
        return before * self.p50 // places
