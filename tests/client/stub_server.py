"""A server with scripted responses and faults."""

import json
import socket
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.support.doubles.http_double import HttpDouble


class RecordedRequest(NamedTuple):
    """A request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class ScriptedResponse(NamedTuple):
    """A response. `truncated` declares more bytes than it sends; `drop` closes the connection without a response."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = MappingProxyType({})
    truncated: bool = False
    drop: bool = False


JOB = {
    "id": "j1", "workflow": "sketch", "workflow_version": 1, "user": "ann", "status": "queued", "phase": None, "run": 1,
    "priority": 50, "price": 3, "progress": 0, "stages_total": 1, "stages_completed": 0, "last_event_seq": 1,
    "cancel_requested": False, "created_at": "2026-01-31T12:00:00.000Z", "updated_at": "2026-01-31T12:00:00.000Z",
    "start_at": None, "deadline_at": None, "started_at": None, "finished_at": None, "error": None, "retry_of": None,
    "labels": None, "metadata": None, "from_a_newer_server": True,
}  # fmt: skip


def problem(status: int, code: str, **more: Any) -> ScriptedResponse:
    body = {"code": code, "message": "Not now.", "status": status, "request_id": "r1", **more}
    return ScriptedResponse(status, body, {"content-type": "application/problem+json"})


def frames(*numbers: int, kind: str = "task.progressed", cursor: str = "") -> str:
    """Return events of a job as an event stream has them."""
    texts = []
    for no in numbers:
        event = {
            "seq": no, "job_id": "j1", "run": 1, "type": kind, "at": "2026-01-31T12:00:00Z", "actor": "worker",
            "from_status": None, "to_status": None, "entity_id": None, "data": {},
        }  # fmt: skip
        texts.append(f"id: {cursor}{no}\nevent: {kind}\ndata: {json.dumps(event)}\n\n")
    return "".join(texts)


def stream(text: str, *, truncated: bool = False) -> ScriptedResponse:
    return ScriptedResponse(200, text, {"content-type": "text/event-stream"}, truncated)


class StubServer(HttpDouble):
    """Sends the scripted responses in order and repeats the last one. Records the requests."""

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.responses: list[ScriptedResponse] = []
        super().__init__(self._handler())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                raw = self.rfile.read(length)
                body = json.loads(raw) if raw else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                stub.requests.append(RecordedRequest(self.command, self.path, headers, body))
                stub.send_response(self, stub.responses.pop(0) if len(stub.responses) > 1 else stub.responses[0])

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer  # noqa: N815 - names of the base class

            def log_message(self, *args: Any) -> None:
                """Log nothing: tests read `requests`."""

        return Handler

    @staticmethod
    def send_response(handler: BaseHTTPRequestHandler, scripted: ScriptedResponse) -> None:
        handler.close_connection = True
        if scripted.drop:
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        text = scripted.body if isinstance(scripted.body, str | bytes) else json.dumps(scripted.body)
        raw = text.encode() if isinstance(text, str) else text
        handler.send_response(scripted.status)
        for name, value in scripted.headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(raw) + (100 if scripted.truncated else 0)))
        handler.end_headers()
        handler.wfile.write(raw)
