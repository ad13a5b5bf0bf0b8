"""The API over a socket: requests per second and CPU per request, beside a bare echo behind the same server.

The server is a process of its own, so that its CPU is its own; the load comes from this one. Also: how long after a
submit a stream hears of it.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.places import BOTH, Places
from bench.table import Row, below, beside, plain
from bench.wire import Callers, Make, callers, request

CALLERS = 64
JOBS = 100
"""So many different ones are asked for: reads of the same row share it."""
GET_TARGET = 0.4
SUBMITS_TARGET = 1_000
EVENT_MS_MAX = 15.0
ROUNDS = 25
_TICKS = os.sysconf("SC_CLK_TCK")


class Under(NamedTuple):
    """A server under load."""

    port: int
    key: str
    fleet: str
    pid: int

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def measure(places: Places, *, quick: bool) -> list[Row]:
    count = 10_000 if quick else 50_000
    rows: list[Row] = []
    for kind in BOTH:
        place = places.fresh(kind)
        with served(place) as under:
            rows.extend(asyncio.run(_requests(kind, under, count)))
            rows.extend(asyncio.run(_events(kind, under, 50 if quick else 200)))
        places.drop(place)
    return rows


async def _requests(kind: str, under: Under, count: int) -> list[Row]:
    body = json.dumps({"workflow": "sketch", "user": "ann", "input": {"prompt": "a lighthouse"}}).encode()
    gets = [request("GET", f"/v1/jobs/{await _submitted(under, body)}", under.key) for _ in range(JOBS)]
    submit = request("POST", "/v1/jobs", under.key, body)
    echo = request("GET", "/echo", under.key)
    post = request("POST", "/echo", under.key, body)
    got = await _pairs(under, lambda n: gets[n % JOBS], lambda _: echo, count)
    sent = await _pairs(under, lambda _: submit, lambda _: post, count // 4)
    return [
        beside(f"{kind} HTTP: get a job, {CALLERS} connections", got[0], "req/s", got[1], GET_TARGET),
        plain(f"{kind} HTTP: get a job, CPU (bare echo: {got[3]:.0f})", got[2], "µs/req"),
        _at_least(f"{kind} HTTP: submit, {CALLERS} connections", sent[0], sent[1], SUBMITS_TARGET),
        plain(f"{kind} HTTP: submit, CPU (bare echo: {sent[3]:.0f})", sent[2], "µs/req"),
    ]


def _at_least(name: str, value: float, limit: float, target: float) -> Row:
    return Row(name, value, "req/s", limit, value / limit, target, value >= target)


async def _pairs(under: Under, mine: Make, bare: Make, count: int) -> tuple[float, float, float, float]:
    """Return requests per second and CPU of ours and of the echo.

    They take turns, in rounds so short that a noisy machine is noisy for both; the middle round is told, and the CPU
    of all rounds.
    """
    speeds: list[tuple[float, float]] = []
    our_cpu = echo_cpu = 0.0
    async with callers(under.port, CALLERS) as open_:
        await open_.load(mine, count // 10)
        for _ in range(ROUNDS):
            start = under.cpu_seconds()
            ours = await _checked(open_, mine, count // ROUNDS)
            between = under.cpu_seconds()
            speeds.append((ours, await _checked(open_, bare, count // ROUNDS)))
            our_cpu += between - start
            echo_cpu += under.cpu_seconds() - between
    speeds.sort(key=lambda speed: speed[0] / speed[1])
    return *speeds[ROUNDS // 2], our_cpu / count * 1e6, echo_cpu / count * 1e6


async def _checked(open_: Callers, make: Make, count: int) -> float:
    got = await open_.load(make, count)
    if any(status >= 300 for status in got.statuses):
        raise AssertionError(f"the server answered {got.statuses}")
    return got.per_second


async def _events(kind: str, under: Under, samples: int) -> list[Row]:
    """Measure from the sending of a submit to its event's arrival in the tenant's stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", under.port)
    head = request("GET", "/v1/events?after=now&type=job.created", under.key)
    writer.write(head.replace(b"host: bench", b"host: bench\r\naccept: text/event-stream"))
    await reader.readuntil(b"retry: 1000")
    took: list[float] = []
    body = json.dumps({"workflow": "sketch", "user": "ann"}).encode()
    for _ in range(samples):
        start = time.perf_counter()
        posting = asyncio.ensure_future(_submitted(under, body))
        await reader.readuntil(b"event: job.created")
        took.append((time.perf_counter() - start) * 1_000)
        await posting
    writer.close()
    took.sort()
    return [
        below(f"{kind} HTTP: submit to its event in a stream, p50", took[len(took) // 2], "ms", EVENT_MS_MAX),
        plain(f"{kind} HTTP: submit to its event in a stream, p99", took[len(took) * 99 // 100], "ms"),
    ]


async def _submitted(under: Under, body: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", under.port)
    writer.write(request("POST", "/v1/jobs", under.key, body))
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    job: dict[str, Any] = json.loads(await reader.readexactly(length))
    writer.close()
    return str(job["id"])


@contextmanager
def served(place: str) -> Iterator[Under]:
    """Run a server in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="callsheet-bench-") as data:
        process = subprocess.Popen([sys.executable, "-m", "bench.web_server", place, data], stdout=subprocess.PIPE)
        try:
            if process.stdout is None:
                raise RuntimeError("no pipe")
            said = json.loads(process.stdout.readline())
            yield Under(said["port"], said["key"], said["fleet"], process.pid)
        finally:
            process.terminate()
            process.communicate()
