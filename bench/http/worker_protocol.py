"""The worker protocol over HTTP: tasks claimed and completed per second, and the cost of a thousand idle workers.

The echo gets as many requests of the same size over as many connections, so that the ratio shows the cost of the work.
An idle fleet is measured by the CPU of the server and by its round trips to the database.
"""

import asyncio
import json
import time
from typing import Any

from bench.databases import DATABASE_KINDS, Databases
from bench.http.api import ServerUnderTest, run_server
from bench.http.connection_load import open_connections, request
from bench.table import Row, plain_row, row_against_limit, row_below_target

WORKERS = 32
IDLE_WORKERS = 1_000
IDLE_SECONDS = 20.0
WAIT_SECONDS = 55
CORE_PERCENT_MAX = 5.0
ROUND_TRIPS_MAX = 2.0
_BULK = 500


class JsonConnection:
    """One persistent connection that sends and receives JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
        self._reader = reader
        self._writer = writer
        self._key = key

    @classmethod
    async def open(cls, server: ServerUnderTest, key: str) -> "JsonConnection":
        return cls(*await asyncio.open_connection("127.0.0.1", server.port), key)

    async def post(self, path: str, body: Any) -> Any:
        self.send(path, body)
        return await self.receive()

    def send(self, path: str, body: Any) -> None:
        self._writer.write(request("POST", path, self._key, json.dumps(body).encode()))

    async def receive(self) -> Any:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        body = await self._reader.readexactly(length)
        if head[9:10] != b"2":
            raise AssertionError(f"the server answered {head[:12]!r} {body[:200]!r}")
        return json.loads(body)

    def close(self) -> None:
        self._writer.close()


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    count = 1_000 if quick else 5_000
    rows: list[Row] = []
    for kind in DATABASE_KINDS:
        dsn = databases.create(kind)
        with run_server(dsn) as server:
            rows.extend(asyncio.run(_measure_fleet(kind, server, count)))
        databases.drop(dsn)
    return rows


async def _measure_fleet(kind: str, server: ServerUnderTest, count: int) -> list[Row]:
    rows: list[Row] = []
    connections = await _register_workers(server, WORKERS)
    await _time_work(server, connections, count // 10, 1)
    for batch in (1, 32):
        took, cpu = await _time_work(server, connections, count, batch)
        async with open_connections(server.port, WORKERS) as echo_connections:
            echo = await echo_connections.load(lambda _: request("POST", "/echo", server.key, b"x" * 300), count)
        calls = 1 + 1 / batch
        name = f"{kind} HTTP: claim {batch}, complete each, {WORKERS} workers"
        rows.append(row_against_limit(name, count / took, "tasks/s", echo.per_second / calls))
        rows.append(plain_row(f"{kind} HTTP: the same, CPU", cpu / count * 1e6, "µs/task"))
    for connection in connections:
        await connection.post("/v1/worker/deregister", {})
        connection.close()
    return rows + await _measure_idle(kind, server)


async def _register_workers(server: ServerUnderTest, count: int) -> list[JsonConnection]:
    fleet = await JsonConnection.open(server, server.fleet)
    tokens = [
        (await fleet.post("/v1/worker/register", {"worker": f"w{n}", "kinds": ["draw"], "concurrency": 64}))["token"]
        for n in range(count)
    ]
    fleet.close()
    return [await JsonConnection.open(server, token) for token in tokens]


async def _time_work(
    server: ServerUnderTest, connections: list[JsonConnection], count: int, batch: int
) -> tuple[float, float]:
    """Submit so many jobs, let the workers run them, and return the seconds and the CPU seconds of the server."""
    client = await JsonConnection.open(server, server.key)
    job = {"workflow": "sketch", "user": "ann", "input": {"prompt": "a lighthouse"}}
    for sent in range(0, count, _BULK):
        await client.post("/v1/jobs/bulk", {"jobs": [job] * min(_BULK, count - sent)})
    client.close()
    remaining = count

    async def work(connection: JsonConnection) -> None:
        nonlocal remaining
        while remaining > 0:
            tasks = (await connection.post("/v1/worker/claim", {"count": batch}))["tasks"]
            for task in tasks:
                connection.send("/v1/worker/complete", {"lease": task["lease"], "output": {"image": "made"}})
            for _ in tasks:
                await connection.receive()
            remaining -= len(tasks)

    start, cpu = time.perf_counter(), server.cpu_seconds()
    await asyncio.gather(*map(work, connections))
    return time.perf_counter() - start, server.cpu_seconds() - cpu


async def _measure_idle(kind: str, server: ServerUnderTest) -> list[Row]:
    """Measure the cost of waiting workers, compared with a server without workers."""
    baseline_cpu, baseline_round_trips = await _measure_idle_window(server)
    connections = await _register_workers(server, IDLE_WORKERS)
    for connection in connections:
        connection.send("/v1/worker/claim", {"wait_seconds": WAIT_SECONDS, "holds": []})
    await asyncio.sleep(3)  # until all claims wait
    cpu, round_trips = await _measure_idle_window(server)
    for connection in connections:
        connection.close()
    return [
        plain_row(f"{kind}: idle: CPU of one core", baseline_cpu, "%"),
        plain_row(f"{kind}: idle: trips to the database", baseline_round_trips, "/s"),
        row_below_target(f"{kind}: {IDLE_WORKERS:,} waiting workers: CPU of one core", cpu, "%", CORE_PERCENT_MAX),
        row_below_target(
            f"{kind}: {IDLE_WORKERS:,} waiting workers: more trips",
            round_trips - baseline_round_trips,
            "/s",
            ROUND_TRIPS_MAX,
        ),
    ]


async def _measure_idle_window(server: ServerUnderTest) -> tuple[float, float]:
    """Return the percentage of a core and the round trips per second while nothing happens."""
    start, cpu, round_trips = time.perf_counter(), server.cpu_seconds(), await _read_round_trips(server)
    await asyncio.sleep(IDLE_SECONDS)
    seconds = time.perf_counter() - start
    return (server.cpu_seconds() - cpu) / seconds * 100, (await _read_round_trips(server) - round_trips) / seconds


async def _read_round_trips(server: ServerUnderTest) -> int:
    connection = await JsonConnection.open(server, server.key)
    round_trips: int = (await connection.post("/trips", {}))["trips"]
    connection.close()
    return round_trips
