"""Scale signals: for each kind of work what waits, who works, and how many workers it needs."""

from callsheet.api.scaling import ScaleQuery, ScaleReport
from callsheet.http.server.request import Request
from callsheet.http.server.router import OPERATORS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import scaling


async def get_scale_signals(state: AppState, request: Request) -> Response:
    return Response(await scaling.get_scale_signals(state.queries, request.query(ScaleQuery)))


ROUTES = (
    Route(
        "GET", "/v1/admin/scale", get_scale_signals, OPERATORS, "How many workers each kind of work needs",
        ScaleReport, query=ScaleQuery,
        problems=("422 out_of_range",),
        details="Signals for autoscalers, of all tenants together and kept for a second: depth, oldest wait, leases, "
        "workers, durations of tries, rates, the wait that a new task may have, and the number of workers with which "
        "what waits begins within `target_wait_seconds`. That number is never below the workers that are busy, and 0 "
        "only if nothing waits and nothing runs. `/metrics` has the same as gauges `callsheet_queue_…`.",
    ),
)  # fmt: skip
