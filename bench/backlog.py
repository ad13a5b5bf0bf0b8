"""How long one claim takes beside a thousand, a hundred thousand and a million waiting tasks, and many running ones.

The engine makes one waiting job per tenant and one running job; bare SQL copies them. Claims go through the engine.
"""

import random
from contextlib import ExitStack
from statistics import median
from time import perf_counter

from bench import load
from bench.places import BOTH, POSTGRESQL, SQLITE, Places, connected, named
from bench.table import Row, below, plain
from callsheet.core.commands import Submit
from callsheet.core.rows import Attempt, Document, Job, Run, Stage, Task
from callsheet.core.rows import Row as Stored
from callsheet.engine import Engine
from callsheet.store.connection import Connection
from callsheet.store.dialect import columns

SIZES = (1_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 10_000, 100_000)
RUNNING = 100_000
CLAIMS = 300
WARM_UP = 50
GROWTH_MAX = 1.5
IDS = ("id", "job_id", "stage_id", "task_id", "owner_id", "command_id")
INDEXES = {
    SQLITE: "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = '{table}' AND sql IS NOT NULL",
    POSTGRESQL: (
        "SELECT indexname, indexdef FROM pg_indexes i WHERE tablename = '{table}' AND NOT EXISTS "
        "(SELECT 1 FROM pg_constraint c WHERE c.conindid = i.indexname::regclass)"
    ),
}
"""The indexes of a table that no key stands on."""
COPIED: tuple[type[Stored], ...] = (Job, Run, Stage, Task, Document, Attempt)


def measure(places: Places, *, quick: bool) -> list[Row]:
    sizes, running = (QUICK_SIZES, RUNNING // 10) if quick else (SIZES, RUNNING)
    return [row for kind in BOTH for row in _grown(places, kind, sizes, running)]


def _grown(places: Places, kind: str, sizes: tuple[int, ...], running: int) -> list[Row]:
    filled = {size: _filled(places, kind, size, running) for size in sizes}
    took = _claims(filled)
    for place in filled.values():
        places.drop(place)
    cost = {size: median(times) * 1e3 for size, times in took.items()}
    told = f"{_short(running)} running"
    rows = [plain(f"{kind}: claim p50, {_short(size)} waiting, {told}", cost[size], "ms") for size in sizes]
    name = f"{kind}: claim p50, {_short(sizes[-1])} / {_short(sizes[0])} waiting"
    return [*rows, below(name, cost[sizes[-1]] / cost[sizes[0]], "times", GROWTH_MAX)]


def _filled(places: Places, kind: str, size: int, running: int) -> str:
    """Return the place of a database with so many waiting and running tasks."""
    start = perf_counter()
    place = places.fresh(kind)
    _prototypes(place)
    _copy(place, kind, "held", 0, running)
    _copy(place, kind, "waiting", running, running + size)
    print(f"  {kind}: {size:,} waiting and {running:,} running made in {perf_counter() - start:.0f} s", flush=True)
    return place


def _claims(filled: dict[int, str]) -> dict[int, list[float]]:
    """Claim by turns from all databases, so that what else the machine does falls on all alike."""
    took: dict[int, list[float]] = {size: [] for size in filled}
    with ExitStack() as stack:
        engines = {size: stack.enter_context(Engine(named(place))) for size, place in filled.items()}
        for engine in engines.values():
            engine.start()
        chance = random.Random(1)
        for _ in range(WARM_UP + CLAIMS):
            for size, engine in chance.sample(sorted(engines.items()), len(engines)):
                start = perf_counter()
                leased = engine.execute(load.claim())
                took[size].append(perf_counter() - start)
                if len(leased) != 1:
                    raise AssertionError("a claim came back empty from a full queue")
    return {size: times[WARM_UP:] for size, times in took.items()}


# -- copies


def _prototypes(place: str) -> None:
    """Keep one running job in tables `held_…` and one waiting job per tenant in tables `waiting_…`."""
    engine = Engine(named(place))
    engine.start()
    with engine:
        load.set_up(engine)
        first = [Submit(tenant=t, user="user-000", workflow=load.WORKFLOW, input={"prompt": "a"}) for t in load.TENANTS]
        load.all_done(engine.execute_many([load.top_up(job.tenant, job.user) for job in first]))
        held = engine.execute(first[0])
        engine.execute(load.claim())
        waiting = [engine.execute(job).job_id for job in first]
    connection = connected(place)
    try:
        for table in COPIED:
            _keep(connection, f"held_{table.TABLE}", table, [held.job_id])
            _keep(connection, f"waiting_{table.TABLE}", table, waiting)
    finally:
        connection.close()


def _keep(connection: Connection, name: str, table: type[Stored], jobs: list[str]) -> None:
    owner = "id" if table is Job else "job_id"
    ids = ", ".join(f"'{job}'" for job in jobs)
    connection.run(f"CREATE TABLE {name} AS SELECT * FROM {table.TABLE} WHERE {owner} IN ({ids})")


def _copy(place: str, kind: str, prototypes: str, low: int, high: int) -> None:
    """Copy jobs with what belongs to them, under the numbers from low to high, and let the database count anew."""
    connection = connected(place)
    try:
        relaxed = "PRAGMA synchronous = OFF" if kind == SQLITE else "SET synchronous_commit = off"
        connection.run(relaxed)
        each = (high - low) // int(connection.run(f"SELECT count(*) FROM {prototypes}_job")[0][0])
        connection.begin()
        for table in COPIED:
            _without_indexes(connection, kind, table, _copy_text(kind, table, prototypes, low, low + each))
        connection.commit()
        _settle(connection, kind)
    finally:
        connection.close()


def _without_indexes(connection: Connection, kind: str, table: type[Stored], text: str) -> None:
    """Build what can be built afterwards afterwards: that is several times as fast."""
    found = connection.run(INDEXES[kind].format(table=table.TABLE))
    indexes = {str(name): str(made) for name, made in found}
    for name in indexes:
        connection.run(f"DROP INDEX {name}")
    connection.run(text)
    for made in indexes.values():
        connection.run(made)


def _settle(connection: Connection, kind: str) -> None:
    if kind == SQLITE:
        connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
        return
    connection.run("VACUUM ANALYZE")
    connection.run("CHECKPOINT")


def _copy_text(kind: str, table: type[Stored], prototypes: str, low: int, high: int) -> str:
    number = "printf('%012x', s.n)" if kind == SQLITE else "lpad(to_hex(s.n), 12, '0')"
    values = {name: f"t.{name}" for name in columns(table)}
    for name in IDS:
        if name in values:
            values[name] = f"substr(t.{name}, 1, 24) || {number}"
    if table is Task:
        values["rank"] = "t.rank + s.n * 1000000"
    chosen = ", ".join(values.values())
    return (
        f"WITH RECURSIVE s(n) AS (SELECT CAST({low} AS bigint) UNION ALL SELECT n + 1 FROM s WHERE n < {high - 1}) "
        f"INSERT INTO {table.TABLE} ({', '.join(values)}) "
        f"SELECT {chosen} FROM s CROSS JOIN {prototypes}_{table.TABLE} t"
    )


def _short(count: int) -> str:
    return f"{count // 1_000_000} M" if count >= 1_000_000 else f"{count // 1_000} k"
