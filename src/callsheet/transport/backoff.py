"""Exponential backoff with jitter.

Each delay is drawn from the upper half of its range, so that many processes that failed together do not retry together.
"""

from collections.abc import Iterator
from itertools import count
from random import SystemRandom

_uniform = SystemRandom().uniform
_EXPONENT_MAX = 64


def delay_after(failures: int, base_seconds: float, max_seconds: float) -> float:
    """Return the delay before the next attempt: it doubles with each failure, up to `max_seconds`."""
    exponent = min(max(failures - 1, 0), _EXPONENT_MAX)
    return add_jitter(min(base_seconds * 2.0**exponent, max_seconds))


def backoff_delays(base_seconds: float = 0.1, max_seconds: float = 5.0) -> Iterator[float]:
    """Yield the delays between the attempts of one call, without end."""
    return (delay_after(failures, base_seconds, max_seconds) for failures in count(1))


def add_jitter(seconds: float) -> float:
    """Return a random duration between half of `seconds` and `seconds`."""
    return _uniform(seconds / 2, seconds)
