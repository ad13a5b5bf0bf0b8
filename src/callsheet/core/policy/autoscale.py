"""Autoscaling: computes the recommended number of workers of a kind from an observation. Reads nothing itself.

With P slots and S seconds per attempt, P * (T + S) / S tasks start within the target wait T: P start at once, the
others follow. Hence P = tasks * S / (T + S). The result is never lower than the number of running tasks, so a busy
worker is never removed.

Tasks are counted up to a maximum. If there are more, P is a lower bound, and no worker is removed.
"""

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from callsheet.core.model.clock import SECOND
from callsheet.core.model.plural import pluralize
from callsheet.core.policy.explanation.duration_estimate import percentile

_MEDIAN, _P95 = 50, 95


class KindObservation(Struct, frozen=True, kw_only=True):
    """The state of one kind at one moment; durations in microseconds."""

    kind: str
    ready: int = 0
    """Claimable tasks."""
    backoff: int = 0
    """Tasks that wait for their next attempt."""
    startable: int = 0
    """Of both, the tasks that running limits allow to start in addition to the running ones."""
    oldest_wait: int | None = None
    """How long the oldest ready task has waited."""
    running: int = 0
    """Leased tasks."""
    depth_is_capped: bool = False
    """Whether more tasks wait than were counted."""
    running_is_capped: bool = False
    """Whether more tasks are leased than were counted."""
    elapsed: int | None = None
    """How long the oldest running task has run."""
    workers: int = 0
    busy: int = 0
    """Workers that hold a lease of this kind, even if they have sent no heartbeat lately."""
    capacity: int = 0
    free: int = 0
    attempt_durations: Sequence[int] = ()
    """Durations of the attempts that completed in the window."""
    older: Sequence[int] = ()
    """Durations of the newest attempts before the window."""
    arrivals_per_second: float = 0.0
    completions_per_second: float = 0.0
    failed: int = 0
    lost_leases: int = 0
    spot_interruptions: int = 0

    @property
    def depth(self) -> int:
        return self.ready + self.backoff

    @property
    def is_capped(self) -> bool:
        """Whether more tasks wait or run than were counted."""
        return self.depth_is_capped or self.running_is_capped


class ScalingTarget(Struct, frozen=True, kw_only=True):
    """The target wait, and the bounds of the number of workers."""

    wait_seconds: float
    workers_min: int = 0
    workers_max: int = 1_000
    concurrency: int | None = None
    """Tasks that one worker runs at once; None for the current average of the kind."""


class ScaleSignals(Struct, frozen=True, kw_only=True):
    """Queue depth, load and recommended number of workers of one kind."""

    kind: str
    """Kind of the tasks."""
    depth: int
    """Waiting tasks: `ready` plus `backoff`. Each is counted up to `scan_rows_max` per workflow."""
    depth_is_capped: bool
    """Whether more tasks wait than `depth` says. `recommended_workers` is then a lower bound."""
    ready: int
    """Tasks that a worker can claim now."""
    backoff: int
    """Tasks that wait for their next attempt."""
    oldest_wait_seconds: float | None
    """How long the oldest ready task has waited; null if none is ready."""
    running: int
    """Tasks that are leased to workers. Tasks at a provider are not included."""
    running_is_capped: bool
    """Whether more tasks are leased than were counted: `scan_rows_max` of all kinds together."""
    workers: int
    """Workers of this kind: those with a lease of it, and approved workers with a recent heartbeat."""
    busy_workers: int
    """Workers that hold a lease of this kind."""
    capacity: int
    """Tasks that these workers can run at once. A worker with several kinds counts for each of them."""
    free: int
    """Unused part of `capacity`."""
    attempt_seconds_p50: float | None
    """Median duration of completed attempts, in seconds. Null if none has completed."""
    attempt_seconds_p95: float | None
    """95th percentile of the duration of completed attempts, in seconds. Null if none has completed."""
    samples: int
    """Number of attempts behind the two percentiles."""
    basis: str
    """Which durations were used: of attempts in the `window`, `older` ones, the oldest `running` one, or `none`."""
    arrivals_per_second: float
    """Tasks created per second in the window."""
    completions_per_second: float
    """Tasks completed per second in the window."""
    estimated_wait_seconds: float | None
    """Estimated wait of a new task; null if unknown, because there is no worker or nothing has completed yet."""
    recommended_workers: int
    """Workers needed to start all waiting tasks within the target wait. Never fewer than are busy; 0 only if nothing
    waits and nothing runs. If a count is capped, this is a lower bound, and never fewer than there are now."""
    scale_down_safe: bool
    """Whether the fleet can shrink to `recommended_workers` without exceeding the target wait."""
    failed_attempts: int
    """Attempts that failed in the window."""
    lost_leases: int
    """Attempts in the window whose lease expired because the worker stopped sending heartbeats."""
    spot_interruptions: int
    """Attempts in the window that were requeued because of a spot interruption."""
    reason: str
    """Explanation of the recommendation."""


