"""Busy streams: how long other requests take while many streams of one tenant get many events a second."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bench.databases import DATABASE_KINDS, Databases
from bench.http.api import ServerUnderTest, run_server
from bench.http.connection_load import open_connections, request
from bench.table import Row, plain_row, row_below_target

STREAMS = 2_000
EVENTS_PER_SECOND = 500
SECONDS = 10.0
PROBE_SECONDS = 0.01
MS_MAX = 50.0
_BULKS_PER_SECOND = 20


class Probes(NamedTuple):
    """Times of other requests, in milliseconds, and the share of the events that the streams got during the load."""

    health: list[float]
    get_job: list[float]
    events_per_stream: float
    slowest_stream: float
    sent: int
    cpu_percent: float


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    seconds = SECONDS / 2 if quick else SECONDS
    rows: list[Row] = []
    for kind in DATABASE_KINDS:
        dsn = databases.create(kind)
        with run_server(dsn) as server, _readers(server) as readers:
            rows.extend(_rows(kind, asyncio.run(_load(server, readers, seconds)), seconds))
        databases.drop(dsn)
    return rows


def _rows(kind: str, probes: Probes, seconds: float) -> list[Row]:
    name = f"{kind}: {STREAMS:,} streams, {probes.sent / seconds:.0f} events/s"
    rows = []
    for what, took in (("health", probes.health), ("get a job", probes.get_job)):
        took.sort()
        rows.append(row_below_target(f"{name}: {what}, p99", took[len(took) * 99 // 100], "ms", MS_MAX))
        rows.append(plain_row(f"{name}: {what}, slowest", took[-1], "ms"))
    delivered = probes.events_per_stream / probes.sent * 100
    rows.append(plain_row(f"{name}: delivered in the same time", delivered, "%"))
    rows.append(plain_row(f"{name}: the same, to the slowest stream", probes.slowest_stream / probes.sent * 100, "%"))
    rows.append(plain_row(f"{name}: CPU of one core", probes.cpu_percent, "%"))
    return rows


@contextmanager
def _readers(server: ServerUnderTest) -> Iterator["subprocess.Popen[str]"]:
    arguments = [str(server.port), server.key, "/v1/events?cursor=now", str(STREAMS)]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.http.stream_readers", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        if process.stdout is None or process.stdout.readline() != "open\n":
            raise RuntimeError("The streams could not be opened.")
        yield process
    finally:
        process.kill()
        process.communicate()


async def _load(server: ServerUnderTest, readers: "subprocess.Popen[str]", seconds: float) -> Probes:
    job = await _submit(server, 1)
    start, cpu = time.perf_counter(), server.cpu_seconds()
    end = start + seconds
    submitting = asyncio.ensure_future(_submit_until(server, end))
    health, get_job = await asyncio.gather(_probe(server, "/healthz", end), _probe(server, f"/v1/jobs/{job}", end))
    sent = await submitting
    cpu_percent = (server.cpu_seconds() - cpu) / (time.perf_counter() - start) * 100
    out, _ = await asyncio.to_thread(readers.communicate, "\n")
    events = sorted(json.loads(out))
    return Probes(health, get_job, sum(events) / len(events), events[0], sent, cpu_percent)


async def _submit(server: ServerUnderTest, count: int) -> str:
    """Submit jobs in one request, and return the id of the first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = json.dumps({"jobs": [{"workflow": "sketch", "user": "ann"}] * count}).encode()
    writer.write(request("POST", "/v1/jobs/bulk", server.key, body))
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    answer = json.loads(await reader.readexactly(length))
    writer.close()
    return str(answer["results"][0]["job_id"])


async def _submit_until(server: ServerUnderTest, end: float) -> int:
    """Submit jobs at an even rate, however long each request takes. Return the number of events that they caused."""
    count = EVENTS_PER_SECOND // _BULKS_PER_SECOND
    at = time.perf_counter()
    requests: list[asyncio.Task[str]] = []
    while at < end:
        await asyncio.sleep(max(at - time.perf_counter(), 0))
        requests.append(asyncio.create_task(_submit(server, count)))
        at += 1 / _BULKS_PER_SECOND
    done, waiting = await asyncio.wait(requests, timeout=0)
    for one in waiting:
        one.cancel()
    return len(done) * count + 1


async def _probe(server: ServerUnderTest, path: str, end: float) -> list[float]:
    """Return the times of requests that are sent one after the other, with pauses, over an open connection."""
    took: list[float] = []
    message = request("GET", path, server.key)
    async with open_connections(server.port, 1) as connection:
        while time.perf_counter() < end:
            took.extend((await connection.load(lambda _: message, 1)).latencies_ms)
            await asyncio.sleep(PROBE_SECONDS)
    return took
