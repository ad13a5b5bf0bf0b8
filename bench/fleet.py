"""The worker protocol over a socket: tasks claimed and completed per second, and what a thousand idle workers cost.

The echo takes as many requests of the same size over as many connections, so that the ratio tells what the work
behind the protocol costs. An idle fleet is measured by the server's CPU and by its trips to the database.
"""

import asyncio
import json
import time
from typing import Any

from bench.places import BOTH, Places
from bench.table import Row, below, beside, plain
from bench.web import Under, served
from bench.wire import callers, request

WORKERS = 32
IDLE_WORKERS = 1_000
IDLE_SECONDS = 20.0
WAIT_SECONDS = 55
CORE_PERCENT_MAX = 5.0
TRIPS_MAX = 2.0
_BULK = 500


class Line:
    """One kept connection that says JSON and hears JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
        self._reader = reader
        self._writer = writer
        self._key = key

    @classmethod
    async def open(cls, under: Under, key: str) -> "Line":
        return cls(*await asyncio.open_connection("127.0.0.1", under.port), key)

    async def say(self, path: str, body: Any) -> Any:
        self.send(path, body)
        return await self.hear()

    def send(self, path: str, body: Any) -> None:
        self._writer.write(request("POST", path, self._key, json.dumps(body).encode()))

    async def hear(self) -> Any:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        body = await self._reader.readexactly(length)
        if head[9:10] != b"2":
            raise AssertionError(f"the server answered {head[:12]!r} {body[:200]!r}")
        return json.loads(body)

    def close(self) -> None:
        self._writer.close()


def measure(places: Places, *, quick: bool) -> list[Row]:
    count = 1_000 if quick else 5_000
    rows: list[Row] = []
    for kind in BOTH:
        place = places.fresh(kind)
        with served(place) as under:
            rows.extend(asyncio.run(_measured(kind, under, count)))
        places.drop(place)
    return rows


async def _measured(kind: str, under: Under, count: int) -> list[Row]:
    rows: list[Row] = []
    lines = await _registered(under, WORKERS)
    await _worked(under, lines, count // 10, 1)
    for batch in (1, 32):
        took, cpu = await _worked(under, lines, count, batch)
        async with callers(under.port, WORKERS) as open_:
            echo = await open_.load(lambda _: request("POST", "/echo", under.key, b"x" * 300), count)
        calls = 1 + 1 / batch
        name = f"{kind} HTTP: claim {batch}, complete each, {WORKERS} workers"
        rows.append(beside(name, count / took, "tasks/s", echo.per_second / calls))
        rows.append(plain(f"{kind} HTTP: the same, CPU", cpu / count * 1e6, "µs/task"))
    for line in lines:
        close = line.say("/v1/worker/deregister", {})
        await close
        line.close()
    return rows + await _idle(kind, under)


async def _registered(under: Under, count: int) -> list[Line]:
    fleet = await Line.open(under, under.fleet)
    tokens = [
        (await fleet.say("/v1/worker/register", {"worker": f"w{n}", "kinds": ["draw"], "concurrency": 64}))["token"]
        for n in range(count)
    ]
    fleet.close()
    return [await Line.open(under, token) for token in tokens]


async def _worked(under: Under, lines: list[Line], count: int, batch: int) -> tuple[float, float]:
    """Submit so many jobs, then let the workers do them; return the seconds and the server's CPU seconds."""
    client = await Line.open(under, under.key)
    job = {"workflow": "sketch", "user": "ann", "input": {"prompt": "a lighthouse"}}
    for sent in range(0, count, _BULK):
        await client.say("/v1/jobs/bulk", {"jobs": [job] * min(_BULK, count - sent)})
    client.close()
    left = count

    async def work(line: Line) -> None:
        nonlocal left
        while left > 0:
            tasks = (await line.say("/v1/worker/claim", {"count": batch}))["tasks"]
            for task in tasks:
                line.send("/v1/worker/complete", {"lease": task["lease"], "output": {"image": "made"}})
            for _ in tasks:
                await line.hear()
            left -= len(tasks)

    start, cpu = time.perf_counter(), under.cpu_seconds()
    await asyncio.gather(*map(work, lines))
    return time.perf_counter() - start, under.cpu_seconds() - cpu


async def _idle(kind: str, under: Under) -> list[Row]:
    """Measure what waiting workers cost beyond what the house does by itself."""
    alone_cpu, alone_trips = await _resting(under)
    lines = await _registered(under, IDLE_WORKERS)
    for line in lines:
        line.send("/v1/worker/claim", {"wait_seconds": WAIT_SECONDS, "holds": []})
    await asyncio.sleep(3)  # until all of them wait
    cpu, trips = await _resting(under)
    for line in lines:
        line.close()
    return [
        plain(f"{kind}: nobody there: CPU of one core", alone_cpu, "%"),
        plain(f"{kind}: nobody there: trips to the database", alone_trips, "/s"),
        below(f"{kind}: {IDLE_WORKERS:,} waiting workers: CPU of one core", cpu, "%", CORE_PERCENT_MAX),
        below(f"{kind}: {IDLE_WORKERS:,} waiting workers: more trips", trips - alone_trips, "/s", TRIPS_MAX),
    ]


async def _resting(under: Under) -> tuple[float, float]:
    """Return percent of a core and trips a second while nothing happens."""
    start, cpu, trips = time.perf_counter(), under.cpu_seconds(), await _trips(under)
    await asyncio.sleep(IDLE_SECONDS)
    seconds = time.perf_counter() - start
    return (under.cpu_seconds() - cpu) / seconds * 100, (await _trips(under) - trips) / seconds


async def _trips(under: Under) -> int:
    line = await Line.open(under, under.key)
    trips: int = (await line.say("/trips", {}))["trips"]
    line.close()
    return trips
