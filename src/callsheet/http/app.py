"""The ASGI application: match, ask who, parse, handle, render. Every answer has a request id and safe headers."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from callsheet.http.auth import Who
from callsheet.http.cors import Cors
from callsheet.http.faults import problem_from
from callsheet.http.house import House
from callsheet.http.problem import CONTENT_TYPE, Problem, new_request_id
from callsheet.http.request import SAFE, Gone, Receive, Request, Scope, Send
from callsheet.http.route import ANYBODY, ROLES, Answer, Known, Router, Streaming
from callsheet.http.routes import ROUTES

_encode = msgspec.json.Encoder().encode
_BODILESS = frozenset({204, 304})
_CHARS_MAX = 128
_LOOKING = frozenset({"GET", "HEAD"})


class App:
    """Answers requests for one house."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._router = Router(ROUTES)
        self._cors = Cors(house.settings.cors_origins)

    def end_streams(self) -> None:
        """Let every stream and long poll end: the server stops."""
        self._house.hub.end()
        self._house.fleet.room.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        start = time.perf_counter()
        settings = self._house.settings
        request = Request(scope, receive, settings.body_bytes_max, settings.body_seconds)
        request.id = _request_id(request)
        request.extra = self._cors.headers(request)
        known: Known | None = None
        try:
            answer: Answer | Streaming | None = self._cors.preflight(request)
            if answer is None:
                known = self._router.find(scope["method"], scope["raw_path"].decode("latin-1"), request.params)
                answer = await self._handled(known, request)
            if isinstance(answer, Streaming):
                status = await self._streamed(answer, request, send)
            else:
                status = answer.status
                await _send(send, request, answer)
        except Gone:
            status = 499
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and no details
            failed = self._failed(error, request)
            status = failed.status
            await _send(send, request, failed)
        self._house.metrics.request(known.route if known else None, status, time.perf_counter() - start)

    async def _handled(self, known: Known, request: Request) -> Answer | Streaming:
        route = known.route
        if route.who is not ANYBODY:
            knows = self._guarded if route.guarded else self._house.keys.who
            who = request.who = await knows(request, in_query=route.token_in_query)
            if who.role not in route.who:
                needed = " or ".join(role for role in ROLES if role in route.who)
                raise Problem(403, "forbidden", f"A key of the role {who.role} may not do this; it takes {needed}.")
            if who.suspended and request.method not in _LOOKING:
                raise Problem(403, "tenant_suspended", "This tenant is suspended: it may look, and change nothing.")
        if known.decoder is not None:
            carried = getattr(self._house.engine.settings.limits, route.carries) if route.carries else 0
            request.body_max = getattr(self._house.settings, route.body_max) + carried
            request.content = await request.body(known.decoder, required=known.needs_body)
        return await route.handler(self._house, request)

    async def _guarded(self, request: Request, *, in_query: bool) -> Who:
        """Ask who it is, and count wrong keys."""
        try:
            return await self._house.keys.who(request, in_query=in_query)
        except Problem as refused:
            self._house.strikes.count(request.address, refused)
            raise

    async def _streamed(self, answer: Streaming, request: Request, send: Send) -> int:
        try:
            await answer.send(send)
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 - it has begun: all that is left is to break off
            self._house.fault(request.id, error)
            return 500
        return answer.status

    def _failed(self, error: Exception, request: Request) -> Answer:
        problem = problem_from(self._house, request.id, error)
        headers = tuple(problem.headers.items())
        return Answer(problem.body(request.id), problem.status, headers, CONTENT_TYPE)


async def _send(send: Send, request: Request, answer: Answer) -> None:
    body = answer.body if isinstance(answer.body, bytes) else b"" if answer.body is None else _encode(answer.body)
    headers = [*SAFE, *request.extra, (b"x-request-id", request.id.encode())]
    if answer.status not in _BODILESS:
        headers.append((b"content-length", b"%d" % len(body)))
    if answer.body is not None:
        headers.append((b"content-type", answer.media_type.encode()))
    headers.extend((name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})


def _request_id(request: Request) -> str:
    given = request.header(b"x-request-id")
    if given and len(given) <= _CHARS_MAX and given.isascii() and given.isprintable() and " " not in given:
        return given
    return new_request_id()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message: Mapping[str, Any] = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
