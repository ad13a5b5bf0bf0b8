"""Idle streams on one server process: memory for each, CPU while nothing happens, and one event to all of them."""

import asyncio
import time
from pathlib import Path

from bench.places import SQLITE, Places
from bench.table import Row, below, plain
from bench.web import Under, served
from bench.wire import request

STREAMS = 2_000
IDLE_SECONDS = 16.0
"""Longer than a beat, so that every stream's sign of life is counted."""
KB_MAX = 64.0
CORE_PERCENT_MAX = 10.0
_SUBMIT = b'{"workflow":"sketch","user":"ann"}'
_ANSWER_SECONDS = 60.0

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def measure(places: Places, *, quick: bool) -> list[Row]:
    _ = quick  # fewer streams, or less than a beat, would be another figure
    place = places.fresh(SQLITE)
    with served(place) as under:
        rows = asyncio.run(_measured(under))
    places.drop(place)
    return rows


async def _measured(under: Under) -> list[Row]:
    jobs = [await _submitted(under) for _ in range(STREAMS // 2)]
    before = _resident_kb(under)
    pipes = [await _opened(under, path) for job in jobs for path in (f"/v1/jobs/{job}/events", "/v1/events?after=now")]
    each = (_resident_kb(under) - before) / len(pipes)
    start, cpu = time.perf_counter(), under.cpu_seconds()
    await asyncio.sleep(IDLE_SECONDS)
    idle = (under.cpu_seconds() - cpu) / (time.perf_counter() - start) * 100
    spread = await _spread(under, pipes[1::2])
    for _, writer in pipes:
        writer.close()
    return [
        below(f"{len(pipes):,} idle streams: memory each", each, "KB", KB_MAX),
        below(f"{len(pipes):,} idle streams: CPU of one core", idle, "%", CORE_PERCENT_MAX),
        plain(f"{len(pipes):,} idle streams: one event to the {len(pipes) // 2:,} of its tenant", spread, "ms"),
    ]


async def _opened(under: Under, path: str) -> Pipe:
    reader, writer = await asyncio.open_connection("127.0.0.1", under.port)
    plainly = request("GET", path, under.key)
    writer.write(plainly.replace(b"\r\n\r\n", b"\r\nAccept: text/event-stream\r\n\r\n", 1))
    async with asyncio.timeout(_ANSWER_SECONDS):
        await reader.readuntil(b"retry: 1000\n\n")
    return reader, writer


async def _submitted(under: Under) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", under.port)
    writer.write(request("POST", "/v1/jobs", under.key, _SUBMIT))
    async with asyncio.timeout(_ANSWER_SECONDS):
        await reader.readuntil(b'{"id":"')
        job = await reader.readuntil(b'"')
    writer.close()
    return job[:-1].decode()


async def _spread(under: Under, pipes: list[Pipe]) -> float:
    """Return the milliseconds from a submit until the last of them has heard of it."""
    start = time.perf_counter()
    job = await _submitted(under)
    async with asyncio.timeout(_ANSWER_SECONDS):
        await asyncio.gather(*(reader.readuntil(job.encode()) for reader, _ in pipes))
    return (time.perf_counter() - start) * 1_000


def _resident_kb(under: Under) -> float:
    fields = Path(f"/proc/{under.pid}/status").read_text().split("VmRSS:")[1].split()
    return float(fields[0])
