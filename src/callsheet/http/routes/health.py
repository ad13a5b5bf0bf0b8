"""Health checks and metrics."""

from callsheet.api.admin import Health
from callsheet.http.metrics import MetricsSnapshot
from callsheet.http.server.request import Request
from callsheet.http.server.route import OPERATORS, PUBLIC, Response, Route
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
    Route("GET", "/healthz", healthz, PUBLIC, "Check that the process runs", Health),
    Route("GET", "/readyz", readyz, PUBLIC, "Check that the server is ready", Health, problems=("503 not_ready",),
          details="Returns 200 if the database answers and accepts writes. Use it as the health check of a load "
          "balancer."),
    Route("GET", "/metrics", metrics, OPERATORS, "Get metrics for Prometheus", media_type="text/plain",
          details="Request counts and durations, queue lengths, active jobs, workers and scale signals. No tenant, "
          "user or job is a label."),
)  # fmt: skip