def compute_signals(observed: KindObservation, target: ScalingTarget) -> ScaleSignals:
    """Compute the signals of one kind."""
    durations_sorted = sorted(observed.attempt_durations or observed.older)
    median, p95 = (
        percentile(durations_sorted, percent) / SECOND if durations_sorted else None for percent in (_MEDIAN, _P95)
    )
    wait = estimate_wait(observed, median)
    workers, reason = recommend_workers(observed, target)
    return ScaleSignals(
        kind=observed.kind, depth=observed.depth, depth_is_capped=observed.depth_is_capped, ready=observed.ready,
        backoff=observed.backoff,
        oldest_wait_seconds=None if observed.oldest_wait is None else _round(max(observed.oldest_wait, 0) / SECOND),
        running=observed.running, running_is_capped=observed.running_is_capped,
        workers=observed.workers, busy_workers=observed.busy,
        capacity=observed.capacity, free=observed.free,
        attempt_seconds_p50=_round(median), attempt_seconds_p95=_round(p95), samples=len(durations_sorted),
        basis=_assume_duration(observed)[1],
        arrivals_per_second=round(observed.arrivals_per_second, 6),
        completions_per_second=round(observed.completions_per_second, 6),
        estimated_wait_seconds=_round(wait), recommended_workers=workers,
        scale_down_safe=not observed.is_capped
        and (not observed.depth or (wait is not None and wait <= target.wait_seconds)),
        failed_attempts=observed.failed, lost_leases=observed.lost_leases,
        spot_interruptions=observed.spot_interruptions, reason=reason,
    )  # fmt: skip


def estimate_wait(observed: KindObservation, median: float | None) -> float | None:
    """Estimate the wait of a new task after all ready ones; None without data."""
    if observed.free > observed.ready:
        return 0.0
    if median is None or not observed.capacity:
        return None
    return (observed.ready - observed.free + 1) * median / observed.capacity


def recommend_workers(observed: KindObservation, target: ScalingTarget) -> tuple[int, str]:
    """Return the recommended number of workers, and the reason."""
    if not observed.depth and not observed.running:
        return _clamp(*_keep_if_capped(0, "Nothing waits and nothing runs.", observed), observed, target)
    seconds, basis = _assume_duration(observed)
    tasks = observed.depth + observed.running
    if seconds is None:
        places = observed.running + min(observed.depth, 1)
        explanation = "the duration is not known yet, so start with one"
    else:
        places = ceil(tasks * seconds / (target.wait_seconds + seconds)) if seconds else 0
        explanation = _BASES[basis].format(_format_seconds(seconds))
    waiting = pluralize(observed.depth, "task", verb="waits")
    text = f"{'More than ' * observed.depth_is_capped}{waiting}, {observed.running} run; {explanation}."
    if not observed.depth:
        text = f"Nothing waits; {pluralize(observed.running, 'task', verb='runs')}."
    elif places > observed.running + observed.startable:
        places = observed.running + observed.startable
        text += f" A running limit allows {places} at once."
    each = target.concurrency or (observed.capacity // observed.workers if observed.workers else 1)
    workers = ceil(max(places, observed.running, 1) / max(each, 1))
    return _clamp(*_keep_if_capped(workers, text, observed), observed, target)


def _keep_if_capped(workers: int, reason: str, observed: KindObservation) -> tuple[int, str]:
    """Return at least the current number of workers if more tasks wait or run than were counted."""
    if observed.is_capped and workers < observed.workers:
        return observed.workers, f"{reason} Not all tasks were counted, so no worker is removed."
    return workers, reason


_BASES = {
    "window": "an attempt takes {}",
    "older": "earlier attempts took {}",
    "running": "none has completed, and the oldest has run for {}",
}


def _assume_duration(observed: KindObservation) -> tuple[float | None, str]:
    """Return the assumed seconds per attempt and their basis; without completed attempts, the oldest running one."""
    for attempt_durations, basis in ((observed.attempt_durations, "window"), (observed.older, "older")):
        if attempt_durations:
            return percentile(sorted(attempt_durations), _MEDIAN) / SECOND, basis
    if observed.elapsed is not None:
        return max(observed.elapsed, 0) / SECOND, "running"
    return None, "none"


def _clamp(workers: int, reason: str, observed: KindObservation, target: ScalingTarget) -> tuple[int, str]:
    """Apply the bounds, but never go below the number of busy workers."""
    bounded = min(max(workers, target.workers_min), target.workers_max)
    if observed.busy > bounded:
        return observed.busy, f"{reason} {pluralize(observed.busy, 'worker', verb='is')} busy and must stay."
    if bounded != workers:
        bound = "minimum" if bounded > workers else "maximum"
        reason += f" {pluralize(workers, 'worker')} would be enough; the {bound} is {bounded}."
    return bounded, reason


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"  # noqa: PLR2004 - two significant digits
