"""Until when somebody waits for an answer: by the clock of this machine that nobody sets."""

from math import inf
from time import monotonic

_MARGIN_SECONDS = 0.001
"""Less than this is nothing: what wakes us is not more exact."""


def deadline_after(seconds: float | None) -> float:
    """Return the moment that is so many seconds from now; without a number it never comes."""
    return inf if seconds is None else monotonic() + seconds


def seconds_left(deadline: float) -> float:
    """Return the seconds up to a moment; 0 when it is over."""
    remaining = deadline - monotonic()
    return remaining if remaining > _MARGIN_SECONDS else 0.0
