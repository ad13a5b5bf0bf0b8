"""Statistics behind the scale signals: three bounded reads of the database, cached for a second.

Scrapes, autoscalers and operators get the same snapshot. It covers all tenants and names no tenant, user or job.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from callsheet.core.model.capped_count import CappedCount, cap_count
from callsheet.core.model.clock import MILLISECOND, SECOND, seconds
from callsheet.core.model.ids import uuid7
from callsheet.core.model.rows import Worker
from callsheet.core.policy.autoscale import KindObservation
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.explanation.kind_capacity import KindCapacity, WorkerLeases, capacity_by_kind
from callsheet.core.policy.task_start_limits import Limit, LimitedQueue, limits_of
from callsheet.engine.reads.facade import Reads
from callsheet.settings import HttpSettings
from callsheet.store.connection import Rows

_CACHE_SECONDS = 1.0
_WINDOWS_MAX = 16
_HEADS_MAX = 1_000
"""Heads of queues, by priority and tenant, that are searched for the oldest task."""
_RATE_MAX = 1_000
"""Newest completed tasks of a queue from which its rate is computed."""
_ARRIVALS_MAX = 5_000
"""Newest arrivals, of all kinds together, from which rates are computed."""
_FAILURES_MAX = 10_000
_DURATIONS_MAX = 200
"""Newest attempts of a queue whose durations are read."""
_DURATION_QUEUES_MAX = 200
"""Busiest queues whose durations are read."""
_SKEW_SECONDS = 60
"""Allowed clock difference between servers, whose clocks are part of ids."""


class FleetSnapshot(NamedTuple):
    """Statistics of every kind at one time."""

    now: int
    kinds: list[KindObservation]


class FleetStats:
    """Reads and caches the statistics."""

    def __init__(self, reads: Reads, limits: Limits, settings: HttpSettings) -> None:
        self._reads = reads
        self._limits = limits
        self._maximum = settings.scan_rows_max
        self._wait_target = settings.scale_target_wait_seconds
        self._seen_within = seen_within(settings)
        self._cache: dict[int, tuple[float, FleetSnapshot]] = {}
        self._lock = asyncio.Lock()

    async def snapshot(self, window_seconds: int) -> FleetSnapshot:
        """Return the statistics of every kind, at most a second old."""
        async with self._lock:
            at, cached = self._cache.get(window_seconds, (0.0, None))
            if cached is not None and time.monotonic() - at < _CACHE_SECONDS:
                return cached
            now = await self._reads.current_time()
            found = FleetSnapshot(now, await self.read(now, window_seconds))
            if len(self._cache) >= _WINDOWS_MAX:
                self._cache.clear()
            self._cache[window_seconds] = (time.monotonic(), found)
            return found

    async def read(self, now: int, window_seconds: int) -> list[KindObservation]:
        """Read every kind that has a queue or a worker."""
        since = now - seconds(window_seconds)
        floor = uuid7((since - seconds(_SKEW_SECONDS)) // MILLISECOND, 0)
        queues, heads, leases, fleet, arrivals, failures = await self._reads.scan_many([
            ("scale_queues", {"most": self._maximum + 1, "since": since, "counted": _RATE_MAX}),
            ("scale_heads", {"most": _HEADS_MAX}),
            ("scale_leases", {"most": self._maximum + 1}),
            ("scale_fleet", {}),
            ("scale_arrivals", {"floor": floor, "since": since, "most": _ARRIVALS_MAX}),
            ("scale_failures", {"since": since, "most": _FAILURES_MAX}),
        ])  # fmt: skip
        queued = _group_queues(queues, self._maximum)
        busiest = _busiest(queued)
        waits, *attempt_durations = await self._reads.scan_many([
            ("scale_waits", {"ids": [row[0] for row in heads]}),
            *(("scale_attempts", {"queue": load.queue.id, "count": _DURATIONS_MAX}) for load in busiest),
        ])  # fmt: skip
        capacity_of_kind = capacity_by_kind(
            (Worker(*row) for row in fleet), (WorkerLeases(*row) for row in leases), now - self._seen_within
        )
        readings = _Readings(
            now, since, queued, capacity_of_kind, _oldest_waits(waits, now), _arrival_rates(arrivals, now, since),
            _count_startable(queued, self._limits, self._wait_target), _durations_by_kind(busiest, attempt_durations),
            _count_failures(failures), sum(row[2] for row in leases) > self._maximum,
        )  # fmt: skip
        return [_build_observation(kind, readings) for kind in sorted(queued.keys() | capacity_of_kind.keys())]


# -- rows to observations


class _QueueLoad(NamedTuple):
    """A queue: waiting, running and recently completed tasks, and when the first of these completed."""

    queue: LimitedQueue
    ready: CappedCount
    backoff: CappedCount
    running: CappedCount
    completed: int
    first_at: int | None

    @property
    def waiting(self) -> int:
        return self.ready.value + self.backoff.value

    @property
    def activity(self) -> int:
        """Number of waiting, running and recently completed tasks."""
        return self.waiting + self.running.value + self.completed


def seen_within(settings: HttpSettings) -> int:
    """Return the longest time since the last contact of a live worker: claims wait, and contacts are written late."""
    return seconds(settings.wait_seconds_max + 4 * settings.worker_last_seen_interval_seconds)


class _Readings(NamedTuple):
    """All values that were read, by kind."""

    now: int
    since: int
    queued: Mapping[str, Sequence[_QueueLoad]]
    capacity_of_kind: Mapping[str, KindCapacity]
    waits: Mapping[str, int]
    arrivals: Mapping[str, float]
    startable: Mapping[str, int]
    attempt_durations: Mapping[str, Sequence[tuple[int, int]]]
    failures: Mapping[str, Counter[str]]
    leases_are_capped: bool


def _build_observation(kind: str, readings: _Readings) -> KindObservation:
    queued = readings.queued.get(kind, ())
    capacity = readings.capacity_of_kind.get(kind, KindCapacity())
    attempt_durations, failures = readings.attempt_durations.get(kind, ()), readings.failures.get(kind, Counter())
    return KindObservation(
        kind=kind, ready=sum(load.ready.value for load in queued), backoff=sum(load.backoff.value for load in queued),
        depth_is_capped=any(load.ready.is_capped or load.backoff.is_capped for load in queued),
        startable=readings.startable.get(kind, 0), oldest_wait=readings.waits.get(kind), running=capacity.running,
        running_is_capped=readings.leases_are_capped,
        elapsed=None if capacity.leased_at is None else readings.now - capacity.leased_at,
        workers=len(capacity.workers), busy=len(capacity.busy), capacity=capacity.capacity, free=capacity.free,
        attempt_durations=[duration for ended_at, duration in attempt_durations if ended_at > readings.since],
        older=[duration for ended_at, duration in attempt_durations if ended_at <= readings.since],
        arrivals_per_second=readings.arrivals.get(kind, 0.0),
        completions_per_second=sum(_rate(load.completed, _RATE_MAX, load.first_at, readings) for load in queued),
        failed=failures["failed"], lost_leases=failures["lost"], spot_interruptions=failures["spot"],
    )  # fmt: skip


def _group_queues(queues: Rows, maximum: int) -> dict[str, list[_QueueLoad]]:
    found: dict[str, list[_QueueLoad]] = defaultdict(list)
    for row in queues:
        queue = LimitedQueue(*row[:-5])
        ready, backoff, running = (cap_count(count, maximum) for count in row[-5:-2])
        found[queue.kind].append(_QueueLoad(queue, ready, backoff, running, *row[-2:]))
    return dict(found)


def _busiest(queued: Mapping[str, Sequence[_QueueLoad]]) -> list[_QueueLoad]:
    """Return the queues with the most activity."""
    active = [load for loads in queued.values() for load in loads if load.activity]
    return sorted(active, key=lambda load: load.activity, reverse=True)[:_DURATION_QUEUES_MAX]


def _durations_by_kind(queues: Sequence[_QueueLoad], found: Sequence[Rows]) -> dict[str, list[tuple[int, int]]]:
    """Return the end and the duration of attempts, by kind."""
    attempt_durations: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for load, rows in zip(queues, found, strict=True):
        attempt_durations[load.queue.kind].extend((ended_at, max(duration, 0)) for ended_at, duration in rows)
    return attempt_durations


def _oldest_waits(heads: Rows, now: int) -> dict[str, int]:
    """Return for how long the oldest ready task of each kind has been claimable.

    A task can be claimed from the latest of these times: its creation, the start of its run, its job's `start_at`, the
    end of its backoff, of its previous attempt and of the previous stage, and the approval of its stage.
    """
    found: dict[str, int] = {}
    for kind, *moments in heads:
        oldest_wait = now - max(at for at in moments if at is not None)
        found[kind] = max(found.get(kind, 0), oldest_wait)
    return found


def _arrival_rates(rows: Rows, now: int, since: int) -> dict[str, float]:
    first = min((row[2] for row in rows), default=since)
    covers_window = sum(row[1] for row in rows) < _ARRIVALS_MAX
    elapsed_seconds = max(now - (since if covers_window else first), SECOND) / SECOND
    return {kind: count / elapsed_seconds for kind, count, _ in rows}


def _rate(count: int, maximum: int, first_at: int | None, readings: _Readings) -> float:
    """Return the rate per second: in the window, or of the newest rows if there were more than were read."""
    since = readings.since if count < maximum or first_at is None else first_at
    return count / (max(readings.now - since, SECOND) / SECOND)


def _count_failures(rows: Rows) -> dict[str, Counter[str]]:
    """Count failed attempts, lost leases and spot interruptions. Other requeues are not counted as failures."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, outcome, spot_interruptions, count in rows:
        found[kind]["spot" if outcome == "requeued" and spot_interruptions else outcome] += count
    return found


def _count_startable(queued: Mapping[str, Sequence[_QueueLoad]], limits: Limits, wait_target: float) -> dict[str, int]:
    """Return how many waiting tasks of each kind can start within the target wait, given running and rate limits."""
    running: Counter[tuple[str, str]] = Counter()
    for load in (load for loads in queued.values() for load in loads):
        for scope in ("kind", "workflow", "provider"):
            running[scope, getattr(load.queue, scope)] += load.running.value
    startable: dict[str, int] = {}
    for kind, loads in queued.items():
        left: dict[Limit, int] = {}
        for load in loads:
            own_limits = limits_of(load.queue, limits)
            for limit in own_limits:
                free = limit.maximum - running[limit.of, limit.name]
                left.setdefault(limit, limit.starts_within(wait_target) if limit.seconds else max(free, 0))
            starting = min([load.waiting, *(left[limit] for limit in own_limits)])
            left |= {limit: left[limit] - starting for limit in own_limits}
            startable[kind] = startable.get(kind, 0) + starting
    return startable
