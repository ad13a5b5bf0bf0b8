"""The call for those who scale a fleet."""

from datetime import datetime

from msgspec import Struct

from callsheet.client.method_binding import call
from callsheet.client.operations import Operation
from callsheet.client.resource import Resource, get, path
from callsheet.core.policy.autoscale import ScaleSignals


class ScaleReport(Struct, frozen=True):
    """Every kind that ever had a task, or has a worker."""

    now: datetime | None
    window_seconds: int
    target_wait_seconds: float
    kinds: list[ScaleSignals]


class Scaling(Resource):
    """How many workers it takes."""

    @call
    def scale(
        self, kind: str = "", *, target_wait_seconds: float | None = None, window_seconds: int | None = None,
        workers_min: int | None = None, workers_max: int | None = None, concurrency: int | None = None,
    ) -> Operation[ScaleReport]:  # fmt: skip
        """Return, for each kind of work, what waits, who works, and how many workers it needs."""
        return (
            yield from self._request(
                ScaleReport,
                get(
                    path("admin", "scale"), kind=kind, target_wait_seconds=target_wait_seconds,
                    window_seconds=window_seconds, workers_min=workers_min, workers_max=workers_max,
                    concurrency=concurrency,
                ),
            )
        )  # fmt: skip
