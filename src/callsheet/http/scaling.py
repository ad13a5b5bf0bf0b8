"""Scale signals: for each kind of work what waits, who works, and how many workers it needs."""

from msgspec import Struct

from callsheet.core.scaling import Aim, Observed, Signals, signals
from callsheet.http.house import House
from callsheet.http.problem import Problem
from callsheet.http.request import Request
from callsheet.http.route import HOUSE, Answer, Route
from callsheet.http.views import moment

_WINDOW_MAX = 86_400
_WAIT_MAX = 86_400.0
_KINDS_MAX = 1_000
"""Jobs may bring kinds of their own: those with the most work are shown."""


class ScaleQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which kind, and what its number of workers shall reach; what is left out, this server's settings say."""

    kind: str = ""
    """Only this kind; one that nobody knows has zeros."""
    target_wait_seconds: float | None = None
    """How long a waiting task may wait before it begins."""
    window_seconds: int | None = None
    """How far back durations, rates and errors are looked at."""
    workers_min: int = 0
    """Never recommend fewer."""
    workers_max: int | None = None
    """Never recommend more, unless more are busy."""
    concurrency: int | None = None
    """Tasks that one worker does at once; without it, what the kind's workers do now."""


class Scale(Struct, frozen=True):
    """Every kind that ever had a task, or has a worker."""

    now: str | None
    window_seconds: int
    target_wait_seconds: float
    kinds: list[Signals]
    """By name."""


async def scale(house: House, request: Request) -> Answer:
    query: ScaleQuery = request.query(ScaleQuery)
    settings = house.settings
    window = settings.scale_window_seconds if query.window_seconds is None else query.window_seconds
    wait = settings.scale_wait_seconds if query.target_wait_seconds is None else query.target_wait_seconds
    most = house.engine.settings.limits.workers_max if query.workers_max is None else query.workers_max
    _check("window_seconds", window, 1, _WINDOW_MAX)
    _check("target_wait_seconds", wait, 1, _WAIT_MAX)
    _check("workers_max", most, 1, 1_000_000)
    _check("workers_min", query.workers_min, 0, most)
    if query.concurrency is not None:
        _check("concurrency", query.concurrency, 1, house.engine.settings.limits.worker_concurrency_max)
    aim = Aim(wait_seconds=wait, workers_min=query.workers_min, workers_max=most, concurrency=query.concurrency)
    seen = await house.observing.picture(window)
    kinds = seen.kinds
    if query.kind:
        kinds = [one for one in kinds if one.kind == query.kind] or [Observed(kind=query.kind)]
    return Answer(Scale(moment(seen.now), window, wait, [signals(one, aim) for one in busiest(kinds)]))


async def usual(house: House) -> list[Signals]:
    """Return the signals as the settings aim them, for a scrape."""
    settings = house.settings
    seen = await house.observing.picture(settings.scale_window_seconds)
    most = house.engine.settings.limits.workers_max
    aim = Aim(wait_seconds=settings.scale_wait_seconds, workers_max=most)
    return [signals(one, aim) for one in busiest(seen.kinds)]


def busiest(kinds: list[Observed]) -> list[Observed]:
    """Return the kinds with the most work and workers, by name."""
    first = sorted(kinds, key=lambda one: (-one.depth - one.running, -one.workers, one.kind))[:_KINDS_MAX]
    return sorted(first, key=lambda one: one.kind)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise Problem(422, "out_of_range", f"{name} must be from {least:g} to {most:g}.")


ROUTES = (
    Route(
        "GET", "/v1/admin/scale", scale, HOUSE, "How many workers each kind of work needs", Scale, query=ScaleQuery,
        problems=("422 out_of_range",),
        details="Signals for autoscalers, of all tenants together and kept for a second: depth, oldest wait, leases, "
        "workers, durations of tries, rates, the wait that a new task may have, and the number of workers with which "
        "what waits begins within `target_wait_seconds`. That number is never below the workers that are busy, and 0 "
        "only if nothing waits and nothing runs. `/metrics` has the same as gauges `callsheet_queue_…`.",
    ),
)  # fmt: skip
