"""The time of a claim with a thousand, a hundred thousand and a million waiting tasks, and many running ones.

The engine creates one waiting job per tenant and one running job, and bare SQL copies them. The engine runs the claims.
In one more database, the largest backlog belongs to many users, each of whom submitted all tasks at once. That is the
worst case: each claim takes a task from another place of the backlog and exchanges turns.
"""

import random
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple

from bench import load
from bench.databases import DATABASE_KINDS, POSTGRESQL, SQLITE, Databases, connect_to, database_at
from bench.table import Row, plain_row, row_below_target
from callsheet.core.model.commands import Submit
from callsheet.core.model.rows import Attempt, Document, Event, Job, Run, Stage, Task
from callsheet.core.model.rows import Row as Stored
from callsheet.engine import Engine
from callsheet.store.connection import Connection
from callsheet.store.dialect import CURRENT_TRANSACTION, columns

SIZES = (1_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 10_000, 100_000)
USERS = 20_000
RUNNING = 100_000
CLAIMS = 300
WARM_UP = 50
GROWTH_MAX = 1.5
IDS = ("id", "job_id", "stage_id", "task_id", "owner_id", "command_id", "subject", "entity_id")
INDEXES = {
    SQLITE: "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = '{table}' AND sql IS NOT NULL",
    POSTGRESQL: (
        "SELECT indexname, indexdef FROM pg_indexes i WHERE tablename = '{table}' AND NOT EXISTS "
        "(SELECT 1 FROM pg_constraint c WHERE c.conindid = i.indexname::regclass)"
    ),
}
"""The indexes of a table that are not part of a key."""
COPIED_TABLES: tuple[type[Stored], ...] = (Job, Run, Stage, Task, Document, Attempt)


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    sizes, running = (QUICK_SIZES, RUNNING // 10) if quick else (SIZES, RUNNING)
    return [row for kind in DATABASE_KINDS for row in _measure_growth(databases, kind, sizes, running)]


def _measure_growth(databases: Databases, kind: str, sizes: tuple[int, ...], running: int) -> list[Row]:
    backlogs = [*(Backlog(size) for size in sizes), Backlog(sizes[-1], USERS)]
    filled = {backlog: _create_filled(databases, kind, backlog, running) for backlog in backlogs}
    took = _time_claims(filled)
    for dsn in filled.values():
        databases.drop(dsn)
    cost = [median(took[backlog]) * 1e3 for backlog in backlogs]
    running_label = f"{_abbreviate(running)} running"
    rows = [
        plain_row(f"{kind}: claim p50, {backlog} waiting, {running_label}", found, "ms")
        for backlog, found in zip(backlogs, cost, strict=True)
    ]
    names = [f"{kind}: claim p50, {backlog} / {backlogs[0]} waiting" for backlog in backlogs]
    ratios = [row_below_target(names[n], cost[n] / cost[0], "times", GROWTH_MAX) for n in (-2, -1)]
    return [*rows, *ratios]


class Backlog(NamedTuple):
    """How many tasks wait, and how many users of each tenant they belong to."""

    size: int
    users: int = 1

    def __str__(self) -> str:
        users = f" of {_abbreviate(self.users)} users" if self.users > 1 else ""
        return _abbreviate(self.size) + users


def _create_filled(databases: Databases, kind: str, backlog: Backlog, running: int) -> str:
    """Return the DSN of a database with so many waiting and running tasks."""
    start = perf_counter()
    dsn = databases.create(kind)
    _create_prototypes(dsn)
    _multiply(dsn, kind, "leased_job", 0, running)
    _multiply(dsn, kind, "waiting", running, running + backlog.size, backlog.users)
    print(
        f"  {kind}: {backlog} waiting and {running:,} running tasks created in {perf_counter() - start:.0f} s",
        flush=True,
    )
    return dsn


def _time_claims(filled: dict[Backlog, str]) -> dict[Backlog, list[float]]:
    """Claim from all databases in turn, so that other load on the machine affects all of them."""
    took: dict[Backlog, list[float]] = {size: [] for size in filled}
    with ExitStack() as stack:
        engines = {size: stack.enter_context(Engine(database_at(dsn))) for size, dsn in filled.items()}
        for engine in engines.values():
            engine.start()
        rng = random.Random(1)
        for _ in range(WARM_UP + CLAIMS):
            for size, engine in rng.sample(sorted(engines.items()), len(engines)):
                start = perf_counter()
                leased = engine.execute(load.claim())
                took[size].append(perf_counter() - start)
                if len(leased) != 1:
                    raise AssertionError("a claim returned no task although tasks wait")
    return {size: times[WARM_UP:] for size, times in took.items()}


# -- copies


def _create_prototypes(dsn: str) -> None:
    """Copy one running job into tables `leased_job_…` and one waiting job per tenant into tables `waiting_…`."""
    engine = Engine(database_at(dsn))
    engine.start()
    with engine:
        load.set_up(engine)
        first = [Submit(tenant=t, user="user-000", workflow=load.WORKFLOW, input={"prompt": "a"}) for t in load.TENANTS]
        load.raise_first_error(engine.execute_many([load.top_up(job.tenant, job.user) for job in first]))
        leased_job = engine.execute(first[0])
        engine.execute(load.claim())
        waiting = [engine.execute(job).job_id for job in first]
    connection = connect_to(dsn)
    try:
        for table in COPIED_TABLES:
            _save_prototypes(connection, f"leased_job_{table.TABLE}", table, [leased_job.job_id])
            _save_prototypes(connection, f"waiting_{table.TABLE}", table, waiting)
    finally:
        connection.close()


def _save_prototypes(connection: Connection, name: str, table: type[Stored], jobs: list[str]) -> None:
    owner = "id" if table is Job else "job_id"
    ids = ", ".join(f"'{job}'" for job in jobs)
    connection.run(f"CREATE TABLE {name} AS SELECT * FROM {table.TABLE} WHERE {owner} IN ({ids})")


def _multiply(dsn: str, kind: str, prototypes: str, low: int, high: int, users: int = 1) -> None:
    """Copy jobs and their rows with the numbers from low to high, and update the statistics of the database."""
    connection = connect_to(dsn)
    try:
        relaxed = "PRAGMA synchronous = OFF" if kind == SQLITE else "SET synchronous_commit = off"
        connection.run(relaxed)
        each = (high - low) // int(connection.run(f"SELECT count(*) FROM {prototypes}_job")[0][0])
        connection.begin()
        for table in COPIED_TABLES:
            without_indexes(connection, kind, table, copy_sql(kind, table, prototypes, low, low + each, users))
        connection.commit()
        vacuum(connection, kind)
    finally:
        connection.close()


def without_indexes(connection: Connection, kind: str, table: type[Stored], text: str) -> None:
    """Create the indexes after the rows, which is several times faster."""
    found = connection.run(INDEXES[kind].format(table=table.TABLE))
    indexes = {str(name): str(index_sql) for name, index_sql in found}
    for name in indexes:
        connection.run(f"DROP INDEX {name}")
    connection.run(text)
    for index_sql in indexes.values():
        connection.run(index_sql)


def vacuum(connection: Connection, kind: str) -> None:
    """Update the statistics of the database, and write its pages to the disk."""
    if kind == SQLITE:
        connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
        return
    connection.run("VACUUM ANALYZE")
    connection.run("CHECKPOINT")


def copy_sql(
    kind: str, table: type[Stored], prototypes: str, low: int, high: int, users: int = 1,
    changed: Mapping[str, str] = MappingProxyType({}),
) -> str:  # fmt: skip
    """Return the insert that copies the prototypes of a table, once for each number from low to high."""
    number = "printf('%012x', s.n)" if kind == SQLITE else "lpad(to_hex(s.n), 12, '0')"
    values = {name: f"t.{name}" for name in columns(table)}
    for name in IDS:
        if name in values:
            values[name] = f"substr(t.{name}, 1, 24) || {number}"
    if table is Task:
        tasks_per_user = max((high - low) // users, 1)
        values["rank"] = "t.rank + s.n * 1000000"
        values["user_id"] = f"t.user_id || ((s.n - {low}) / {tasks_per_user})"
        values["user_rank"] = f"t.user_rank + ((s.n - {low}) % {tasks_per_user}) * 1000000"
    if table is Event and kind == POSTGRESQL:
        values["tx"] = CURRENT_TRANSACTION
    values |= changed
    chosen = ", ".join(values.values())
    return (
        f"WITH RECURSIVE s(n) AS (SELECT CAST({low} AS bigint) UNION ALL SELECT n + 1 FROM s WHERE n < {high - 1}) "
        f"INSERT INTO {table.TABLE} ({', '.join(values)}) "
        f"SELECT {chosen} FROM s CROSS JOIN {prototypes}_{table.TABLE} t"
    )


def _abbreviate(count: int) -> str:
    return f"{count // 1_000_000} M" if count >= 1_000_000 else f"{count // 1_000} k"
