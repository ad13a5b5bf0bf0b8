"""Reading a stream of server-sent events, frame by frame."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from tests.support.served import Served

STREAM = "text/event-stream"
_SECONDS = 30.0


class Frame(NamedTuple):
    """What came between two blank lines."""

    id: str
    event: str
    data: Any
    comment: str = ""


@contextmanager
def listening(
    served: Served, path: str, last: str | None = None, role: str | None = "client"
) -> Iterator[Iterator[Frame]]:
    """Open a stream, and give its frames as they come, until it ends."""
    headers = {"accept": STREAM}
    if role is not None:
        headers["authorization"] = f"Bearer {served.keys[role]}"
    if last is not None:
        headers["last-event-id"] = last
    with (
        httpx.Client(verify=False, timeout=_SECONDS) as client,
        client.stream("GET", served.url + path, headers=headers) as answer,
    ):
        if answer.status_code != 200:
            answer.read()
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        yield frames(answer.iter_lines())


def frames(lines: Iterable[str]) -> Iterator[Frame]:
    """Put lines together to frames; the first, which only says when to come back, is left out."""
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


def told(served: Served, path: str, last: str | None = None, role: str | None = "client") -> list[Frame]:
    """Return every event of a stream that ends by itself."""
    with listening(served, path, last, role) as coming:
        return [frame for frame in coming if frame.id]
