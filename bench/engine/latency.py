"""The time from a submit to the moment when a waiting worker has the task.

The worker waits in `claim`: in a thread of this process, and on PostgreSQL also in another process that NOTIFY wakes.
The limit is two bare commits of one small row. All processes read the monotonic clock of the machine.
"""

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from bench import load
from bench.databases import DATABASE_KINDS, POSTGRESQL, Databases, connect_to, database_at
from bench.table import Row, plain_row, row_below_target
from callsheet.engine import Engine
from callsheet.store.connection import Connection

SAMPLES = 200
WARM_UP = 10
IDLE_SECONDS = 0.02
"""Long enough for a worker that has just finished to be waiting again."""
WAIT_SECONDS = 1.0
LATE_SECONDS = 30.0
P50_MS_MAX = 10.0

NextStartAt = Callable[[], int]
"""Returns when the worker had its next task, in nanoseconds."""


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    samples = SAMPLES // 4 if quick else SAMPLES
    rows = [
        row
        for kind in DATABASE_KINDS
        for row in _measure(databases, f"{kind}: worker in a thread", kind, run_in_thread, samples)
    ]
    return [*rows, *_measure(databases, f"{POSTGRESQL}: worker in a process", POSTGRESQL, run_in_process, samples)]


def _measure(
    databases: Databases, name: str, kind: str, worker: Callable[[str, Engine], Iterator[NextStartAt]], samples: int
) -> list[Row]:
    dsn = databases.create(kind)
    engine = Engine(database_at(dsn))
    engine.start()
    with engine:
        load.set_up(engine)
        bare = connect_to(dsn)
        bare.run("CREATE TABLE bench_counter AS SELECT 1 AS n")
        with contextmanager(worker)(dsn, engine) as next_start_at:
            pairs = [(_two_commits(bare), _sample(engine, n, next_start_at)) for n in range(WARM_UP + samples)][
                WARM_UP:
            ]
    bare.close()
    databases.drop(dsn)
    took = sorted(pair[1] for pair in pairs)
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    return [
        row_below_target(f"{name}: submit to start, p50", p50, "ms", P50_MS_MAX, median(pair[0] for pair in pairs)),
        plain_row(f"{name}: submit to start, p99", p99, "ms"),
    ]


def _two_commits(bare: Connection) -> float:
    """The limit: a submit and a claim are two durable commits, one after the other, whatever else they do."""
    time.sleep(IDLE_SECONDS)
    start = time.monotonic_ns()
    for _ in range(2):
        bare.begin()
        bare.run("UPDATE bench_counter SET n = n + 1")
        bare.commit()
    return (time.monotonic_ns() - start) / 1e6


def _sample(engine: Engine, seed: int, next_start_at: NextStartAt) -> float:
    time.sleep(IDLE_SECONDS)
    start = time.monotonic_ns()
    engine.execute(load.submits(1, seed)[0])
    return (next_start_at() - start) / 1e6


def run_in_thread(_place: str, engine: Engine) -> Iterator[NextStartAt]:
    """Run the worker in a thread of this process."""
    report_start: queue.SimpleQueue[int] = queue.SimpleQueue()
    stopping = threading.Event()
    thread = threading.Thread(target=work, args=(engine, report_start.put, stopping))
    thread.start()
    try:
        yield lambda: report_start.get(timeout=LATE_SECONDS)
    finally:
        stopping.set()
        thread.join()


def run_in_process(dsn: str, _engine: Engine) -> Iterator[NextStartAt]:
    """Run the worker in another process."""
    process = subprocess.Popen([sys.executable, "-m", "bench.engine.latency", dsn], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise RuntimeError("the worker process did not start")
        lines = process.stdout
        yield lambda: int(lines.readline())
    finally:
        process.terminate()
        process.communicate()


def work(engine: Engine, report_start: Callable[[int], None], stopping: threading.Event) -> None:
    """Wait for tasks, report when one has arrived, and complete it."""
    while not stopping.is_set():
        for leased in engine.claim(load.claim(), wait_seconds=WAIT_SECONDS):
            now = time.monotonic_ns()
            engine.execute(load.complete(leased))
            report_start(now)


if __name__ == "__main__":
    worker_engine = Engine(database_at(sys.argv[1]))
    worker_engine.start()
    print("ready", flush=True)
    work(worker_engine, lambda now: print(now, flush=True), threading.Event())
