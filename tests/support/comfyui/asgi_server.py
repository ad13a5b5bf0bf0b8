"""An ASGI application on a real port that can be stopped and restarted."""

import asyncio
import json
import socket
import threading
import weakref
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import uvicorn

from tests.support.wait import wait_until

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Request(NamedTuple):
    """A request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def form(self) -> dict[str, tuple[str | None, bytes]]:
        """Return the parts of a form: the file name, if it is a file, and the bytes."""
        boundary = b"--" + self.headers["content-type"].partition("boundary=")[2].encode()
        parts = {}
        for part in self.body.split(boundary)[1:-1]:
            head, _, body = part[2:-2].partition(b"\r\n\r\n")
            words = dict(word.strip().split("=", 1) for word in head.decode().split("\r\n")[0].split(";")[1:])
            name = words["name"].strip('"')
            parts[name] = (words["filename"].strip('"') if "filename" in words else None, body)
        return parts


class Response(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    """The connection is cut before the response is complete."""


def as_json(body: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(body).encode(), (("content-type", "application/json; charset=utf-8"),))


def as_text(text: str, status: int) -> Response:
    return Response(status, text.encode(), (("content-type", "text/plain; charset=utf-8"),))


class _KillableServer(uvicorn.Server):
    """Stops immediately; uvicorn polls every 0.1 s and waits for its connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        closed = asyncio.gather(*(server.wait_closed() for server in self.servers))
        while not closed.done():  # a connection that was just accepted is only now in the list
            for connection in list(self.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await asyncio.sleep(0)

    def die(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)


def _bind(number: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", number))
    return bound


class RestartableServer:
    """Serves an application on a port that stays the same across restarts."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._server: _KillableServer | None = None
        self._thread: threading.Thread | None = None
        reserved_socket = _bind(0)  # reserves the port while no server runs
        weakref.finalize(self, reserved_socket.close)
        self.number = reserved_socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.number}"

    def up(self) -> None:
        config = uvicorn.Config(
            self._app, log_level="critical", lifespan="off", interface="asgi3", ws="websockets-sansio"
        )
        self._server = _KillableServer(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([_bind(self.number)],), name="comfy-double", daemon=True
        )
        self._thread.start()
        wait_until(lambda: self._server is not None and self._server.started)

    def down(self) -> None:
        """Stop immediately and cut every connection."""
        if self._server is not None and self._thread is not None:
            self._server.die()
            self._thread.join()
        self._server = None


async def read_request(scope: Scope, receive: Receive) -> Request:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return Request(scope["method"], scope["path"], query, headers, body)


async def respond(send: Send, answer: Response) -> None:
    size = str(len(answer.body) + (1 if answer.cut else 0))
    headers = [(name.encode(), value.encode()) for name, value in (*answer.headers, ("content-length", size))]
    await send({"type": "http.response.start", "status": HTTPStatus(answer.status), "headers": headers})
    await send({"type": "http.response.body", "body": b"" if answer.cut else answer.body, "more_body": answer.cut})


async def wait_for_event(gate: threading.Event, seconds: float) -> None:
    """Wait until a test sets the event."""
    await asyncio.to_thread(gate.wait, seconds)
