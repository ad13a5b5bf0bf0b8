"""What a fleet is scaled by, as it is read: three bounded trips to the database, kept for a second.

Whoever asks meanwhile, a scrape, an autoscaler or a person, gets the same picture. It is the whole house's: no tenant,
user or job is in it.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from callsheet.config import HttpSettings
from callsheet.core.model.clock import MILLISECOND, SECOND, seconds
from callsheet.core.model.ids import uuid7
from callsheet.core.model.rows import Worker
from callsheet.core.policy.autoscale import KindObservation
from callsheet.core.policy.capacity import KindCapacity, WorkerLeases, capacity_by_kind
from callsheet.core.policy.limits import Limits
from callsheet.core.policy.rate_limits import Limit, LimitedQueue, limits_of
from callsheet.engine.reads.facade import Reads
from callsheet.store.connection import Rows

_CACHE_SECONDS = 1.0
_WINDOWS_MAX = 16
_WAITING_MAX = 100_000
"""Tasks of one queue are counted up to here."""
_HEADS_MAX = 1_000
"""The oldest task is looked for at the head of so many queues, priorities and tenants."""
_RATE_MAX = 1_000
"""A rate is that of the newest so many of a queue, if more completed in the window."""
_ARRIVALS_MAX = 5_000
"""The same for arrivals, which are read for all kinds together."""
_FAILURES_MAX = 10_000
_DURATIONS_MAX = 200
"""Durations of the newest so many of a queue."""
_DURATION_QUEUES_MAX = 200
"""Durations are looked up for the busiest so many queues."""
_SKEW_SECONDS = 60
"""By so much may the clocks of servers, which make ids, be off."""


class FleetSnapshot(NamedTuple):
    """Every kind at one moment."""

    now: int
    kinds: list[KindObservation]


class FleetStats:
    """Reads what there is, for whoever asks."""

    def __init__(self, reads: Reads, limits: Limits, settings: HttpSettings) -> None:
        self._reads = reads
        self._limits = limits
        self._wait_target = settings.scale_target_wait_seconds
        self._heard_within = seconds(settings.wait_seconds_max + 4 * settings.worker_last_seen_interval_seconds)
        """A worker that waits for work is heard of at least this often, and written down soon after."""
        self._cache: dict[int, tuple[float, FleetSnapshot]] = {}
        self._lock = asyncio.Lock()

    async def snapshot(self, window_seconds: int) -> FleetSnapshot:
        """Return every kind of work as it is, or was a moment ago."""
        async with self._lock:
            at, cached = self._cache.get(window_seconds, (0.0, None))
            if cached is not None and time.monotonic() - at < _CACHE_SECONDS:
                return cached
            ((now,),) = await self._reads.scan("clock")
            found = FleetSnapshot(now, await self.read(now, window_seconds))
            if len(self._cache) >= _WINDOWS_MAX:
                self._cache.clear()
            self._cache[window_seconds] = (time.monotonic(), found)
            return found

    async def read(self, now: int, window_seconds: int) -> list[KindObservation]:
        """Read every kind that has a queue or a worker."""
        since = now - seconds(window_seconds)
        floor = uuid7((since - seconds(_SKEW_SECONDS)) // MILLISECOND, 0)
        queues, backoffs, heads, leases, fleet, arrivals, failures = await self._reads.scan_many([
            ("scale_queues", {"most": _WAITING_MAX, "since": since, "counted": _RATE_MAX}),
            ("scale_backoffs", {"most": _WAITING_MAX}),
            ("scale_heads", {"most": _HEADS_MAX}),
            ("scale_leases", {}),
            ("scale_fleet", {}),
            ("scale_arrivals", {"floor": floor, "since": since, "most": _ARRIVALS_MAX}),
            ("scale_failures", {"since": since, "most": _FAILURES_MAX}),
        ])  # fmt: skip
        queued = _group_queues(queues, backoffs)
        busiest = _busiest(queued)
        waits, *attempt_durations = await self._reads.scan_many([
            ("scale_waits", {"ids": [row[0] for row in heads]}),
            *(("scale_attempts", {"queue": one.queue.id, "count": _DURATIONS_MAX}) for one in busiest),
        ])  # fmt: skip
        crew_by_kind = capacity_by_kind(
            (Worker(*row) for row in fleet), (WorkerLeases(*row) for row in leases), now - self._heard_within
        )
        readings = _Readings(
            now, since, queued, crew_by_kind, _oldest_waits(waits, now), _arrival_rates(arrivals, now, since),
            _count_startable(queued, self._limits, self._wait_target), _durations_by_kind(busiest, attempt_durations),
            _count_failures(failures),
        )  # fmt: skip
        return [_build_observed(kind, readings) for kind in sorted(queued.keys() | crew_by_kind.keys())]


# -- from rows to what was observed


class _QueueLoad(NamedTuple):
    """One queue: what waits and runs, how many completed in the window, and when the first of these."""

    queue: LimitedQueue
    ready: int
    backoff: int
    running: int
    completed: int
    first_at: int | None

    @property
    def activity(self) -> int:
        """How much goes on in it."""
        return self.ready + self.backoff + self.running + self.completed


class _Readings(NamedTuple):
    """Everything that was read, by kind."""

    now: int
    since: int
    queued: Mapping[str, Sequence[_QueueLoad]]
    crew_by_kind: Mapping[str, KindCapacity]
    waits: Mapping[str, int]
    arrivals: Mapping[str, float]
    startable: Mapping[str, int]
    attempt_durations: Mapping[str, Sequence[tuple[int, int]]]
    failures: Mapping[str, Counter[str]]


def _build_observed(kind: str, readings: _Readings) -> KindObservation:
    queued, crew = readings.queued.get(kind, ()), readings.crew_by_kind.get(kind, KindCapacity())
    attempt_durations, failures = readings.attempt_durations.get(kind, ()), readings.failures.get(kind, Counter())
    return KindObservation(
        kind=kind, ready=sum(one.ready for one in queued), backoff=sum(one.backoff for one in queued),
        startable=readings.startable.get(kind, 0), oldest_wait=readings.waits.get(kind), running=crew.running,
        elapsed=None if crew.leased_at is None else readings.now - crew.leased_at, workers=len(crew.workers),
        busy=len(crew.busy), capacity=crew.capacity, free=crew.free,
        attempt_durations=[duration for ended_at, duration in attempt_durations if ended_at > readings.since],
        older=[duration for ended_at, duration in attempt_durations if ended_at <= readings.since],
        arrivals_per_second=readings.arrivals.get(kind, 0.0),
        completions_per_second=sum(_rate(one.completed, _RATE_MAX, one.first_at, readings) for one in queued),
        failed=failures["failed"], lost_leases=failures["lost"], spot_interruptions=failures["spot"],
    )  # fmt: skip


def _group_queues(queues: Rows, backoffs: Rows) -> dict[str, list[_QueueLoad]]:
    waiting = {row[0]: row[1] for row in backoffs}
    found: dict[str, list[_QueueLoad]] = defaultdict(list)
    for row in queues:
        queue = LimitedQueue(*row[:-4])
        ready, running, completed, first_at = row[-4:]
        found[queue.kind].append(_QueueLoad(queue, ready, waiting.get(queue.id, 0), running, completed, first_at))
    return dict(found)


def _busiest(queued: Mapping[str, Sequence[_QueueLoad]]) -> list[_QueueLoad]:
    """Return the queues where work is under way, or was of late."""
    every = [one for mine in queued.values() for one in mine if one.activity]
    return sorted(every, key=lambda one: one.activity, reverse=True)[:_DURATION_QUEUES_MAX]


def _durations_by_kind(queues: Sequence[_QueueLoad], found: Sequence[Rows]) -> dict[str, list[tuple[int, int]]]:
    """Return when tries ended and how long they took, by kind."""
    attempt_durations: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one, rows in zip(queues, found, strict=True):
        attempt_durations[one.queue.kind].extend((ended_at, max(duration, 0)) for ended_at, duration in rows)
    return attempt_durations


def _oldest_waits(heads: Rows, now: int) -> dict[str, int]:
    """Return how long the oldest ready task of each kind has been free to take.

    That is since the last of: it was made, its run began, its job's start, its wait, the end of the try before, the end
    of the stage before, its stage's approval.
    """
    found: dict[str, int] = {}
    for kind, *moments in heads:
        oldest_wait = now - max(at for at in moments if at is not None)
        found[kind] = max(found.get(kind, 0), oldest_wait)
    return found


def _arrival_rates(rows: Rows, now: int, since: int) -> dict[str, float]:
    first = min((row[2] for row in rows), default=since)
    whole = sum(row[1] for row in rows) < _ARRIVALS_MAX
    spent = max(now - (since if whole else first), SECOND) / SECOND
    return {kind: count / spent for kind, count, _ in rows}


def _rate(count: int, maximum: int, first_at: int | None, readings: _Readings) -> float:
    """Return how many there were a second: of the window, or of the newest ones if there were more than were read."""
    since = readings.since if count < maximum or first_at is None else first_at
    return count / (max(readings.now - since, SECOND) / SECOND)


def _count_failures(rows: Rows) -> dict[str, Counter[str]]:
    """Count what ended badly; what was given back for another reason than a spot notice is nobody's trouble."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, outcome, spot_interruptions, count in rows:
        found[kind]["spot" if outcome == "requeued" and spot_interruptions else outcome] += count
    return found


def _count_startable(queued: Mapping[str, Sequence[_QueueLoad]], limits: Limits, wait_target: float) -> dict[str, int]:
    """Return how many waiting tasks of each kind limits let begin: places that are free, starts within the wait."""
    running: Counter[tuple[str, str]] = Counter()
    for one in (one for mine in queued.values() for one in mine):
        for what in ("kind", "workflow", "provider"):
            running[what, getattr(one.queue, what)] += one.running
    found: dict[str, int] = {}
    for kind, mine in queued.items():
        left: dict[Limit, int] = {}
        for one in mine:
            bound = limits_of(one.queue, limits)
            for limit in bound:
                free = limit.maximum - running[limit.of, limit.name]
                left.setdefault(limit, limit.starts_within(wait_target) if limit.seconds else max(free, 0))
            starting = min([one.ready + one.backoff, *(left[limit] for limit in bound)])
            left |= {limit: left[limit] - starting for limit in bound}
            found[kind] = found.get(kind, 0) + starting
    return found
