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
from callsheet.core.clock import MILLISECOND, SECOND, seconds
from callsheet.core.crew import Crew, Held, crews
from callsheet.core.ids import uuid7
from callsheet.core.limiting import Limit, Limited, limits_of
from callsheet.core.limits import Limits
from callsheet.core.rows import Worker
from callsheet.core.scaling import Observed
from callsheet.engine.readlane import ReadLane
from callsheet.store.connection import Rows

_KEPT_SECONDS = 1.0
_WINDOWS_MAX = 16
_WAITING_MAX = 100_000
"""Tasks of one queue are counted up to here."""
_HEADS_MAX = 1_000
"""The oldest task is looked for at the head of so many queues, priorities and tenants."""
_RATE_MAX = 1_000
"""A rate is that of the newest so many of a queue, if more completed in the window."""
_ARRIVALS_MAX = 5_000
"""The same for arrivals, which are read for all kinds together."""
_ILL_MAX = 10_000
_TRIES_MAX = 200
"""Durations of the newest so many of a queue."""
_TRIED_MAX = 200
"""Durations are looked up for the busiest so many queues."""
_SKEW_SECONDS = 60
"""By so much may the clocks of servers, which make ids, be off."""


class Picture(NamedTuple):
    """Every kind at one moment."""

    now: int
    kinds: list[Observed]


