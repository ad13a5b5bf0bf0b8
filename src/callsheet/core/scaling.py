"""How many workers a kind of work needs: what was observed of it in, signals out. Rules only; nothing is read here.

A waiting task begins within the wait T that is aimed at if, with P places of S seconds a try, at most P * (T + S) / S
tasks are in front: those that begin at once, and those that follow within T. Hence P = tasks * S / (T + S), never less
than what runs now: a busy machine is never in the way.
"""

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from callsheet.core.clock import SECOND
from callsheet.core.counting import counted
from callsheet.core.estimate import rank

_HALF, _MOST = 50, 95


class Observed(Struct, frozen=True, kw_only=True):
    """What was read of one kind at one moment; durations in microseconds."""

    kind: str
    ready: int = 0
    """Tasks that a worker could take."""
    backoff: int = 0
    """Tasks that wait for their next try."""
    startable: int = 0
    """Of both, those that running limits let begin beside what runs."""
    waited: int | None = None
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
    tries: Sequence[int] = ()
    """How long tries took that completed in the window: each try by itself."""
    older: Sequence[int] = ()
    """The same of the newest ones before the window."""
    arrivals_per_second: float = 0.0
    completions_per_second: float = 0.0
    failed: int = 0
    lost: int = 0
    spot: int = 0

    @property
    def depth(self) -> int:
        return self.ready + self.backoff


class Aim(Struct, frozen=True, kw_only=True):
    """What the number of workers shall reach, and its bounds."""

    wait_seconds: float
    workers_min: int = 0
    workers_max: int = 1_000
    concurrency: int | None = None
    """Tasks that one worker does at once; without it, what those of the kind do now."""


class Signals(Struct, frozen=True, kw_only=True):
    """One kind of work: what waits, what runs, who works, and how many workers it needs."""

    kind: str
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
    try_seconds_p50: float | None
    """Half of the completed tries took no longer; each try by itself, not its task with all tries."""
    try_seconds_p95: float | None
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
    failed_tries: int
    """Tries that failed in the window."""
    lost_leases: int
    """Tries in the window whose worker was not heard of any more."""
    spot_interruptions: int
    """Tries in the window that were given back because the machine was taken away."""
    reason: str
    """Why so many workers, in words."""


def signals(seen: Observed, aim: Aim) -> Signals:
    """Judge one kind."""
    past = sorted(seen.tries or seen.older)
    half, most = (rank(past, percent) / SECOND if past else None for percent in (_HALF, _MOST))
    wait = estimated_wait(seen, half)
    wanted, why = recommended(seen, aim)
    return Signals(
        kind=seen.kind, depth=seen.depth, ready=seen.ready, backoff=seen.backoff,
        oldest_wait_seconds=None if seen.waited is None else _rounded(max(seen.waited, 0) / SECOND),
        running=seen.running, workers=seen.workers, busy_workers=seen.busy, capacity=seen.capacity, free=seen.free,
        try_seconds_p50=_rounded(half), try_seconds_p95=_rounded(most), samples=len(past), basis=_assumed(seen)[1],
        arrivals_per_second=round(seen.arrivals_per_second, 6),
        completions_per_second=round(seen.completions_per_second, 6),
        estimated_wait_seconds=_rounded(wait), recommended_workers=wanted,
        scale_down_safe=not seen.depth or (wait is not None and wait <= aim.wait_seconds),
        failed_tries=seen.failed, lost_leases=seen.lost, spot_interruptions=seen.spot, reason=why,
    )  # fmt: skip


def estimated_wait(seen: Observed, half: float | None) -> float | None:
    """Say how long a new task may wait behind those that are ready; None is honest where there is no data."""
    if seen.free > seen.ready:
        return 0.0
    if half is None or not seen.capacity:
        return None
    return (seen.ready - seen.free + 1) * half / seen.capacity


def recommended(seen: Observed, aim: Aim) -> tuple[int, str]:
    """Return how many workers it takes, and why."""
    if not seen.depth and not seen.running:
        return _bounded(0, seen, aim, "Nothing waits and nothing runs.")
    seconds, basis = _assumed(seen)
    tasks = seen.depth + seen.running
    if seconds is None:
        places = seen.running + min(seen.depth, 1)
        how = "how long it takes is not known yet, so one begins"
    else:
        places = ceil(tasks * seconds / (aim.wait_seconds + seconds)) if seconds else 0
        how = _BASES[basis].format(_said(seconds))
    text = f"{counted(seen.depth, 'task', verb='waits')}, {seen.running} run; {how}."
    if not seen.depth:
        text = f"Nothing waits; {counted(seen.running, 'task', verb='runs')}."
    elif places > seen.running + seen.startable:
        places = seen.running + seen.startable
        text += f" A running limit lets {places} run at once."
    each = aim.concurrency or (seen.capacity // seen.workers if seen.workers else 1)
    return _bounded(ceil(max(places, seen.running, 1) / max(each, 1)), seen, aim, text)


_BASES = {
    "window": "a try takes {}",
    "older": "a try took {} before",
    "running": "none has completed, and they have taken {} so far",
}


def _assumed(seen: Observed) -> tuple[float | None, str]:
    """Return how many seconds a try is taken for, and where that is from; what runs has taken at least so long."""
    for tries, basis in ((seen.tries, "window"), (seen.older, "older")):
        if tries:
            return rank(sorted(tries), _HALF) / SECOND, basis
    if seen.elapsed is not None:
        return max(seen.elapsed, 0) / SECOND, "running"
    return None, "none"


def _bounded(wanted: int, seen: Observed, aim: Aim, why: str) -> tuple[int, str]:
    """Keep to the bounds; but whoever is busy stays, whatever they say."""
    bounded = min(max(wanted, aim.workers_min), aim.workers_max)
    if seen.busy > bounded:
        stays = "stays" if seen.busy == 1 else "stay"
        return seen.busy, f"{why} {counted(seen.busy, 'worker', verb='is')} busy, and {stays}."
    if bounded != wanted:
        why += f" {wanted} would do; the {'least' if bounded > wanted else 'most'} is {bounded}."
    return bounded, why


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _said(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"  # noqa: PLR2004 - two digits tell enough
