"""Health checks and metrics."""

from callsheet.api.admin import Health
from callsheet.core.model.errors import Overloaded
from callsheet.core.policy.admission import WorkClass
from callsheet.http.metrics import MetricsSnapshot
from callsheet.http.server.request import Request
from callsheet.http.server.route import OPERATORS, PUBLIC, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import readiness_and_load


async def healthz(state: AppState, request: Request) -> Response:
    _ = state, request
    return Response(Health("ok"))


async def readyz(state: AppState, request: Request) -> Response:
    _ = request
    await readiness_and_load.check_ready(state.queries, state.engine, state.shared_values, state.storage_check.error)
    return Response(Health("ready"))


async def metrics(state: AppState, request: Request) -> Response:
    _ = request
    queues = [state.admission.stats, *state.engine.queue_stats]
    try:
        load = await readiness_and_load.read_load_metrics(state.queries)
        snapshot = MetricsSnapshot(state.broadcaster.count, *(load or ()))._replace(queues=queues)
    except Overloaded:  # without the values that need long reads
        snapshot = MetricsSnapshot(state.broadcaster.count, database_up=True, queues=queues)
    return Response(state.metrics.text(snapshot), media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = (
    Route("GET", "/healthz", healthz, PUBLIC, "Check that the process runs", Health, work_class=WorkClass.ESSENTIAL,
          details="Returns 200 while the process answers, even if the database does not. Use it to restart a server."),
    Route("GET", "/readyz", readyz, PUBLIC, "Check that the server is ready", Health, problems=("503 not_ready",),
          work_class=WorkClass.ESSENTIAL,
          details="Returns 200 if the database answers and accepts writes, and the signing secret and the file storage "
          "are those of the database. Otherwise the message says why. Use it as the health check of a load balancer."),
    Route("GET", "/metrics", metrics, OPERATORS, "Get metrics for Prometheus", media_type="text/plain",
          details="Returns request counts and durations, queue lengths, active jobs, workers and scale signals. "
          "Labels name no tenant, user or job."),
)  # fmt: skip
