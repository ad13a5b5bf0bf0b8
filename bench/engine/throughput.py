"""Jobs per second through submit, claim and complete, compared with bare SQL that writes the same rows and commits.

The engine and the limit run in turn, and the table has their medians, because the machine may be shared.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from bench import load
from bench.databases import DATABASE_KINDS, Databases, connect_to
from bench.engine.recording import WriteLog, recording
from bench.engine.replay import time_replay
from bench.table import Row, row_against_limit
from callsheet.core.model.commands import Submit
from callsheet.engine import Engine
from callsheet.settings import Settings

MANY_CALLERS_TARGET = 0.333
BULK_TARGET = 0.5
ROUNDS = 3
Run = Callable[[Engine, Sequence[Submit]], None]
FINGERPRINT_QUERIES = (
    "SELECT status, count(*), sum(seq) FROM job GROUP BY status ORDER BY status",
    "SELECT status, count(*), sum(attempts) FROM task GROUP BY status ORDER BY status",
    "SELECT outcome, count(*) FROM attempt GROUP BY outcome ORDER BY outcome",
    "SELECT sum(balance), sum(reserved), sum(entries) FROM wallet",
    "SELECT type, count(*) FROM event GROUP BY type ORDER BY type",
    "SELECT kind, count(*), sum(amount) FROM entry GROUP BY kind ORDER BY kind",
)
"""Enough to check that two databases contain the same jobs."""


class Case(NamedTuple):
    """One kind of load: the number of jobs on SQLite and on PostgreSQL, and the callers."""

    name: str
    jobs: tuple[int, int]
    run: Run
    target: float | None = None
    in_quick: bool = False


def _with_tasks(callers: int) -> Run:
    return lambda engine, jobs: load.run_tasks(engine, jobs, callers)


def _with_threads(callers: int) -> Run:
    return lambda engine, jobs: load.run_threads(engine, jobs, callers)


def _in_bulk(size: int) -> Run:
    return lambda engine, jobs: load.run_bulk(engine, jobs, size)


CASES = (
    Case("64 asyncio callers", (3_000, 1_500), _with_tasks(64), MANY_CALLERS_TARGET, in_quick=True),
    Case("8 asyncio callers", (1_500, 600), _with_tasks(8)),
    Case("1 asyncio caller", (400, 150), _with_tasks(1)),
    Case("64 thread callers", (2_000, 1_500), _with_threads(64)),
    Case("8 thread callers", (1_500, 600), _with_threads(8)),
    Case("1 thread caller", (400, 150), _with_threads(1)),
    Case("1 caller, bulk of 500", (6_000, 4_000), _in_bulk(500), BULK_TARGET, in_quick=True),
    Case("1 caller, bulk of 200", (4_000, 2_000), _in_bulk(200), BULK_TARGET),
)


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    chosen = [case for case in CASES if case.in_quick or not quick]
    return [_measure_case(databases, kind, case, quick=quick) for kind in DATABASE_KINDS for case in chosen]


def _measure_case(databases: Databases, kind: str, case: Case, *, quick: bool) -> Row:
    jobs = case.jobs[DATABASE_KINDS.index(kind)] // (2 if quick else 1)
    pairs = [_measure_pair(databases, kind, case.run, load.submits(jobs, seed)) for seed in range(ROUNDS)]
    value, limit, steps = (median(pair[n] for pair in pairs) for n in range(3))
    row = row_against_limit(f"{kind}: {case.name}", value, "jobs/s", limit, case.target)
    summary = f"{value:,.0f} of {limit:,.0f} jobs/s = {row.ratio:.2f}, {steps:.1f} steps a commit"
    print(f"  {row.name}: {summary}", flush=True)
    return row


def _measure_pair(databases: Databases, kind: str, run: Run, jobs: Sequence[Submit]) -> tuple[float, float, float]:
    """Return jobs per second of the engine and of bare SQL with the same rows, and steps per commit."""
    dsn, bare = databases.create(kind), databases.create(kind)
    took, log = time_engine(dsn, run, jobs)
    limit = time_replay(bare, log)
    _compare(dsn, bare, len(jobs))
    databases.drop(dsn)
    databases.drop(bare)
    return len(jobs) / took, len(jobs) / limit, 3 * len(jobs) / log.commits


def time_engine(dsn: str, run: Run, jobs: Sequence[Submit]) -> tuple[float, WriteLog]:
    """Return the seconds that the engine took, and the log of its writes."""
    settings = Settings()
    database, log = recording(dsn, settings.lanes)
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


def _compare(dsn: str, bare: str, jobs: int) -> None:
    mine, other = _fingerprints(dsn), _fingerprints(bare)
    if mine != other:
        raise AssertionError(f"the replay did not write what the engine wrote:\n{mine}\n{other}")
    if mine[0][0][0] != "completed" or mine[0][0][1] < jobs:
        raise AssertionError(f"not all jobs were completed: {mine[0]}")


def _fingerprints(dsn: str) -> list[list[tuple[Any, ...]]]:
    connection = connect_to(dsn)
    try:
        return [[tuple(row) for row in connection.run(text)] for text in FINGERPRINT_QUERIES]
    finally:
        connection.close()
