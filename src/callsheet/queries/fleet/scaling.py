"""Scale signals: queue length, workers and the recommended number of workers of each kind."""

from callsheet.api.scaling import ScaleQuery, ScaleReport
from callsheet.core.model.errors import BadInput
from callsheet.core.policy.autoscale import KindObservation, ScaleSignals, ScalingTarget, compute_signals
from callsheet.queries.context import QueryContext
from callsheet.queries.render import to_datetime

_WINDOW_MAX = 86_400
_WAIT_MAX = 86_400.0
_KINDS_MAX = 1_000
"""Only the kinds with the most tasks are returned: jobs can define kinds."""


async def get_scale_signals(context: QueryContext, query: ScaleQuery) -> ScaleReport:
    """Return the signals of every kind, or of one."""
    settings = context.settings
    window = settings.scale_window_seconds if query.window_seconds is None else query.window_seconds
    wait = settings.scale_target_wait_seconds if query.target_wait_seconds is None else query.target_wait_seconds
    most = context.limits.workers_max if query.workers_max is None else query.workers_max
    _check("window_seconds", window, 1, _WINDOW_MAX)
    _check("target_wait_seconds", wait, 1, _WAIT_MAX)
    _check("workers_max", most, 1, 1_000_000)
    _check("workers_min", query.workers_min, 0, most)
    if query.concurrency is not None:
        _check("concurrency", query.concurrency, 1, context.limits.worker_concurrency_max)
    target = ScalingTarget(
        wait_seconds=wait, workers_min=query.workers_min, workers_max=most, concurrency=query.concurrency
    )
    snapshot = await context.fleet_stats.snapshot(window)
    kinds = snapshot.kinds
    if query.kind:
        kinds = [observed for observed in kinds if observed.kind == query.kind] or [KindObservation(kind=query.kind)]
    signals = [compute_signals(observed, target) for observed in busiest(kinds)]
    return ScaleReport(to_datetime(snapshot.now), window, wait, signals)


async def default_signals(context: QueryContext) -> list[ScaleSignals]:
    """Return the signals for the targets of the settings, for metrics."""
    settings = context.settings
    snapshot = await context.fleet_stats.snapshot(settings.scale_window_seconds)
    most = context.limits.workers_max
    target = ScalingTarget(wait_seconds=settings.scale_target_wait_seconds, workers_max=most)
    return [compute_signals(observed, target) for observed in busiest(snapshot.kinds)]


def busiest(kinds: list[KindObservation]) -> list[KindObservation]:
    """Return the kinds with the most tasks and workers, by name."""
    selected = sorted(kinds, key=lambda kind: (-kind.depth - kind.running, -kind.workers, kind.kind))[:_KINDS_MAX]
    return sorted(selected, key=lambda kind: kind.kind)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadInput("out_of_range", f"{name} must be from {least:g} to {most:g}, not {value:g}.")
