"""Limits per kind, workflow or provider: how many tasks run at once, and how many start in a stretch of time.

Both are counted from live rows, so that nothing can leak: what runs from tasks, what started from their tries.
"""

from typing import NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.core.model.errors import BadInput
from callsheet.core.policy.limits import Limits
from callsheet.core.policy.rate_syntax import PERIODS, RATE_FORMAT_HELP, parse_rate


class Limit(NamedTuple):
    """One limit, and what it is of."""

    of: str
    """`kind`, `workflow` or `provider`."""
    name: str
    maximum: int
    seconds: int = 0
    """So many may start in so long; with 0, so many may run at once."""

    def starts_within(self, seconds: float) -> int:
        """Return how many a rate lets start in so long, if none has of late."""
        return int(self.maximum * max(seconds / self.seconds, 1))

    def headroom(self, counted: int, oldest: int | None, now: int) -> "Headroom":
        """Say how much is left: of what runs, or of what started within the stretch, the first of it at `oldest`."""
        available_at = (now if oldest is None else oldest) + self.seconds * SECOND
        return Headroom(max(self.maximum - counted, 0), available_at if self.seconds else None)

    def wait(self, position: int, counted: int, oldest: int | None, now: int) -> int:
        """Return how long, in microseconds, a rate holds the task at this place of the queue, if no other shares it."""
        headroom = self.headroom(counted, oldest, now)
        if headroom.available_at is None or position <= headroom.free:
            return 0
        return (
            max(headroom.available_at - now, 0) + (position - headroom.free - 1) // self.maximum * self.seconds * SECOND
        )

    @property
    def period(self) -> str:
        """The name of its stretch of time."""
        return next(name for name, seconds in PERIODS.items() if seconds == self.seconds)


class Headroom(NamedTuple):
    """How many more a limit lets begin, and when a rate lets another one if that many do."""

    free: int
    available_at: int | None


class LimitedQueue(NamedTuple):
    """A queue, with what its workflow says now of limits."""

    id: str
    kind: str
    workflow: str
    provider: str
    running_max: int | None
    rate_max: str | None


def check_rate(what: str, text: str) -> None:
    """Refuse a rate that cannot be parsed."""
    if parse_rate(text) is None:
        raise BadInput("invalid_rate", f"{what} is {text!r}, which is not a rate. {RATE_FORMAT_HELP}")


def limits_of(queue: LimitedQueue, limits: Limits) -> list[Limit]:
    """Return the limits that a queue's tasks count towards."""
    found: list[Limit] = []
    if queue.kind in limits.kind_running_max:
        found.append(Limit("kind", queue.kind, limits.kind_running_max[queue.kind]))
    if queue.running_max is not None:
        found.append(Limit("workflow", queue.workflow, queue.running_max))
    if queue.provider in limits.provider_running_max:
        found.append(Limit("provider", queue.provider, limits.provider_running_max[queue.provider]))
    return found + rates_of(queue, limits)


def rates_of(queue: LimitedQueue, limits: Limits) -> list[Limit]:
    """Return those of them that are about starts in a stretch of time."""
    texts = (
        ("kind", queue.kind, limits.kind_rate_max.get(queue.kind)),
        ("workflow", queue.workflow, queue.rate_max),
        ("provider", queue.provider, limits.provider_rate_max.get(queue.provider)),
    )
    return [Limit(of, name, *rate) for of, name, text in texts if text and (rate := parse_rate(text))]
