"""A process that opens many event streams of a tenant, reads them as fast as it can, and counts the events.

It prints a line when all streams are open. After a line on its standard input it prints the number of events that each
stream got, as JSON.
"""

import json
import selectors
import socket
import sys

from bench.http.connection_load import request

_READ_BYTES = 1024 * 1024
_OPENING_MAX = 64
"""Streams that are being opened at the same time."""
_OPENED = b"retry: 1000\n\n"
_EVENT = b"\nevent: "


def main(port: int, key: str, path: str, count: int) -> None:
    selector = selectors.DefaultSelector()
    buffer = bytearray(_READ_BYTES)
    head = request("GET", path, key).replace(b"\r\n\r\n", b"\r\naccept: text/event-stream\r\n\r\n", 1)
    streams: list[socket.socket] = []
    for first in range(0, count, _OPENING_MAX):
        opening = [socket.create_connection(("127.0.0.1", port)) for _ in range(min(_OPENING_MAX, count - first))]
        for stream in opening:
            stream.sendall(head)
        for stream in opening:
            _read_head(stream)
            stream.setblocking(False)  # noqa: FBT003 - the argument has no name
            selector.register(stream, selectors.EVENT_READ, len(streams))
            streams.append(stream)
    print("open", flush=True)
    events = [0] * count
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    while True:
        for ready, _ in selector.select():
            if ready.data is None:
                print(json.dumps(events), flush=True)
                return
            size = ready.fileobj.recv_into(buffer)  # type: ignore[union-attr]
            if not size:
                raise ConnectionError("The server closed a stream.")
            events[ready.data] += buffer.count(_EVENT, 0, size)


def _read_head(stream: socket.socket) -> None:
    seen = b""
    while _OPENED not in seen:
        data = stream.recv(4_096)
        if not data:
            raise ConnectionError(f"The server refused a stream: {seen[:200]!r}")
        seen += data


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
