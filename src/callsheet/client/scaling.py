"""The call for those who scale a fleet."""

from datetime import datetime

from msgspec import Struct

from callsheet.client.binding import call
from callsheet.client.speaking import Speaking, get, path
from callsheet.client.talk import Talk
from callsheet.core.scaling import Signals


class Scale(Struct, frozen=True):
    """Every kind that ever had a task, or has a worker."""

    now: datetime | None
    window_seconds: int
    target_wait_seconds: float
    kinds: list[Signals]


class Scaling(Speaking):
    """How many workers it takes."""

    @call
    def scale(
        self, kind: str = "", *, target_wait_seconds: float | None = None, window_seconds: int | None = None,
        workers_min: int | None = None, workers_max: int | None = None, concurrency: int | None = None,
    ) -> Talk[Scale]:  # fmt: skip
        """Return, for each kind of work, what waits, who works, and how many workers it needs."""
        return (
            yield from self._ask(
                Scale,
                get(
                    path("admin", "scale"), kind=kind, target_wait_seconds=target_wait_seconds,
                    window_seconds=window_seconds, workers_min=workers_min, workers_max=workers_max,
                    concurrency=concurrency,
                ),
            )
        )  # fmt: skip
