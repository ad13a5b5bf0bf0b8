"""Limits per kind, workflow or provider: running tasks at once, and starts per period.

Both are counted from live rows (tasks and attempts), so that no counter can leak.
"""

from typing import NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.core.model.errors import BadInput
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.rate_syntax import PERIODS, RATE_FORMAT_HELP, parse_rate


class Limit(NamedTuple):
    """One limit of a kind, workflow or provider."""

    of: str
    """`kind`, `workflow` or `provider`."""
    name: str
    maximum: int
    seconds: int = 0
    """Length of the period in which `maximum` tasks may start; 0 if `maximum` tasks may run at once."""

    def starts_within(self, seconds: float) -> int:
        """Return how many tasks a rate allows to start in this time, if none has started recently."""
        return int(self.maximum * max(seconds / self.seconds, 1))

    def headroom(self, counted: int, oldest: int | None, now: int) -> "Headroom":
        """Return what is left of the limit; `oldest` is the time of the first start within the period."""
        available_at = (now if oldest is None else oldest) + self.seconds * SECOND
        return Headroom(max(self.maximum - counted, 0), available_at if self.seconds else None)

    def wait(self, position: int, counted: int, oldest: int | None, now: int) -> int:
        """Return how long, in microseconds, a rate delays the task at this position of the queue."""
        headroom = self.headroom(counted, oldest, now)
        if headroom.available_at is None or position <= headroom.free:
            return 0
        return (
            max(headroom.available_at - now, 0) + (position - headroom.free - 1) // self.maximum * self.seconds * SECOND
        )

    @property
    def period(self) -> str:
        """The name of the period, such as `minute`."""
        return next(name for name, seconds in PERIODS.items() if seconds == self.seconds)


class Headroom(NamedTuple):
    """How many more tasks a limit allows to start, and when a rate allows the next one after those."""

    free: int
    available_at: int | None


class LimitedQueue(NamedTuple):
    """A queue with the current limits of its workflow."""

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
    """Return the limits of a queue that are rates."""
    texts = (
        ("kind", queue.kind, limits.kind_rate_max.get(queue.kind)),
        ("workflow", queue.workflow, queue.rate_max),
        ("provider", queue.provider, limits.provider_rate_max.get(queue.provider)),
    )
    return [Limit(of, name, *rate) for of, name, text in texts if text and (rate := parse_rate(text))]
