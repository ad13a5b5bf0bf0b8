"""Scale signals: for each kind of work what waits, who works, and how many workers it needs."""

from callsheet.api.scaling import ScaleQuery, ScaleReport
from callsheet.core.policy.autoscale import KindObservation, ScaleSignals, ScalingTarget, compute_signals
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.router import OPERATORS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries.render import to_datetime

_WINDOW_MAX = 86_400
_WAIT_MAX = 86_400.0
_KINDS_MAX = 1_000
"""Jobs may bring kinds of their own: those with the most work are shown."""


async def get_scale_signals(state: AppState, request: Request) -> Response:
    query: ScaleQuery = request.query(ScaleQuery)
    settings = state.settings
    window = settings.scale_window_seconds if query.window_seconds is None else query.window_seconds
    wait = settings.scale_target_wait_seconds if query.target_wait_seconds is None else query.target_wait_seconds
    most = state.engine.settings.limits.workers_max if query.workers_max is None else query.workers_max
    _check("window_seconds", window, 1, _WINDOW_MAX)
    _check("target_wait_seconds", wait, 1, _WAIT_MAX)
    _check("workers_max", most, 1, 1_000_000)
    _check("workers_min", query.workers_min, 0, most)
    if query.concurrency is not None:
        _check("concurrency", query.concurrency, 1, state.engine.settings.limits.worker_concurrency_max)
    aim = ScalingTarget(
        wait_seconds=wait, workers_min=query.workers_min, workers_max=most, concurrency=query.concurrency
    )
    seen = await state.fleet_stats.snapshot(window)
    kinds = seen.kinds
    if query.kind:
        kinds = [one for one in kinds if one.kind == query.kind] or [KindObservation(kind=query.kind)]
    return Response(
        ScaleReport(to_datetime(seen.now), window, wait, [compute_signals(one, aim) for one in busiest(kinds)])
    )


async def default_signals(state: AppState) -> list[ScaleSignals]:
    """Return the signals as the settings aim them, for a scrape."""
    settings = state.settings
    seen = await state.fleet_stats.snapshot(settings.scale_window_seconds)
    most = state.engine.settings.limits.workers_max
    aim = ScalingTarget(wait_seconds=settings.scale_target_wait_seconds, workers_max=most)
    return [compute_signals(one, aim) for one in busiest(seen.kinds)]


def busiest(kinds: list[KindObservation]) -> list[KindObservation]:
    """Return the kinds with the most work and workers, by name."""
    first = sorted(kinds, key=lambda one: (-one.depth - one.running, -one.workers, one.kind))[:_KINDS_MAX]
    return sorted(first, key=lambda one: one.kind)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise Problem(422, "out_of_range", f"{name} must be from {least:g} to {most:g}.")


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
