"""From the call of submit to a waiting worker's having the task: a worker that hears of it waits in `claim`.

The worker is a thread of the same process, and on PostgreSQL also a process of its own that is told by NOTIFY.
Beside it stand two bare commits of one small row: what the disk asks for the same.
Clocks are the machine's monotonic one, which all processes share.
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
from bench.places import BOTH, POSTGRESQL, Places, connected, named
from bench.table import Row, below, plain
from callsheet.engine import Engine
from callsheet.store.connection import Connection

SAMPLES = 200
WARM_UP = 10
IDLE_SECONDS = 0.02
"""Long enough for a worker that has just finished to be waiting again."""
WAIT_SECONDS = 1.0
LATE_SECONDS = 30.0
P50_MS_MAX = 10.0

Next = Callable[[], int]
"""Returns when the worker had its next task, in nanoseconds."""


def measure(places: Places, *, quick: bool) -> list[Row]:
    samples = SAMPLES // 4 if quick else SAMPLES
    rows = [row for kind in BOTH for row in _rows(places, f"{kind}: worker in a thread", kind, in_thread, samples)]
    return [*rows, *_rows(places, f"{POSTGRESQL}: worker in a process", POSTGRESQL, in_process, samples)]


def _rows(
    places: Places, name: str, kind: str, worker: Callable[[str, Engine], Iterator[Next]], samples: int
) -> list[Row]:
    place = places.fresh(kind)
    engine = Engine(named(place))
    engine.start()
    with engine:
        load.set_up(engine)
        bare = connected(place)
        bare.run("CREATE TABLE bench_beat AS SELECT 1 AS n")
        with contextmanager(worker)(place, engine) as had_next:
            pairs = [(_two_commits(bare), _sample(engine, n, had_next)) for n in range(WARM_UP + samples)][WARM_UP:]
    bare.close()
    places.drop(place)
    took = sorted(pair[1] for pair in pairs)
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    return [
        below(f"{name}: submit to start, p50", p50, "ms", P50_MS_MAX, median(pair[0] for pair in pairs)),
        plain(f"{name}: submit to start, p99", p99, "ms"),
    ]


def _two_commits(bare: Connection) -> float:
    """The limit: a submit and a claim are two durable commits, one after the other, whatever else they do."""
    time.sleep(IDLE_SECONDS)
    start = time.monotonic_ns()
    for _ in range(2):
        bare.begin()
        bare.run("UPDATE bench_beat SET n = n + 1")
        bare.commit()
    return (time.monotonic_ns() - start) / 1e6


def _sample(engine: Engine, seed: int, had_next: Next) -> float:
    time.sleep(IDLE_SECONDS)
    start = time.monotonic_ns()
    engine.execute(load.submits(1, seed)[0])
    return (had_next() - start) / 1e6


def in_thread(_place: str, engine: Engine) -> Iterator[Next]:
    """Let a thread of this process work."""
    had: queue.SimpleQueue[int] = queue.SimpleQueue()
    stopping = threading.Event()
    thread = threading.Thread(target=work, args=(engine, had.put, stopping))
    thread.start()
    try:
        yield lambda: had.get(timeout=LATE_SECONDS)
    finally:
        stopping.set()
        thread.join()


def in_process(place: str, _engine: Engine) -> Iterator[Next]:
    """Let another process work."""
    process = subprocess.Popen([sys.executable, "-m", "bench.latency", place], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise RuntimeError("the worker's process did not start")
        lines = process.stdout
        yield lambda: int(lines.readline())
    finally:
        process.terminate()
        process.communicate()


def work(engine: Engine, had: Callable[[int], None], stopping: threading.Event) -> None:
    """Wait for tasks, tell when one has come, and complete it."""
    while not stopping.is_set():
        for leased in engine.claim(load.claim(), wait_seconds=WAIT_SECONDS):
            now = time.monotonic_ns()
            engine.execute(load.complete(leased))
            had(now)


if __name__ == "__main__":
    only = Engine(named(sys.argv[1]))
    only.start()
    print("ready", flush=True)
    work(only, lambda now: print(now, flush=True), threading.Event())
