"""`client.ops`: the state of the queues and the size of the fleet."""

from callsheet.api.admin import Ops
from callsheet.api.scaling import ScaleReport
from callsheet.client.method_binding import call
from callsheet.client.operation_effects import Operation
from callsheet.client.requests_and_pages import get_request, path, send
from callsheet.client.resource import D, Resource


class OpsResource(Resource[D]):
    """Read the state of the queues, and how many workers they need."""

    @call
    def get(self) -> Operation[Ops]:
        """Return the number of waiting and running tasks, active jobs and workers."""
        return send(self, Ops, get_request(path("admin", "ops")))

    @call
    def scale(
        self, kind: str | None = None, *, target_wait_seconds: float | None = None, window_seconds: int | None = None,
        workers_min: int | None = None, workers_max: int | None = None, concurrency: int | None = None,
    ) -> Operation[ScaleReport]:  # fmt: skip
        """Return, for each kind, the queue depth, the workers, and the recommended number of workers."""
        return send(
            self,
            ScaleReport,
            get_request(
                path("admin", "scale"), kind=kind, target_wait_seconds=target_wait_seconds,
                window_seconds=window_seconds, workers_min=workers_min, workers_max=workers_max,
                concurrency=concurrency,
            ),
        )  # fmt: skip
