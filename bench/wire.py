"""A load of HTTP requests over kept connections, as cheap as Python lets it be: ready bytes out, answers counted."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

Make = Callable[[int], bytes]
"""Makes the n-th request."""


class Load(NamedTuple):
    """What a load gave."""

    per_second: float
    latencies_ms: list[float]
    statuses: dict[int, int]


class _Caller(asyncio.Protocol):
    def __init__(self, crowd: "_Crowd") -> None:
        self._crowd = crowd
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._next()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        place = self._buffer.lower().find(b"content-length: ", 0, head)
        length = int(self._buffer[place + 16 : self._buffer.find(b"\r", place)]) if place >= 0 else 0
        if len(self._buffer) < head + 4 + length:
            return
        self._crowd.done(int(self._buffer[9:12]), time.perf_counter() - self._sent)
        self._buffer = b""
        self._next()

    def _next(self) -> None:
        request = self._crowd.take()
        if request is None:
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(request)


class _Crowd:
    def __init__(self, make: Make, count: int) -> None:
        self._make = make
        self._count = count
        self._taken = 0
        self._open = 0
        self.latencies: list[float] = []
        self.statuses: dict[int, int] = {}
        self.finished = asyncio.get_running_loop().create_future()

    def take(self) -> bytes | None:
        if self._taken >= self._count:
            return None
        self._taken += 1
        return self._make(self._taken)

    def done(self, status: int, seconds: float) -> None:
        self.latencies.append(seconds * 1_000)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if len(self.latencies) == self._count and not self.finished.done():
            self.finished.set_result(None)


async def load(port: int, make: Make, count: int, callers: int) -> Load:
    """Send so many requests over so many connections."""
    loop = asyncio.get_running_loop()
    crowd = _Crowd(make, count)
    start = time.perf_counter()
    for _ in range(callers):
        await loop.create_connection(lambda: _Caller(crowd), "127.0.0.1", port)
    await crowd.finished
    return Load(count / (time.perf_counter() - start), sorted(crowd.latencies), crowd.statuses)


def request(method: str, path: str, key: str, body: bytes = b"") -> bytes:
    """Write a request out."""
    lines = [
        f"{method} {path} HTTP/1.1", "host: bench", f"authorization: Bearer {key}", "content-type: application/json",
        f"content-length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
