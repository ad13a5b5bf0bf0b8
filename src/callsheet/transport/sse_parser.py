"""Server-sent events: an incremental parser (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE = re.compile(rb"\r\n|\n|\r")
_EVENT_BYTES_MAX = 4 * 1024 * 1024


class SseEvent(NamedTuple):
    """One event of a stream."""

    id: str
    """The last event id, for the `Last-Event-ID` header of the next connection."""
    data: bytes
    name: str = ""
    """The `event` field; empty if the server did not send one."""


class SseEventTooLargeError(ValueError):
    """An event exceeds the size limit."""


class SseParser:
    """Parses one stream. Comments and unknown fields are ignored; events without data are dropped."""

    def __init__(self, event_bytes_max: int = _EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._buffer = b""
        self._id = ""
        self._name = ""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """Add bytes from the connection; yield the events they complete.

        Raises `SseEventTooLargeError` if an event exceeds the size limit.
        """
        self._buffer += chunk
        # A CR at the end of the buffer may be the first half of a CRLF: keep it until the next chunk.
        complete = self._buffer[:-1] if self._buffer.endswith(b"\r") else self._buffer
        lines = _LINE.split(complete)
        self._buffer = lines.pop() + self._buffer[len(complete) :]
        for line in lines:
            if line:
                self._parse_field(*line.partition(b":")[::2])
                continue
            if self._data:
                yield SseEvent(self._id, b"\n".join(self._data), self._name)
            self._name, self._data, self._data_bytes = "", [], 0
        self._check_size(len(self._buffer))

    def _parse_field(self, field: bytes, value: bytes) -> None:
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._data_bytes += len(value)
            self._check_size(0)
        elif field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")

    def _check_size(self, buffered_bytes: int) -> None:
        if self._data_bytes + buffered_bytes > self._event_bytes_max:
            raise SseEventTooLargeError(f"an event of the stream is larger than {self._event_bytes_max} bytes")
