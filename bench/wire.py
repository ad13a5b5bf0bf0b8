"""A load of HTTP requests over kept connections, as cheap as Python lets it be: ready bytes out, answers counted."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

Make = Callable[[int], bytes]
"""Makes the n-th request."""


class Load(NamedTuple):
    """What a load gave."""

    per_second: float
    latencies_ms: list[float]
    statuses: dict[int, int]


class _Caller(asyncio.Protocol):
    """One connection: sends a request, reads its answer, sends the next."""

    def __init__(self) -> None:
        self._round: _Round | None = None
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        place = self._buffer.lower().find(b"content-length: ", 0, head)
        length = int(self._buffer[place + 16 : self._buffer.find(b"\r", place)]) if place >= 0 else 0
        if len(self._buffer) < head + 4 + length or self._round is None:
            return
        self._round.done(int(self._buffer[9:12]), time.perf_counter() - self._sent)
        self._buffer = b""
        self.go_on(self._round)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._round is not None:
            self._round.broken(exc)

    def go_on(self, round_: "_Round") -> None:
        self._round = round_
        request = round_.take()
        if request is not None:
            self._sent = time.perf_counter()
            self.transport.write(request)


class _Round:
    def __init__(self, make: Make, count: int) -> None:
        self._make = make
        self._count = count
        self._taken = 0
        self.latencies: list[float] = []
        self.statuses: dict[int, int] = {}
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self) -> bytes | None:
        if self._taken >= self._count:
            return None
        self._taken += 1
        return self._make(self._taken)

    def done(self, status: int, seconds: float) -> None:
        self.latencies.append(seconds * 1_000)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if len(self.latencies) == self._count:
            self.finished.set_result(None)

    def broken(self, why: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(why or ConnectionError("The server hung up."))


class Callers:
    """Connections that stay open from one load to the next, so that none of them pays for opening them."""

    def __init__(self, connections: Sequence[_Caller]) -> None:
        self._connections = connections

    async def load(self, make: Make, count: int) -> Load:
        """Send so many requests, each connection one at a time."""
        round_ = _Round(make, count)
        start = time.perf_counter()
        for connection in self._connections:
            connection.go_on(round_)
        await round_.finished
        return Load(count / (time.perf_counter() - start), sorted(round_.latencies), round_.statuses)


@asynccontextmanager
async def callers(port: int, count: int) -> AsyncIterator[Callers]:
    """Open so many connections, and close them at the end."""
    loop = asyncio.get_running_loop()
    opened = [(await loop.create_connection(_Caller, "127.0.0.1", port))[1] for _ in range(count)]
    try:
        yield Callers(opened)
    finally:
        for one in opened:
            one.transport.close()


def request(method: str, path: str, key: str, body: bytes = b"") -> bytes:
    """Write a request out."""
    lines = [
        f"{method} {path} HTTP/1.1", "host: bench", f"authorization: Bearer {key}", "content-type: application/json",
        f"content-length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
