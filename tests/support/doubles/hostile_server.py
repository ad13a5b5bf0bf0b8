"""A server whose every text contains characters that a terminal acts on or that change what is read."""

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import msgspec

from callsheet.http.openapi.native_document import document
from callsheet.http.routes.table import ROUTES
from callsheet.http.server.route import Route
from tests.support.doubles.http_double import HttpDouble

MARK = "EVIL"
UNSAFE = (
    "\x00\x07\x08\x0b\x1b\x7f\x80\x85\x9b\x9d\xad\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202b"
    "\u202c\u202d\u202e\u2060\u2061\u2066\u2067\u2068\u2069\ufeff\ufff9\U000e0041\ue000"
)
TEXT = f"{MARK}\x1b[2J\x1b]0;{MARK}\x07\r\n\x9b31m[red]{UNSAFE}{MARK}"

_FEED_REQUESTS_MAX = 2


class HostileServer(HttpDouble):
    """Answers every route with the example of the OpenAPI document, with `TEXT` in all texts that may be any text.

    With `refuse`, it answers every request with an error instead, whose texts are hostile too.
    """

    def __init__(self, *, refuse: bool = False) -> None:
        described = document()["paths"]
        self._refuse = refuse
        self._feed_requests = 0
        self._answers = [
            (route, re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path)), _hostile_answer(route, described))
            for route in ROUTES
        ]
        super().__init__(self._handler())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                status, kind, body = server.find_answer(self.command, self.path, self.headers.get("accept", ""))
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - names of the base class

            def log_message(self, *_: Any) -> None:
                """Write no log."""

        return Handler

    def find_answer(self, method: str, target: str, accept: str) -> tuple[int, str, bytes]:
        """Return the status, the media type and the body for a request."""
        path = target.partition("?")[0]
        if path == "/v1/events":  # a client would reconnect forever: refuse every second stream
            self._feed_requests += 1
        if self._refuse or self._feed_requests == _FEED_REQUESTS_MAX:
            self._feed_requests = 0
            problem = {"code": f"refused{TEXT}", "message": TEXT, "status": 409, "request_id": TEXT}
            return 409, "application/problem+json", json.dumps(problem).encode()
        for route, pattern, answer in self._answers:
            if route.method == method and pattern.fullmatch(path):
                if route.event_stream and "event-stream" in accept:
                    return 200, "text/event-stream", b"".join(_frames())
                return 200, "application/json", answer
        return 404, "application/problem+json", b"{}"


def _hostile_answer(route: Route, described: dict[str, Any]) -> bytes:
    responses = described[route.path][route.method.lower()]["responses"]
    contents = [one["content"] for status, one in responses.items() if status.startswith("2") and "content" in one]
    example = next((one["application/json"].get("example") for one in contents if "application/json" in one), None)
    if example is None or route.response is None:
        return b"bytes"
    return json.dumps(_with_hostile_texts(example, route.response)).encode()


def _with_hostile_texts(example: Any, shape: Any) -> Any:
    """Append `TEXT` to each text for which the result is still valid: not to times, and not to enumerations."""
    for container, key in list(_texts(example)):
        before = container[key]
        container[key] = f"{before}{TEXT}"
        try:
            msgspec.convert(json.loads(json.dumps(example)), shape)
        except msgspec.ValidationError:
            container[key] = before
    return example


def _texts(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if key in {"url", "headers", "method"}:
            continue  # a client sends them and does not show them
        if isinstance(item, dict | list):
            yield from _texts(item)
        elif isinstance(item, str):
            yield value, key


def _frames() -> Iterator[bytes]:
    kinds = ("job.created", "task.logged", "task.progressed", "job.failed")
    for seq, kind in enumerate(kinds, 1):
        event = {
            "seq": seq, "cursor": f"c{seq}", "job_id": "j1", "run": 1, "type": kind, "at": "2026-01-31T12:00:00Z",
            "actor": "worker", "from_status": None, "to_status": "failed" if kind == "job.failed" else None,
            "entity_id": "x", "data": {"message": TEXT, "code": TEXT, "reason": TEXT, "lines": [TEXT], "progress": 5},
        }  # fmt: skip
        yield f"id: {seq}\nevent: {kind}\ndata: {json.dumps(event)}\n\n".encode()
