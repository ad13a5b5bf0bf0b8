"""How many workers a kind of work needs: what was observed of it in, signals out. Rules only; nothing is read here.

A waiting task begins within the wait T that is aimed at if, with P places of S seconds a try, at most P * (T + S) / S
tasks are in front: those that begin at once, and those that follow within T. Hence P = tasks * S / (T + S), never less
than what runs now: a busy machine is never in the way.
"""

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from callsheet.core.model.clock import SECOND
from callsheet.core.model.plural import pluralize
from callsheet.core.policy.duration_estimate import percentile

_MEDIAN, _P95 = 50, 95


class KindObservation(Struct, frozen=True, kw_only=True):
    """What was read of one kind at one moment; durations in microseconds."""

    kind: str
    ready: int = 0
    """Tasks that a worker could take."""
    backoff: int = 0
    """Tasks that wait for their next try."""
    startable: int = 0
    """Of both, those that running limits let begin beside what runs."""
    oldest_wait: int | None = None
    """How long the oldest of those that are ready has waited."""
    running: int = 0
    """Leases: a task on its last try is one like any other."""
    elapsed: int | None = None
    """How long the oldest of them has run."""
    workers: int = 0
    busy: int = 0
    """Of the workers, those that hold a lease of this kind, however long they were not heard of."""
    capacity: int = 0
    free: int = 0
    attempt_durations: Sequence[int] = ()
    """How long tries took that completed in the window: each try by itself."""
    older: Sequence[int] = ()
    """The same of the newest ones before the window."""
    arrivals_per_second: float = 0.0
    completions_per_second: float = 0.0
    failed: int = 0
    lost_leases: int = 0
    spot_interruptions: int = 0

    @property
    def depth(self) -> int:
        return self.ready + self.backoff


class ScalingTarget(Struct, frozen=True, kw_only=True):
    """What the number of workers shall reach, and its bounds."""

    wait_seconds: float
    workers_min: int = 0
    workers_max: int = 1_000
    concurrency: int | None = None
    """Tasks that one worker does at once; without it, what those of the kind do now."""


class ScaleSignals(Struct, frozen=True, kw_only=True):
    """One kind of work: what waits, what runs, who works, and how many workers it needs."""

    kind: str
    """Kind of work."""
    depth: int
    """Tasks that wait: `ready` and `backoff` together, counted up to 100,000 per workflow."""
    ready: int
    """Tasks that a worker could take now."""
    backoff: int
    """Tasks whose next try begins later."""
    oldest_wait_seconds: float | None
    """How long the oldest ready task has waited; null if none is ready."""
    running: int
    """Tasks in the hands of workers; those on their last try too, those at a provider not."""
    workers: int
    """Workers that take this kind: with a lease of it, or registered, approved and heard of lately."""
    busy_workers: int
    """Workers that hold a lease of this kind."""
    capacity: int
    """Tasks that these workers do at once; one that takes several kinds counts in each."""
    free: int
    """Places of them with nothing to do."""
    attempt_seconds_p50: float | None
    """Half of the completed tries took no longer; each try by itself, not its task with all tries."""
    attempt_seconds_p95: float | None
    """Nineteen of twenty completed tries took no longer."""
    samples: int
    """From how many tries these two are."""
    basis: str
    """Where durations are from: `window`; `older` tries if it has none; `running` ones if none completed; `none`."""
    arrivals_per_second: float
    """Tasks made per second in the window."""
    completions_per_second: float
    """Tasks completed per second in the window."""
    estimated_wait_seconds: float | None
    """How long a new task may wait; null if that cannot be said: no worker, or nothing completed yet."""
    recommended_workers: int
    """Workers with which what waits begins within the wait that is aimed at. Never fewer than are busy; 0 only if
    nothing waits and nothing runs."""
    scale_down_safe: bool
    """Whether fewer workers, down to the recommended number, would keep nobody waiting longer than is aimed at."""
    failed_attempts: int
    """Tries that failed in the window."""
    lost_leases: int
    """Tries in the window whose worker was not heard of any more."""
    spot_interruptions: int
    """Tries in the window that were given back because the machine was taken away."""
    reason: str
    """Why so many workers, in words."""


