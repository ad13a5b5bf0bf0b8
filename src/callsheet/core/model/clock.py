"""Time as whole microseconds since 1970 in UTC, the same in both databases."""

from datetime import UTC, datetime, timedelta
from typing import Protocol

SECOND = 1_000_000
MILLISECOND = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """A source of the current time: the database's clock in production, a virtual one in tests."""

    def now(self) -> int:
        """Return microseconds since 1970."""
        ...


def seconds(value: float) -> int:
    """Return a duration in microseconds."""
    return int(value * SECOND)


def rfc3339(at: int) -> str:
    """Return a time as `2026-03-09T15:30:00.123Z`, the format of all responses and log lines."""
    moment = _EPOCH + timedelta(microseconds=at)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at // MILLISECOND % 1_000:03d}Z"
