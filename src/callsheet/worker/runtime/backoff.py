"""How something is tried again: a little later each time, and not in step with others."""

from collections.abc import Iterator
from random import SystemRandom

_FIRST_SECONDS, _MAX_SECONDS = 0.1, 5.0
_RETRY_AFTER_SECONDS_MAX = 60.0
_uniform = SystemRandom().uniform


def backoff_delays(max_seconds: float = _MAX_SECONDS) -> Iterator[float]:
    """Yield waits that double up to a bound, each drawn from its upper half."""
    ceiling = _FIRST_SECONDS
    while True:
        yield add_jitter(ceiling)
        ceiling = min(ceiling * 2, max_seconds)


def add_jitter(seconds: float) -> float:
    """Return a time from the upper half of another: a thousand workers do not come back in the same instant."""
    return _uniform(seconds / 2, seconds)


def parse_retry_after(header: str | None) -> float:
    """Return the wait that a Retry-After header asks for, within reason; 0 if it asks for none."""
    return min(float(header), _RETRY_AFTER_SECONDS_MAX) if header and header.isdecimal() else 0.0
