"""Health checks and metrics."""

from callsheet.api.admin import Health
from callsheet.http.metrics import MetricsSnapshot
from callsheet.http.server.request import Request
from callsheet.http.server.router import OPERATORS, PUBLIC, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import server_health


async def healthz(state: AppState, request: Request) -> Response:
    _ = state, request
    return Response(Health("ok"))


async def readyz(state: AppState, request: Request) -> Response:
    _ = request
    await server_health.check_ready(state.queries, state.engine)
    return Response(Health("ready"))


async def metrics(state: AppState, request: Request) -> Response:
    _ = request
    load = await server_health.read_load_metrics(state.queries)
    snapshot = MetricsSnapshot(state.broadcaster.count, *(load or ()))
    return Response(state.metrics.text(snapshot), media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = (
    Route("GET", "/healthz", healthz, PUBLIC, "Whether the process lives", Health),
    Route("GET", "/readyz", readyz, PUBLIC, "Whether it can do its work", Health, problems=("503 not_ready",)),
    Route("GET", "/metrics", metrics, OPERATORS, "Metrics for Prometheus", media_type="text/plain"),
)  # fmt: skip