class Observing:
    """Reads what there is, for whoever asks."""

    def __init__(self, scans: ReadLane, limits: Limits, settings: HttpSettings) -> None:
        self._scans = scans
        self._limits = limits
        self._aim = settings.scale_wait_seconds
        self._heard = seconds(settings.wait_seconds_max + 4 * settings.worker_seen_seconds)
        """A worker that waits for work is heard of at least this often, and written down soon after."""
        self._kept: dict[int, tuple[float, Picture]] = {}
        self._turn = asyncio.Lock()

    async def picture(self, window_seconds: int) -> Picture:
        """Return every kind of work as it is, or was a moment ago."""
        async with self._turn:
            at, kept = self._kept.get(window_seconds, (0.0, None))
            if kept is not None and time.monotonic() - at < _KEPT_SECONDS:
                return kept
            ((now,),) = await self._scans.fetch("clock")
            found = Picture(now, await self.read(now, window_seconds))
            if len(self._kept) >= _WINDOWS_MAX:
                self._kept.clear()
            self._kept[window_seconds] = (time.monotonic(), found)
            return found

    async def read(self, now: int, window_seconds: int) -> list[Observed]:
        """Read every kind that has a queue or a worker."""
        since = now - seconds(window_seconds)
        floor = uuid7((since - seconds(_SKEW_SECONDS)) // MILLISECOND, 0)
        queues, backoffs, heads, leases, fleet, arrivals, ill = await self._scans.fetch_all([
            ("scale_queues", {"most": _WAITING_MAX, "since": since, "counted": _RATE_MAX}),
            ("scale_backoffs", {"most": _WAITING_MAX}),
            ("scale_heads", {"most": _HEADS_MAX}),
            ("scale_leases", {}),
            ("scale_fleet", {}),
            ("scale_arrivals", {"floor": floor, "since": since, "most": _ARRIVALS_MAX}),
            ("scale_ill", {"since": since, "most": _ILL_MAX}),
        ])  # fmt: skip
        queued = _queued(queues, backoffs)
        busiest = _busiest(queued)
        waits, *tries = await self._scans.fetch_all([
            ("scale_waits", {"ids": [row[0] for row in heads]}),
            *(("scale_tries", {"queue": one.queue.id, "count": _TRIES_MAX}) for one in busiest),
        ])  # fmt: skip
        staff = crews((Worker(*row) for row in fleet), (Held(*row) for row in leases), now - self._heard)
        seen = _Seen(
            now, since, queued, staff, _waits(waits, now), _arrivals(arrivals, now, since),
            _startable(queued, self._limits, self._aim), _tries(busiest, tries), _ill(ill),
        )  # fmt: skip
        return [_observed(kind, seen) for kind in sorted(queued.keys() | staff.keys())]


# -- from rows to what was observed


class _Queued(NamedTuple):
    """One queue: what waits and runs, how many completed in the window, and when the first of these."""

    queue: Limited
    ready: int
    backoff: int
    running: int
    completed: int
    first_at: int | None

    @property
    def stirs(self) -> int:
        """How much goes on in it."""
        return self.ready + self.backoff + self.running + self.completed


class _Seen(NamedTuple):
    """Everything that was read, by kind."""

    now: int
    since: int
    queued: Mapping[str, Sequence[_Queued]]
    staff: Mapping[str, Crew]
    waits: Mapping[str, int]
    arrivals: Mapping[str, float]
    startable: Mapping[str, int]
    tries: Mapping[str, Sequence[tuple[int, int]]]
    ill: Mapping[str, Counter[str]]


def _observed(kind: str, seen: _Seen) -> Observed:
    queued, crew = seen.queued.get(kind, ()), seen.staff.get(kind, Crew())
    tries, ill = seen.tries.get(kind, ()), seen.ill.get(kind, Counter())
    return Observed(
        kind=kind, ready=sum(one.ready for one in queued), backoff=sum(one.backoff for one in queued),
        startable=seen.startable.get(kind, 0), waited=seen.waits.get(kind), running=crew.running,
        elapsed=None if crew.leased_at is None else seen.now - crew.leased_at, workers=len(crew.workers),
        busy=len(crew.busy), capacity=crew.capacity, free=crew.free,
        tries=[took for ended_at, took in tries if ended_at > seen.since],
        older=[took for ended_at, took in tries if ended_at <= seen.since],
        arrivals_per_second=seen.arrivals.get(kind, 0.0),
        completions_per_second=sum(_rate(one.completed, _RATE_MAX, one.first_at, seen) for one in queued),
        failed=ill["failed"], lost=ill["lost"], spot=ill["spot"],
    )  # fmt: skip


def _queued(queues: Rows, backoffs: Rows) -> dict[str, list[_Queued]]:
    waiting = {row[0]: row[1] for row in backoffs}
    found: dict[str, list[_Queued]] = defaultdict(list)
    for row in queues:
        queue = Limited(*row[:-4])
        ready, running, completed, first_at = row[-4:]
        found[queue.kind].append(_Queued(queue, ready, waiting.get(queue.id, 0), running, completed, first_at))
    return dict(found)


def _busiest(queued: Mapping[str, Sequence[_Queued]]) -> list[_Queued]:
    """Return the queues where work is under way, or was of late."""
    every = [one for mine in queued.values() for one in mine if one.stirs]
    return sorted(every, key=lambda one: one.stirs, reverse=True)[:_TRIED_MAX]


def _tries(queues: Sequence[_Queued], found: Sequence[Rows]) -> dict[str, list[tuple[int, int]]]:
    """Return when tries ended and how long they took, by kind."""
    tries: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one, rows in zip(queues, found, strict=True):
        tries[one.queue.kind].extend((ended_at, max(took, 0)) for ended_at, took in rows)
    return tries


def _waits(heads: Rows, now: int) -> dict[str, int]:
    """Return how long the oldest ready task of each kind has been free to take.

    That is since the last of: it was made, its run began, its job's start, its wait, the end of the try before, the end
    of the stage before, its stage's approval.
    """
    found: dict[str, int] = {}
    for kind, *moments in heads:
        waited = now - max(at for at in moments if at is not None)
        found[kind] = max(found.get(kind, 0), waited)
    return found


def _arrivals(rows: Rows, now: int, since: int) -> dict[str, float]:
    first = min((row[2] for row in rows), default=since)
    whole = sum(row[1] for row in rows) < _ARRIVALS_MAX
    spent = max(now - (since if whole else first), SECOND) / SECOND
    return {kind: count / spent for kind, count, _ in rows}


def _rate(count: int, most: int, first_at: int | None, seen: _Seen) -> float:
    """Return how many there were a second: of the window, or of the newest ones if there were more than were read."""
    since = seen.since if count < most or first_at is None else first_at
    return count / (max(seen.now - since, SECOND) / SECOND)


def _ill(rows: Rows) -> dict[str, Counter[str]]:
    """Count what ended badly; what was given back for another reason than a spot notice is nobody's trouble."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, outcome, spot, count in rows:
        found[kind]["spot" if outcome == "requeued" and spot else outcome] += count
    return found


def _startable(queued: Mapping[str, Sequence[_Queued]], limits: Limits, aim: float) -> dict[str, int]:
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
                free = limit.most - running[limit.of, limit.name]
                left.setdefault(limit, limit.starts_within(aim) if limit.seconds else max(free, 0))
            begin = min([one.ready + one.backoff, *(left[limit] for limit in bound)])
            left |= {limit: left[limit] - begin for limit in bound}
            found[kind] = found.get(kind, 0) + begin
    return found
