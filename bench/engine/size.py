"""The time of reads with ten million waiting jobs and a million finished ones, of which one tenant owns almost all.

The engine creates one job of each kind, and bare SQL copies them. The reads run one after the other, as an API server
runs them, without HTTP.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from statistics import quantiles
from time import perf_counter
from typing import Any

from bench import load
from bench.databases import DATABASE_KINDS, SQLITE, Databases, connect_to, database_at
from bench.engine.backlog import copy_sql, vacuum, without_indexes
from bench.table import Row, plain_row
from callsheet.api.jobs import JobsQuery
from callsheet.core.model.commands import Submit
from callsheet.core.model.rows import Job, Task
from callsheet.core.model.rows import Row as Stored
from callsheet.core.policy.visibility import Viewer
from callsheet.engine import Engine
from callsheet.http.auth.authenticator import Caller, Signer
from callsheet.queries import jobs, readiness_and_load, why
from callsheet.queries.context import QueryContext
from callsheet.settings import HttpSettings
from callsheet.store.connection import Connection

WAITING, FINISHED = 10_000_000, 1_000_000
QUICK_WAITING, QUICK_FINISHED = 100_000, 10_000
SMALL_TENANT_JOBS = 10
CALLS_MIN, CALLS_MAX, SECONDS_MAX = 5, 200, 3.0
"""Each read is repeated up to `CALLS_MAX` times, or for `SECONDS_MAX`."""
COPIED_TABLES: tuple[type[Stored], ...] = (Job, Task)
BIG, SMALL = load.TENANTS[:2]
USER = "user-000"

Reads = dict[str, Callable[[QueryContext], Awaitable[Any]]]


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    waiting, finished = (QUICK_WAITING, QUICK_FINISHED) if quick else (WAITING, FINISHED)
    return [row for kind in DATABASE_KINDS for row in measure_reads(databases, kind, waiting, finished)]


def measure_reads(databases: Databases, kind: str, waiting: int, finished: int) -> list[Row]:
    """Return p50 and p99 of each read."""
    start = perf_counter()
    dsn = databases.create(kind)
    first, last = _fill(dsn, kind, waiting, finished)
    print(f"  {kind}: {waiting:,} waiting and {finished:,} finished jobs created in {perf_counter() - start:.0f} s")
    rows: list[Row] = []
    with Engine(database_at(dsn)) as engine:
        engine.start()
        for name, read in _reads(first, last).items():
            p50, p99 = asyncio.run(_time_calls(engine, read))
            label = f"{kind}: {name}, {waiting // 1_000:,} k waiting"
            print(f"  {label}: p50 {p50:.2f} ms, p99 {p99:.2f} ms", flush=True)
            rows += [plain_row(f"{label}, p50", p50, "ms"), plain_row(f"{label}, p99", p99, "ms")]
    databases.drop(dsn)
    return rows


def _reads(first: str, last: str) -> Reads:
    """Return the reads that pages, polls and scrapes make. The two jobs are the first and the last of the queue."""
    big, small = (Caller("admin", tenant, "bench") for tenant in (BIG, SMALL))

    def listing(viewer: Viewer, **query: Any) -> Callable[[QueryContext], Awaitable[Any]]:
        return lambda context: jobs.list_jobs(context, viewer, JobsQuery(**query))

    return {
        "list, newest": listing(big),
        "list, small tenant": listing(small),
        "list, status running": listing(big, status="running"),
        "list, status failed": listing(big, status="failed"),
        "list, status queued": listing(big, status="queued"),
        "list, user": listing(big, user=USER),
        "list, unknown workflow": listing(big, workflow="unknown"),
        "list, unknown label": listing(big, label="campaign=none"),
        "list, small tenant, unknown workflow": listing(small, workflow="unknown"),
        "list, before 2020": listing(big, until="2020-01-01T00:00:00Z"),
        "get": lambda context: jobs.get_job(context, big, last),
        "why, first of the queue": lambda context: why.explain_job(context, big, first),
        "why, last of the queue": lambda context: why.explain_job(context, big, last),
        "ops": lambda context: readiness_and_load.get_ops(context, 0, ()),
        "metrics": readiness_and_load.read_load_metrics,
    }


async def _time_calls(engine: Engine, read: Callable[[QueryContext], Awaitable[Any]]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds. Each call has a new context, so that no cache answers it."""
    times: list[float] = []
    for _ in _calls():
        context = QueryContext(engine, Signer(b"0" * 32), HttpSettings())
        start = perf_counter()
        if await read(context) is None:
            raise AssertionError("the database did not answer")
        times.append(1e3 * (perf_counter() - start))
    cuts = quantiles(times[1:], n=100, method="inclusive")
    return cuts[49], cuts[98]


def _calls() -> Iterator[int]:
    end = perf_counter() + SECONDS_MAX
    for n in range(CALLS_MAX):
        if n >= CALLS_MIN and perf_counter() > end:
            return
        yield n


# -- copies


def _fill(dsn: str, kind: str, waiting: int, finished: int) -> tuple[str, str]:
    """Create the jobs; return the ids of the first and the last job of the queue."""
    with Engine(database_at(dsn)) as engine:
        engine.start()
        load.set_up(engine)
        ended = _submit(engine, BIG)
        (leased,) = engine.execute(load.claim())
        engine.execute(load.complete(leased))
        first = _submit(engine, BIG)
        for _ in range(SMALL_TENANT_JOBS):
            _submit(engine, SMALL)
    connection = connect_to(dsn)
    try:
        connection.run("PRAGMA synchronous = OFF" if kind == SQLITE else "SET synchronous_commit = off")
        _copy(connection, kind, "ended", ended, finished)
        _copy(connection, kind, "first", first, waiting)
        vacuum(connection, kind)
    finally:
        connection.close()
    with Engine(database_at(dsn)) as engine:
        engine.start()
        return first, _submit(engine, BIG)


def _submit(engine: Engine, tenant: str) -> str:
    engine.execute(load.top_up(tenant, USER))
    job_id: str = engine.execute(Submit(tenant=tenant, user=USER, workflow=load.WORKFLOW, input={"prompt": "a"})).job_id
    return job_id


def _copy(connection: Connection, kind: str, prototype: str, job_id: str, copies: int) -> None:
    """Copy a job and its task. The number of a copy moves its creation, and its place in the queue, back."""
    connection.begin()
    for table in COPIED_TABLES:
        key = "id" if table is Job else "job_id"
        name = f"{prototype}_{table.TABLE}"
        connection.run(f"CREATE TABLE {name} AS SELECT * FROM {table.TABLE} WHERE {key} = '{job_id}'")
        changed = {"created_at": "t.created_at + s.n"} if table is Job else {}
        without_indexes(connection, kind, table, copy_sql(kind, table, prototype, 1, copies + 1, changed=changed))
        connection.run(f"DROP TABLE {name}")
    connection.commit()
