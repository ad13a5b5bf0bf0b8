"""Server-sent events, from bytes as they come: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from callsheet.client.operations import TransportError

_LINE = re.compile(rb"\r\n|\n|\r")
_BYTES_MAX = 4 * 1024 * 1024


class Frame(NamedTuple):
    """One event of a stream: its id, by which the stream resumes, and its data."""

    id: str
    data: bytes


class Frames:
    """A reader of one stream. Comments (the server's heartbeats) and fields that we do not use are dropped."""

    def __init__(self) -> None:
        self._buffer = b""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Take bytes and yield the events that they complete."""
        self._buffer += chunk
        # A CR at the end may be the first half of a CRLF: it stays until more is here.
        complete = self._buffer[:-1] if self._buffer.endswith(b"\r") else self._buffer
        lines = _LINE.split(complete)
        self._buffer = lines.pop() + self._buffer[len(complete) :]
        if len(self._buffer) > _BYTES_MAX:
            raise TransportError("an event of the stream is too large", sent=True)
        for line in lines:
            if line:
                self._field(*line.partition(b":")[::2])
            elif self._data:
                yield Frame(self._id, b"\n".join(self._data))
                self._data = []

    def _field(self, name: bytes, value: bytes) -> None:
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode()
