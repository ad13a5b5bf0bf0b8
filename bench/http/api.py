"""The HTTP API: requests per second and CPU per request, compared with a bare echo on the same server.

The server runs in another process, so that its CPU time is measured alone. Also measured: the time from a submit to its
event in a stream.
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

from bench.databases import DATABASE_KINDS, Databases
from bench.http.connection_load import ConnectionPool, MakeRequest, open_connections, request
from bench.table import Row, plain_row, row_against_limit, row_below_target

CALLERS = 64
JOBS = 100
"""The number of different jobs: concurrent reads of one row would share it."""
GET_TARGET = 0.4
SUBMITS_TARGET = 1_000
EVENT_MS_MAX = 15.0
ROUNDS = 25
_TICKS = os.sysconf("SC_CLK_TCK")


class ServerUnderTest(NamedTuple):
    """A server under load."""

    port: int
    key: str
    fleet: str
    pid: int

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    count = 10_000 if quick else 50_000
    rows: list[Row] = []
    for kind in DATABASE_KINDS:
        dsn = databases.create(kind)
        with run_server(dsn) as server:
            rows.extend(asyncio.run(_measure_requests(kind, server, count)))
            rows.extend(asyncio.run(_measure_events(kind, server, 50 if quick else 200)))
        databases.drop(dsn)
    return rows


async def _measure_requests(kind: str, server: ServerUnderTest, count: int) -> list[Row]:
    body = json.dumps({"workflow": "sketch", "user": "ann", "input": {"prompt": "a lighthouse"}}).encode()
    get_requests = [request("GET", f"/v1/jobs/{await _submit_job(server, body)}", server.key) for _ in range(JOBS)]
    submit = request("POST", "/v1/jobs", server.key, body)
    get_echo = request("GET", "/echo", server.key)
    post_echo = request("POST", "/echo", server.key, body)
    gets = await _measure_against_echo(server, lambda n: get_requests[n % JOBS], lambda _: get_echo, count)
    submits = await _measure_against_echo(server, lambda _: submit, lambda _: post_echo, count // 4)
    return [
        row_against_limit(f"{kind} HTTP: get a job, {CALLERS} connections", gets[0], "req/s", gets[1], GET_TARGET),
        plain_row(f"{kind} HTTP: get a job, CPU (bare echo: {gets[3]:.0f})", gets[2], "µs/req"),
        _row_at_least(f"{kind} HTTP: submit, {CALLERS} connections", submits[0], submits[1], SUBMITS_TARGET),
        plain_row(f"{kind} HTTP: submit, CPU (bare echo: {submits[3]:.0f})", submits[2], "µs/req"),
    ]


def _row_at_least(name: str, value: float, limit: float, target: float) -> Row:
    return Row(name, value, "req/s", limit, value / limit, target, value >= target)


async def _measure_against_echo(
    server: ServerUnderTest, our_request: MakeRequest, echo_request: MakeRequest, count: int
) -> tuple[float, float, float, float]:
    """Return requests per second and CPU of ours and of the echo.

    Both run in turn, in short rounds, so that other load affects both. The result is the median round, and the CPU of
    all rounds.
    """
    speeds: list[tuple[float, float]] = []
    our_cpu = echo_cpu = 0.0
    async with open_connections(server.port, CALLERS) as connections:
        await connections.load(our_request, count // 10)
        for _ in range(ROUNDS):
            start = server.cpu_seconds()
            ours = await _load_checked(connections, our_request, count // ROUNDS)
            between = server.cpu_seconds()
            speeds.append((ours, await _load_checked(connections, echo_request, count // ROUNDS)))
            our_cpu += between - start
            echo_cpu += server.cpu_seconds() - between
    speeds.sort(key=lambda speed: speed[0] / speed[1])
    return *speeds[ROUNDS // 2], our_cpu / count * 1e6, echo_cpu / count * 1e6


async def _load_checked(connections: ConnectionPool, make: MakeRequest, count: int) -> float:
    result = await connections.load(make, count)
    if any(status >= 300 for status in result.statuses):
        raise AssertionError(f"the server answered {result.statuses}")
    return result.per_second


async def _measure_events(kind: str, server: ServerUnderTest, samples: int) -> list[Row]:
    """Measure the time from a submit to its event in the stream of the tenant."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = request("GET", "/v1/events?cursor=now&type=job.created", server.key)
    writer.write(head.replace(b"host: bench", b"host: bench\r\naccept: text/event-stream"))
    await reader.readuntil(b"retry: 1000")
    took: list[float] = []
    body = json.dumps({"workflow": "sketch", "user": "ann"}).encode()
    for _ in range(samples):
        start = time.perf_counter()
        posting = asyncio.ensure_future(_submit_job(server, body))
        await reader.readuntil(b"event: job.created")
        took.append((time.perf_counter() - start) * 1_000)
        await posting
    writer.close()
    took.sort()
    return [
        row_below_target(
            f"{kind} HTTP: submit to its event in a stream, p50", took[len(took) // 2], "ms", EVENT_MS_MAX
        ),
        plain_row(f"{kind} HTTP: submit to its event in a stream, p99", took[len(took) * 99 // 100], "ms"),
    ]


async def _submit_job(server: ServerUnderTest, body: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request("POST", "/v1/jobs", server.key, body))
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    job: dict[str, Any] = json.loads(await reader.readexactly(length))
    writer.close()
    return str(job["id"])


@contextmanager
def run_server(dsn: str) -> Iterator[ServerUnderTest]:
    """Run a server in another process."""
    with tempfile.TemporaryDirectory(prefix="callsheet-bench-") as data:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.http.server", dsn, data],
            stdout=subprocess.PIPE,
            start_new_session=True,  # otherwise Linux may schedule server and client as one group, with one share
        )
        try:
            if process.stdout is None:
                raise RuntimeError("no pipe")
            ready = json.loads(process.stdout.readline())
            yield ServerUnderTest(ready["port"], ready["key"], ready["fleet"], process.pid)
        finally:
            process.terminate()
            process.communicate()
