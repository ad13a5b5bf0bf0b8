"""Jobs per second through submit, claim and complete, beside bare SQL that writes the same rows in the same commits.

Measure and limit take turns, and the medians are told: the machine may be shared.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from bench import load
from bench.places import BOTH, Places, connected
from bench.recording import Log, recording
from bench.replay import replayed_seconds
from bench.table import Row, beside
from callsheet.config import Settings
from callsheet.core.commands import Submit
from callsheet.engine import Engine

MANY_CALLERS_TARGET = 0.333
BULK_TARGET = 0.5
ROUNDS = 3
Run = Callable[[Engine, Sequence[Submit]], None]
PRINTS = (
    "SELECT status, count(*), sum(seq) FROM job GROUP BY status ORDER BY status",
    "SELECT status, count(*), sum(attempts) FROM task GROUP BY status ORDER BY status",
    "SELECT outcome, count(*) FROM attempt GROUP BY outcome ORDER BY outcome",
    "SELECT sum(balance), sum(held), sum(entries) FROM wallet",
    "SELECT type, count(*) FROM event GROUP BY type ORDER BY type",
    "SELECT kind, count(*), sum(amount) FROM entry GROUP BY kind ORDER BY kind",
)
"""Enough to see that two databases hold the same lives."""


class Case(NamedTuple):
    """One way to put the load on: how many jobs on SQLite and on PostgreSQL, and who asks for them."""

    name: str
    jobs: tuple[int, int]
    run: Run
    target: float | None = None
    main: bool = False


def _tasks(callers: int) -> Run:
    return lambda engine, jobs: load.run_tasks(engine, jobs, callers)


def _threads(callers: int) -> Run:
    return lambda engine, jobs: load.run_threads(engine, jobs, callers)


def _bulk(size: int) -> Run:
    return lambda engine, jobs: load.run_bulk(engine, jobs, size)


CASES = (
    Case("64 asyncio callers", (3_000, 1_500), _tasks(64), MANY_CALLERS_TARGET, main=True),
    Case("8 asyncio callers", (1_500, 600), _tasks(8)),
    Case("1 asyncio caller", (400, 150), _tasks(1)),
    Case("64 thread callers", (2_000, 1_500), _threads(64)),
    Case("8 thread callers", (1_500, 600), _threads(8)),
    Case("1 thread caller", (400, 150), _threads(1)),
    Case("1 caller, bulk of 500", (6_000, 4_000), _bulk(500), BULK_TARGET, main=True),
    Case("1 caller, bulk of 200", (4_000, 2_000), _bulk(200), BULK_TARGET),
)


def measure(places: Places, *, quick: bool) -> list[Row]:
    chosen = [case for case in CASES if case.main or not quick]
    return [_row(places, kind, case, quick=quick) for kind in BOTH for case in chosen]


def _row(places: Places, kind: str, case: Case, *, quick: bool) -> Row:
    jobs = case.jobs[BOTH.index(kind)] // (2 if quick else 1)
    pairs = [_pair(places, kind, case.run, load.submits(jobs, seed)) for seed in range(ROUNDS)]
    value, limit, steps = (median(pair[n] for pair in pairs) for n in range(3))
    row = beside(f"{kind}: {case.name}", value, "jobs/s", limit, case.target)
    said = f"{value:,.0f} of {limit:,.0f} jobs/s = {row.ratio:.2f}, {steps:.1f} steps a commit"
    print(f"  {row.name}: {said}", flush=True)
    return row


def _pair(places: Places, kind: str, run: Run, jobs: Sequence[Submit]) -> tuple[float, float, float]:
    """Return jobs per second of the engine and of bare SQL with what the engine wrote, and steps per commit."""
    place, bare = places.fresh(kind), places.fresh(kind)
    took, log = timed(place, run, jobs)
    limit = replayed_seconds(bare, log)
    _compare(place, bare, len(jobs))
    places.drop(place)
    places.drop(bare)
    return len(jobs) / took, len(jobs) / limit, 3 * len(jobs) / log.commits


def timed(place: str, run: Run, jobs: Sequence[Submit]) -> tuple[float, Log]:
    """Return how long the engine took, and what it wrote."""
    settings = Settings()
    database, log = recording(place, settings.lanes)
    engine = Engine(database, settings)
    engine.start()
    with engine:
        load.set_up(engine)
        run(engine, load.submits(64, seed=-1))
        log.mark()
        start = perf_counter()
        run(engine, jobs)
        took = perf_counter() - start
    return took, log


def _compare(place: str, bare: str, jobs: int) -> None:
    mine, other = _prints(place), _prints(bare)
    if mine != other:
        raise AssertionError(f"the replay did not write what the engine wrote:\n{mine}\n{other}")
    if mine[0][0][0] != "completed" or mine[0][0][1] < jobs:
        raise AssertionError(f"not all jobs were completed: {mine[0]}")


def _prints(place: str) -> list[list[tuple[Any, ...]]]:
    connection = connected(place)
    try:
        return [[tuple(row) for row in connection.run(text)] for text in PRINTS]
    finally:
        connection.close()
