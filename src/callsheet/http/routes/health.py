"""Health, metrics, and the description of the API."""

import asyncio

from callsheet.api.admin import Health
from callsheet.http.metrics import MetricsSnapshot
from callsheet.http.routes.scaling import default_signals
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.router import OPERATORS, PUBLIC, Response, Route
from callsheet.http.state import AppState
from callsheet.store.connection import StoreError

_READY_SECONDS = 5.0
"""Whoever asks whether we are ready wants to know it now."""


async def healthz(state: AppState, request: Request) -> Response:
    _ = state, request
    return Response(Health("ok"))


async def readyz(state: AppState, request: Request) -> Response:
    _ = request
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await state.reads.lookup("feed_end", tx=0, position=0)
    except (StoreError, TimeoutError):
        raise Problem(503, "not_ready", "The database does not answer.", {"retry-after": "1"}) from None
    if state.engine.write_error:
        raise Problem(503, "not_ready", state.engine.write_error, {"retry-after": "1"})
    return Response(Health("ready"))


async def metrics(state: AppState, request: Request) -> Response:
    _ = request
    try:
        depths, active, working, (provider_calls,) = await state.reads.scan_many([
            ("depths", {}), ("active_jobs", {}), ("leases_by_worker", {}), ("open_calls", {}),
        ])  # fmt: skip
        snapshot = MetricsSnapshot(
            state.broadcaster.count, depths, active, working, await default_signals(state), provider_calls
        )
    except StoreError:
        snapshot = MetricsSnapshot(state.broadcaster.count)  # what this process counted is told all the same
    return Response(state.metrics.text(snapshot), media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = (
    Route("GET", "/healthz", healthz, PUBLIC, "Whether the process lives", Health),
    Route("GET", "/readyz", readyz, PUBLIC, "Whether it can do its work", Health, problems=("503 not_ready",)),
    Route("GET", "/metrics", metrics, OPERATORS, "Metrics for Prometheus", media_type="text/plain"),
)  # fmt: skip
