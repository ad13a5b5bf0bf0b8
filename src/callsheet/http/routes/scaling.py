"""Scale signals for autoscalers: queue length, workers and the recommended number of workers of each kind."""

from callsheet.api.scaling import ScaleQuery, ScaleReport
from callsheet.http.server.request import Request
from callsheet.http.server.route import OPERATORS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries.fleet import scaling


async def get_scale_signals(state: AppState, request: Request) -> Response:
    return Response(await scaling.get_scale_signals(state.queries, request.query(ScaleQuery)))


ROUTES = (
    Route(
        "GET", "/v1/admin/scale", get_scale_signals, OPERATORS, "Get scale signals",
        ScaleReport, query=ScaleQuery,
        problems=("422 out_of_range",),
        details="Returns signals for an autoscaler, for each kind and across all tenants, at most one second old. "
        "`recommended_workers` is the number of workers with which waiting tasks start within `target_wait_seconds`. "
        "It is never lower than the number of busy workers, and 0 only if no task waits or runs. `/metrics` has the "
        "same values as gauges `callsheet_queue_…`.",
    ),
)  # fmt: skip
