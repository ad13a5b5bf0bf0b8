"""The time of a claim with one workflow of a kind and with five hundred, each with a running limit and a rate."""

import random
from contextlib import ExitStack
from statistics import median
from time import perf_counter

from bench import load
from bench.databases import DATABASE_KINDS, Databases, database_at
from bench.table import Row, plain_row, row_below_target
from callsheet.core.model.commands import PutTenant, PutWorkflow, Submit
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.engine import Engine

WORKFLOWS = (1, 500)
WAITING = 4_000
RUNNING = 1_000
CLAIMS = 300
WARM_UP = 30
GROWTH_MAX = 2.0


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    claims = CLAIMS // 3 if quick else CLAIMS
    return [row for kind in DATABASE_KINDS for row in _measure_growth(databases, kind, claims)]


def _measure_growth(databases: Databases, kind: str, claims: int) -> list[Row]:
    filled = {count: _create_filled(databases, kind, count) for count in WORKFLOWS}
    took = _time_claims(filled, claims)
    for dsn in filled.values():
        databases.drop(dsn)
    cost = {count: median(times) * 1e3 for count, times in took.items()}
    few, many = WORKFLOWS
    rows = [plain_row(f"{kind}: claim p50, limited workflows: {count}", cost[count], "ms") for count in WORKFLOWS]
    name = f"{kind}: claim p50, {many} / {few} limited workflows"
    return [*rows, row_below_target(name, cost[many] / cost[few], "times", GROWTH_MAX)]


def _create_filled(databases: Databases, kind: str, count: int) -> str:
    """Return the DSN of a database in which the tasks of so many limited workflows wait and run."""
    dsn = databases.create(kind)
    engine = Engine(database_at(dsn))
    engine.start()
    with engine:
        engine.execute(PutTenant(tenant=load.TENANTS[0]))
        names = [f"limited-{n:03}" for n in range(count)]
        load.raise_first_error(engine.execute_many([PutWorkflow(definition=_limited(name)) for name in names]))
        jobs = [
            Submit(tenant=load.TENANTS[0], user="user-000", workflow=names[n % count]) for n in range(WAITING + RUNNING)
        ]
        for start in range(0, len(jobs), 1_000):
            load.raise_first_error(engine.execute_many(jobs[start : start + 1_000]))
        for _ in range(0, RUNNING, 100):
            engine.execute(load.claim(100))
    return dsn


def _limited(name: str) -> WorkflowDefinition:
    stages = [StageSpec(name="draw", kind=load.KIND)]
    return WorkflowDefinition(name=name, stages=stages, running_max=10_000, rate_max="10000/minute")


def _time_claims(filled: dict[int, str], claims: int) -> dict[int, list[float]]:
    """Claim from both databases in turn, so that other load on the machine affects both."""
    took: dict[int, list[float]] = {count: [] for count in filled}
    with ExitStack() as stack:
        engines = {count: stack.enter_context(Engine(database_at(dsn))) for count, dsn in filled.items()}
        for engine in engines.values():
            engine.start()
        rng = random.Random(1)
        for _ in range(WARM_UP + claims):
            for count, engine in rng.sample(sorted(engines.items()), len(engines)):
                start = perf_counter()
                leased = engine.execute(load.claim())
                took[count].append(perf_counter() - start)
                if len(leased) != 1:
                    raise AssertionError("a claim returned no task although tasks wait")
    return {count: times[WARM_UP:] for count, times in took.items()}
