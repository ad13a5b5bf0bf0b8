"""A reader of server-sent event streams, frame by frame."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from tests.support.processes.live_server import LiveServer

STREAM = "text/event-stream"
_SECONDS = 30.0


class Frame(NamedTuple):
    """The fields between two blank lines of a stream."""

    id: str
    event: str
    data: Any
    comment: str = ""


@contextmanager
def open_stream(
    live_server: LiveServer, path: str, last_event_id: str | None = None, role: str | None = "client"
) -> Iterator[Iterator[Frame]]:
    """Open a stream and yield its frames as they arrive, until it ends."""
    headers = {"accept": STREAM}
    if role is not None:
        headers["authorization"] = f"Bearer {live_server.keys[role]}"
    if last_event_id is not None:
        headers["last-event-id"] = last_event_id
    with (
        httpx.Client(verify=False, timeout=_SECONDS) as client,
        client.stream("GET", live_server.url + path, headers=headers) as response,
    ):
        if response.status_code != 200:
            response.read()
            raise httpx.HTTPStatusError(response.text, request=response.request, response=response)
        yield parse_frames(response.iter_lines())


def parse_frames(lines: Iterable[str]) -> Iterator[Frame]:
    """Parse lines into frames; the first frame, which only has the reconnection time, is skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": " if not line.startswith(":") else ":")
            fields[name or "comment"] = value.strip()
        elif fields:
            if "retry" not in fields:
                data = json.loads(fields["data"]) if "data" in fields else None
                yield Frame(fields.get("id", ""), fields.get("event", ""), data, fields.get("comment", ""))
            fields = {}


def read_events(
    live_server: LiveServer, path: str, last_event_id: str | None = None, role: str | None = "client"
) -> list[Frame]:
    """Return every event of a stream that ends by itself."""
    with open_stream(live_server, path, last_event_id, role) as frames_iter:
        return [frame for frame in frames_iter if frame.id]
