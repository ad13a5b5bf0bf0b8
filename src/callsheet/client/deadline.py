"""Deadlines by the monotonic clock, which system time changes do not affect."""

from math import inf
from time import monotonic

_MARGIN_SECONDS = 0.001
"""Less than this counts as expired: timers are not more exact."""


def deadline_after(seconds: float | None) -> float:
    """Return the deadline that many seconds from now; without a number, never."""
    return inf if seconds is None else monotonic() + seconds


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline, 0 if it has passed."""
    remaining = deadline - monotonic()
    return remaining if remaining > _MARGIN_SECONDS else 0.0
