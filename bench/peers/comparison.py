"""Callsheet compared with Procrastinate on the same PostgreSQL server: the same load in turn, and medians."""

from statistics import median

from bench import load
from bench.databases import POSTGRESQL, Databases
from bench.engine.throughput import ROUNDS, Run, time_engine
from bench.peers import procrastinate
from bench.peers.procrastinate import Setting
from bench.table import Row, row_against_limit

TARGET = 3.0
JOBS = 1_000
CALLERS = 64
BULK = 500


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    jobs = JOBS // 2 if quick else JOBS
    return [
        _compare(
            databases,
            f"{POSTGRESQL}: {CALLERS} asyncio callers, beside Procrastinate with {CALLERS} callers",
            jobs,
            lambda engine, many: load.run_tasks(engine, many, CALLERS),
            callers=CALLERS,
        ),
        _compare(
            databases,
            f"{POSTGRESQL}: bulk of {BULK}, beside Procrastinate with batch_defer of {BULK}",
            jobs,
            lambda engine, many: load.run_bulk(engine, many, BULK),
            batch=BULK,
        ),
    ]


def _compare(databases: Databases, name: str, jobs: int, run: Run, **options: int) -> Row:
    best = _find_fastest(databases, jobs // 3, options)
    ours, theirs = [], []
    for seed in range(ROUNDS):
        ours.append(jobs / _time_callsheet(databases, jobs, seed, run))
        theirs.append(jobs / _time_peer(databases, jobs, seed, best, options))
    row = row_against_limit(name, median(ours), "jobs/s", median(theirs), TARGET)
    print(f"  {name}: {row.value:,.0f} to {row.limit:,.0f} jobs/s ({best})", flush=True)
    return row


def _find_fastest(databases: Databases, jobs: int, options: dict[str, int]) -> Setting:
    """Run each setting once with a smaller load, and return the fastest."""
    seconds_by_setting = {
        setting: _time_peer(databases, jobs, 0, setting, options) for setting in procrastinate.SETTINGS
    }
    for setting, took in seconds_by_setting.items():
        print(f"    Procrastinate, {setting}: {jobs / took:,.0f} jobs/s", flush=True)
    return min(seconds_by_setting, key=lambda setting: seconds_by_setting[setting])


def _time_callsheet(databases: Databases, jobs: int, seed: int, run: Run) -> float:
    dsn = databases.create(POSTGRESQL)
    took, _ = time_engine(dsn, run, load.submits(jobs, seed))
    databases.drop(dsn)
    return took


def _time_peer(databases: Databases, jobs: int, seed: int, setting: Setting, options: dict[str, int]) -> float:
    url = databases.create(POSTGRESQL)
    inputs = [job.input for job in load.submits(jobs, seed)]
    took = procrastinate.time_jobs(url, inputs, setting, **options)
    databases.drop(url)
    return took
