"""CPU time per job on SQLite in batches of 200, per step, of all threads together."""

from itertools import pairwise
from statistics import median
from time import process_time

from bench import load
from bench.databases import SQLITE, Databases, database_at
from bench.table import Row, plain_row
from callsheet.core.model.commands import Command
from callsheet.engine import Engine

SIZE = 200
STEPS = ("submit", "claim", "complete")


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    engine = Engine(database_at(databases.create(SQLITE)))
    engine.start()
    with engine:
        load.set_up(engine)
        laps = [_lap(engine, seed) for seed in range(10 if quick else 40)][2:]
    costs = [median(lap[n] for lap in laps) for n in range(len(STEPS))]
    named_costs = [*zip(STEPS, costs, strict=True), ("whole job", sum(costs))]
    return [plain_row(f"SQLite CPU: {step}, batches of {SIZE}", cost, "µs/job") for step, cost in named_costs]


def _lap(engine: Engine, seed: int) -> list[float]:
    marks = [process_time()]
    load.raise_first_error(engine.execute_many(load.submits(SIZE, seed)))
    marks.append(process_time())
    leased = engine.execute(load.claim(SIZE))
    marks.append(process_time())
    work: list[Command] = [load.complete(one) for one in leased]
    load.raise_first_error(engine.execute_many(work))
    marks.append(process_time())
    if len(leased) != SIZE:
        raise AssertionError(f"claimed {len(leased)} of {SIZE}")
    return [(after - before) / SIZE * 1e6 for before, after in pairwise(marks)]
