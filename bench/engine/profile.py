"""A profile of bulk calls on SQLite: the writer thread and the thread of its caller, sorted by own time."""

import cProfile
import pstats
from typing import Any

from bench import load
from bench.databases import SQLITE, Databases
from callsheet.engine import Engine
from callsheet.store.connection import Connection
from callsheet.store.sqlite import SqliteDatabase

JOBS = 4_000
SIZE = 200


class ProfiledConnection:
    """Profiles the thread that opened it until that thread closes it."""

    def __init__(self, inner: Connection, profile: cProfile.Profile) -> None:
        self._inner = inner
        self._profile = profile
        profile.enable()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        self._profile.disable()
        self._inner.close()


class ProfiledSqlite(SqliteDatabase):
    """A SQLite file whose writing connection is profiled."""

    profile: cProfile.Profile

    def connect(self, *, reading: bool = False) -> Any:
        inner = super().connect(reading=reading)
        return inner if reading else ProfiledConnection(inner, self.profile)


def report(databases: Databases) -> None:
    """Print the most expensive functions; the times are per job and include the overhead of profiling."""
    database = ProfiledSqlite(databases.create(SQLITE))
    database.profile = cProfile.Profile()
    caller = cProfile.Profile()
    with Engine(database) as engine:
        engine.start()
        load.set_up(engine)
        jobs = load.submits(JOBS, seed=1)
        caller.enable()
        load.run_bulk(engine, jobs, SIZE)
        caller.disable()
    _print("the writer thread", database.profile, 40)
    _print("the caller's thread (`acquire` is the wait for the writer)", caller, 12)


def _print(title: str, profile: cProfile.Profile, count: int) -> None:
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    total = sum(entry[2] for entry in stats.values())
    print(f"\n{title}: {total / JOBS * 1e6:.0f} µs a job, profiled")
    print("   own µs/job  share  calls/job  cumulative µs/job  function")
    ordered = sorted(stats.items(), key=lambda item: -item[1][2])
    for (file, line, function), (_, calls, own, cumulative, _) in ordered[:count]:
        where = function if file == "~" else f"{'/'.join(file.split('/')[-2:])}:{line} {function}"
        costs = f"{own / JOBS * 1e6:10.1f}  {own / total:5.1%}  {calls / JOBS:9.2f}  {cumulative / JOBS * 1e6:17.1f}"
        print(f"   {costs}  {where}")
