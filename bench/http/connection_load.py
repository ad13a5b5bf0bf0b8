"""HTTP requests over persistent connections with little overhead: prepared bytes are sent, responses are counted."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

MakeRequest = Callable[[int], bytes]
"""Returns the bytes of the n-th request."""


class LoadResult(NamedTuple):
    """The result of a load."""

    per_second: float
    latencies_ms: list[float]
    statuses: dict[int, int]


class _LoadConnection(asyncio.Protocol):
    """One connection: sends a request, reads its response, sends the next."""

    def __init__(self) -> None:
        self._current_round: _LoadRound | None = None
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        header_start = self._buffer.lower().find(b"content-length: ", 0, head)
        length = (
            int(self._buffer[header_start + 16 : self._buffer.find(b"\r", header_start)]) if header_start >= 0 else 0
        )
        if len(self._buffer) < head + 4 + length or self._current_round is None:
            return
        self._current_round.done(int(self._buffer[9:12]), time.perf_counter() - self._sent)
        self._buffer = b""
        self.send_next(self._current_round)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._current_round is not None:
            self._current_round.fail(exc)

    def send_next(self, round_: "_LoadRound") -> None:
        self._current_round = round_
        request = round_.next_request()
        if request is not None:
            self._sent = time.perf_counter()
            self.transport.write(request)


class _LoadRound:
    def __init__(self, make: MakeRequest, count: int) -> None:
        self._make = make
        self._count = count
        self._sent_count = 0
        self.latencies: list[float] = []
        self.statuses: dict[int, int] = {}
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next_request(self) -> bytes | None:
        if self._sent_count >= self._count:
            return None
        self._sent_count += 1
        return self._make(self._sent_count)

    def done(self, status: int, seconds: float) -> None:
        self.latencies.append(seconds * 1_000)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if len(self.latencies) == self._count:
            self.finished.set_result(None)

    def fail(self, error: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(error or ConnectionError("The server closed the connection."))


class ConnectionPool:
    """Connections that stay open between loads, so that no load includes the time to open them."""

    def __init__(self, connections: Sequence[_LoadConnection]) -> None:
        self._connections = connections

    async def load(self, make: MakeRequest, count: int) -> LoadResult:
        """Send so many requests; each connection sends one at a time."""
        round_ = _LoadRound(make, count)
        start = time.perf_counter()
        for connection in self._connections:
            connection.send_next(round_)
        await round_.finished
        return LoadResult(count / (time.perf_counter() - start), sorted(round_.latencies), round_.statuses)


@asynccontextmanager
async def open_connections(port: int, count: int) -> AsyncIterator[ConnectionPool]:
    """Open so many connections and close them at the end."""
    loop = asyncio.get_running_loop()
    opened = [(await loop.create_connection(_LoadConnection, "127.0.0.1", port))[1] for _ in range(count)]
    try:
        yield ConnectionPool(opened)
    finally:
        for one in opened:
            one.transport.close()


def request(method: str, path: str, key: str, body: bytes = b"") -> bytes:
    """Return the bytes of a request."""
    lines = [
        f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {key}",
        "content-type: application/json", f"content-length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
