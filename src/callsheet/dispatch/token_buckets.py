"""Token buckets: rates with a burst of one second, for a bounded number of keys."""

from collections.abc import Callable

_TRACKED_MAX = 10_000


class TokenBuckets:
    """The tokens of each key. A key that was not seen yet has a full bucket."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def available(self, key: str, per_second: float) -> float:
        """Return the tokens of a key; negative after it has used more than it had."""
        now = self._clock()
        at, tokens = self._buckets.get(key, (now, per_second))
        return min(per_second, tokens + (now - at) * per_second)

    def set(self, key: str, tokens: float) -> None:
        """Set the tokens that a key has now."""
        if len(self._buckets) >= _TRACKED_MAX:
            self._buckets.clear()
        self._buckets[key] = self._clock(), tokens
