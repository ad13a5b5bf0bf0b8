"""Callsheet beside a peer on the same PostgreSQL: like with like, taking turns, medians."""

from statistics import median

from bench import load
from bench.peers import procrastinate
from bench.peers.procrastinate import Setting
from bench.places import POSTGRESQL, Places
from bench.table import Row, beside
from bench.throughput import ROUNDS, Run, timed

TARGET = 3.0
JOBS = 1_000
CALLERS = 64
BULK = 500


def measure(places: Places, *, quick: bool) -> list[Row]:
    jobs = JOBS // 2 if quick else JOBS
    return [
        _row(
            places,
            f"{POSTGRESQL}: {CALLERS} asyncio callers, beside Procrastinate with {CALLERS} callers",
            jobs,
            lambda engine, many: load.run_tasks(engine, many, CALLERS),
            callers=CALLERS,
        ),
        _row(
            places,
            f"{POSTGRESQL}: bulk of {BULK}, beside Procrastinate with batch_defer of {BULK}",
            jobs,
            lambda engine, many: load.run_bulk(engine, many, BULK),
            batch=BULK,
        ),
    ]


def _row(places: Places, name: str, jobs: int, run: Run, **way: int) -> Row:
    best = _best(places, jobs // 3, way)
    ours, theirs = [], []
    for seed in range(ROUNDS):
        ours.append(jobs / _callsheet(places, jobs, seed, run))
        theirs.append(jobs / _peer(places, jobs, seed, best, way))
    row = beside(name, median(ours), "jobs/s", median(theirs), TARGET)
    print(f"  {name}: {row.value:,.0f} to {row.limit:,.0f} jobs/s ({best})", flush=True)
    return row


def _best(places: Places, jobs: int, way: dict[str, int]) -> Setting:
    """Try each setting once on a smaller load, and return the quickest."""
    tried = {setting: _peer(places, jobs, 0, setting, way) for setting in procrastinate.SETTINGS}
    for setting, took in tried.items():
        print(f"    Procrastinate, {setting}: {jobs / took:,.0f} jobs/s", flush=True)
    return min(tried, key=lambda setting: tried[setting])


def _callsheet(places: Places, jobs: int, seed: int, run: Run) -> float:
    place = places.fresh(POSTGRESQL)
    took, _ = timed(place, run, load.submits(jobs, seed))
    places.drop(place)
    return took


def _peer(places: Places, jobs: int, seed: int, setting: Setting, way: dict[str, int]) -> float:
    url = places.fresh(POSTGRESQL)
    inputs = [job.input for job in load.submits(jobs, seed)]
    took = procrastinate.seconds(url, inputs, setting, **way)
    places.drop(url)
    return took
