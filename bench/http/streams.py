"""Idle streams of one server: memory per stream, CPU while nothing happens, and the time to send one event to all."""

import asyncio
import time
from pathlib import Path

from bench.databases import SQLITE, Databases
from bench.http.api import ServerUnderTest, run_server
from bench.http.connection_load import request
from bench.table import Row, plain_row, row_below_target

STREAMS = 2_000
IDLE_SECONDS = 16.0
"""Longer than the heartbeat interval, so that a heartbeat of every stream is included."""
KB_MAX = 64.0
CORE_PERCENT_MAX = 10.0
_SUBMIT = b'{"workflow":"sketch","user":"ann"}'
_ANSWER_SECONDS = 60.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    _ = quick  # fewer streams or a shorter time would measure something else
    dsn = databases.create(SQLITE)
    with run_server(dsn) as server:
        rows = asyncio.run(_measure_streams(server))
    databases.drop(dsn)
    return rows


async def _measure_streams(server: ServerUnderTest) -> list[Row]:
    jobs = [await _submit_job(server) for _ in range(STREAMS // 2)]
    before = _resident_kb(server)
    streams = [
        await _open_stream(server, path) for job in jobs for path in (f"/v1/jobs/{job}/events", "/v1/events?cursor=now")
    ]
    kb_each = (_resident_kb(server) - before) / len(streams)
    start, cpu = time.perf_counter(), server.cpu_seconds()
    await asyncio.sleep(IDLE_SECONDS)
    idle = (server.cpu_seconds() - cpu) / (time.perf_counter() - start) * 100
    fan_out_ms = await _fan_out_ms(server, streams[1::2])
    for _, writer in streams:
        writer.close()
    return [
        row_below_target(f"{len(streams):,} idle streams: memory each", kb_each, "KB", KB_MAX),
        row_below_target(f"{len(streams):,} idle streams: CPU of one core", idle, "%", CORE_PERCENT_MAX),
        plain_row(
            f"{len(streams):,} idle streams: one event to the {len(streams) // 2:,} of its tenant", fan_out_ms, "ms"
        ),
    ]


async def _open_stream(server: ServerUnderTest, path: str) -> Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = request("GET", path, server.key)
    writer.write(head.replace(b"\r\n\r\n", b"\r\nAccept: text/event-stream\r\n\r\n", 1))
    async with asyncio.timeout(_ANSWER_SECONDS):
        await reader.readuntil(b"retry: 1000\n\n")
    return reader, writer


async def _submit_job(server: ServerUnderTest) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request("POST", "/v1/jobs", server.key, _SUBMIT))
    async with asyncio.timeout(_ANSWER_SECONDS):
        await reader.readuntil(b'{"id":"')
        job = await reader.readuntil(b'"')
    writer.close()
    return job[:-1].decode()


async def _fan_out_ms(server: ServerUnderTest, streams: list[Stream]) -> float:
    """Return the milliseconds from a submit until all streams have its event."""
    start = time.perf_counter()
    job = await _submit_job(server)
    async with asyncio.timeout(_ANSWER_SECONDS):
        await asyncio.gather(*(reader.readuntil(job.encode()) for reader, _ in streams))
    return (time.perf_counter() - start) * 1_000


def _resident_kb(server: ServerUnderTest) -> float:
    fields = Path(f"/proc/{server.pid}/status").read_text().split("VmRSS:")[1].split()
    return float(fields[0])