def compute_signals(observed: KindObservation, target: ScalingTarget) -> ScaleSignals:
    """Judge one kind."""
    durations_sorted = sorted(observed.attempt_durations or observed.older)
    median, p95 = (
        percentile(durations_sorted, percent) / SECOND if durations_sorted else None for percent in (_MEDIAN, _P95)
    )
    wait = estimate_wait(observed, median)
    workers, reason = recommend_workers(observed, target)
    return ScaleSignals(
        kind=observed.kind, depth=observed.depth, ready=observed.ready, backoff=observed.backoff,
        oldest_wait_seconds=None if observed.oldest_wait is None else _round(max(observed.oldest_wait, 0) / SECOND),
        running=observed.running, workers=observed.workers, busy_workers=observed.busy, capacity=observed.capacity,
        free=observed.free,
        attempt_seconds_p50=_round(median), attempt_seconds_p95=_round(p95), samples=len(durations_sorted),
        basis=_assume_duration(observed)[1],
        arrivals_per_second=round(observed.arrivals_per_second, 6),
        completions_per_second=round(observed.completions_per_second, 6),
        estimated_wait_seconds=_round(wait), recommended_workers=workers,
        scale_down_safe=not observed.depth or (wait is not None and wait <= target.wait_seconds),
        failed_attempts=observed.failed, lost_leases=observed.lost_leases,
        spot_interruptions=observed.spot_interruptions, reason=reason,
    )  # fmt: skip


def estimate_wait(observed: KindObservation, median: float | None) -> float | None:
    """Say how long a new task may wait behind those that are ready; None is honest where there is no data."""
    if observed.free > observed.ready:
        return 0.0
    if median is None or not observed.capacity:
        return None
    return (observed.ready - observed.free + 1) * median / observed.capacity


def recommend_workers(observed: KindObservation, target: ScalingTarget) -> tuple[int, str]:
    """Return how many workers it takes, and why."""
    if not observed.depth and not observed.running:
        return _clamp(0, observed, target, "Nothing waits and nothing runs.")
    seconds, basis = _assume_duration(observed)
    tasks = observed.depth + observed.running
    if seconds is None:
        places = observed.running + min(observed.depth, 1)
        explanation = "how long it takes is not known yet, so one begins"
    else:
        places = ceil(tasks * seconds / (target.wait_seconds + seconds)) if seconds else 0
        explanation = _BASES[basis].format(_format_seconds(seconds))
    text = f"{pluralize(observed.depth, 'task', verb='waits')}, {observed.running} run; {explanation}."
    if not observed.depth:
        text = f"Nothing waits; {pluralize(observed.running, 'task', verb='runs')}."
    elif places > observed.running + observed.startable:
        places = observed.running + observed.startable
        text += f" A running limit lets {places} run at once."
    each = target.concurrency or (observed.capacity // observed.workers if observed.workers else 1)
    return _clamp(ceil(max(places, observed.running, 1) / max(each, 1)), observed, target, text)


_BASES = {
    "window": "an attempt takes {}",
    "older": "earlier attempts took {}",
    "running": "none has completed, and they have taken {} so far",
}


def _assume_duration(observed: KindObservation) -> tuple[float | None, str]:
    """Return how many seconds a try is taken for, and where that is from; what runs has taken at least so long."""
    for attempt_durations, basis in ((observed.attempt_durations, "window"), (observed.older, "older")):
        if attempt_durations:
            return percentile(sorted(attempt_durations), _MEDIAN) / SECOND, basis
    if observed.elapsed is not None:
        return max(observed.elapsed, 0) / SECOND, "running"
    return None, "none"


def _clamp(workers: int, observed: KindObservation, target: ScalingTarget, reason: str) -> tuple[int, str]:
    """Keep to the bounds; but whoever is busy stays, whatever they say."""
    bounded = min(max(workers, target.workers_min), target.workers_max)
    if observed.busy > bounded:
        stay_verb = "stays" if observed.busy == 1 else "stay"
        return observed.busy, f"{reason} {pluralize(observed.busy, 'worker', verb='is')} busy, and {stay_verb}."
    if bounded != workers:
        reason += f" {workers} would do; the {'least' if bounded > workers else 'most'} is {bounded}."
    return bounded, reason


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"  # noqa: PLR2004 - two digits tell enough
