"""Deadlines by the monotonic clock, which system time changes do not affect."""

from math import inf
from time import monotonic

_MARGIN_SECONDS = 0.001
"""With less time left than this, a deadline counts as passed: timers are not more precise."""


def deadline_after(seconds: float | None) -> float:
    """Return the deadline this many seconds from now. None means no deadline."""
    return inf if seconds is None else monotonic() + seconds


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline; 0 if it has passed."""
    remaining = deadline - monotonic()
    return remaining if remaining > _MARGIN_SECONDS else 0.0
