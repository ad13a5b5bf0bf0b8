"""HTTP over a plain socket: requests that no client library would send, and the bytes of the answers."""

import json
import select
import socket
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

READ_SECONDS_MAX = 10.0
"""A bound for answers that never arrive; no test is expected to reach it."""


class RawResponse(NamedTuple):
    """A response as it was sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """A connection on which a test can send any bytes."""

    def __init__(self, url: str, receive_bytes: int | None = None, source_address: str = "") -> None:
        """`source_address` is the address of the client, such as 127.0.0.2."""
        parts = urlsplit(url)
        self._host = parts.netloc
        self._socket = socket.socket()
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(READ_SECONDS_MAX)
        if source_address:
            self._socket.bind((source_address, 0))
        try:
            self._socket.connect((str(parts.hostname), parts.port))
        except OSError:
            self._socket.close()
            raise
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_request(
        self, method: str, target: str, key: str | None = None, body: bytes | None = None, **headers: str
    ) -> None:
        """Send a complete request; the names of headers have underscores instead of hyphens."""
        self.send(self.head(method, target, key, body, **headers) + (body or b""))

    def head(
        self, method: str, target: str, key: str | None = None, body: bytes | None = None, **headers: str
    ) -> bytes:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        if body is not None:
            headers = {"content_type": "application/json", "content_length": str(len(body))} | headers
        lines.extend(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def read_response(self, *, without_body: bool = False) -> RawResponse:
        """Read one response with a content length."""
        head = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
        size = 0 if without_body else int(headers.get("content-length", 0))
        while len(self._buffer) < size:
            self._receive()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return RawResponse(int(head[0].split()[1]), headers, body)

    def read_until(self, delimiter: bytes) -> bytes:
        """Read up to and including a delimiter."""
        while delimiter not in self._buffer:
            self._receive()
        found, _, self._buffer = self._buffer.partition(delimiter)
        return found + delimiter

    def is_readable_within(self, seconds: float) -> bool:
        """Return whether bytes, or the end of the connection, arrive within a time."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def has_closed(self) -> bool:
        """Return whether the server has closed the connection; bytes that it sent before are read."""
        while self.is_readable_within(0):
            data = self._socket.recv(65_536)
            if not data:
                return True
            self._buffer += data
        return False

    def wait_closed(self) -> bool:
        """Wait until the server closes the connection; return whether it sent nothing more before."""
        try:
            rest = self._socket.recv(65_536)
        except ConnectionError:
            rest = b""
        return not self._buffer and not rest

    def _receive(self) -> None:
        data = self._socket.recv(65_536)
        if not data:
            raise EOFError(f"closed after {self._buffer[:200]!r}")
        self._buffer += data
