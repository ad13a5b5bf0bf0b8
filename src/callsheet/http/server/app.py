"""The ASGI application: match, ask who, parse, handle, render. Every answer has a request id and safe headers."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from callsheet.http.auth.authenticator import Caller
from callsheet.http.routes.table import ROUTES
from callsheet.http.server.cors import Cors
from callsheet.http.server.exception_map import problem_from
from callsheet.http.server.problems import CONTENT_TYPE, Problem, new_request_id
from callsheet.http.server.request import SECURITY_HEADERS, ClientDisconnected, Receive, Request, Scope, Send
from callsheet.http.server.router import PUBLIC, ROLES, CompiledRoute, Response, Router, StreamingResponse
from callsheet.http.state import AppState

_encode = msgspec.json.Encoder().encode
_STATUSES_WITHOUT_BODY = frozenset({204, 304})
_REQUEST_ID_CHARS_MAX = 128
_SAFE_METHODS = frozenset({"GET", "HEAD"})


class App:
    """Answers requests for one house."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._router = Router(ROUTES)
        self._cors = Cors(state.settings.cors_origins)

    def end_streams(self) -> None:
        """Let every stream and long poll end: the server stops."""
        self._state.broadcaster.end()
        self._state.fleet.waiting_claims.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        start = time.perf_counter()
        settings = self._state.settings
        request = Request(scope, receive, settings.body_bytes_max, settings.body_timeout_seconds)
        request.id = _request_id(request)
        request.extra_headers = self._cors.headers(request)
        compiled: CompiledRoute | None = None
        try:
            answer: Response | StreamingResponse | None = self._cors.preflight(request)
            if answer is None:
                compiled = self._router.find(scope["method"], scope["raw_path"].decode("latin-1"), request.params)
                answer = await self._handle(compiled, request)
            if isinstance(answer, StreamingResponse):
                status = await self._send_stream(answer, request, send)
            else:
                status = answer.status
                await _send(send, request, answer)
        except ClientDisconnected:
            status = 499
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and no details
            failed = self._error_response(error, request)
            status = failed.status
            await _send(send, request, failed)
        self._state.metrics.record_request(compiled.route if compiled else None, status, time.perf_counter() - start)

    async def _handle(self, compiled: CompiledRoute, request: Request) -> Response | StreamingResponse:
        route = compiled.route
        if route.roles is not PUBLIC:
            authenticate = (
                self._authenticate_limited if route.limit_failed_auth else self._state.authenticator.authenticate
            )
            caller = request.caller = await authenticate(request, in_query=route.token_in_query)
            if caller.role not in route.roles:
                needed = " or ".join(role for role in ROLES if role in route.roles)
                raise Problem(403, "forbidden", f"A key of the role {caller.role} may not do this; it takes {needed}.")
            if caller.suspended and request.method not in _SAFE_METHODS:
                raise Problem(403, "tenant_suspended", "This tenant is suspended: it may look, and change nothing.")
        if compiled.decoder is not None:
            extra = getattr(self._state.engine.settings.limits, route.extra_body_limit) if route.extra_body_limit else 0
            request.body_max = getattr(self._state.settings, route.body_max) + extra
            request.content = await request.body(compiled.decoder, required=compiled.needs_body)
        return await route.handler(self._state, request)

    async def _authenticate_limited(self, request: Request, *, in_query: bool) -> Caller:
        """Ask who it is, and count wrong keys."""
        try:
            return await self._state.authenticator.authenticate(request, in_query=in_query)
        except Problem as refused:
            self._state.failed_auth_limiter.record_failure(request.client_address, refused)
            raise

    async def _send_stream(self, answer: StreamingResponse, request: Request, send: Send) -> int:
        try:
            await answer.send(send)
        except ClientDisconnected:
            raise
        except Exception as error:  # noqa: BLE001 - it has begun: all that is left is to break off
            self._state.report_error(request.id, error)
            return 500
        return answer.status

    def _error_response(self, error: Exception, request: Request) -> Response:
        problem = problem_from(self._state, request.id, error)
        headers = tuple(problem.headers.items())
        return Response(problem.body(request.id), problem.status, headers, CONTENT_TYPE)


async def _send(send: Send, request: Request, answer: Response) -> None:
    body = answer.body if isinstance(answer.body, bytes) else b"" if answer.body is None else _encode(answer.body)
    headers = [*SECURITY_HEADERS, *request.extra_headers, (b"x-request-id", request.id.encode())]
    if answer.status not in _STATUSES_WITHOUT_BODY:
        headers.append((b"content-length", b"%d" % len(body)))
    if answer.body is not None:
        headers.append((b"content-type", answer.media_type.encode()))
    headers.extend((name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})


def _request_id(request: Request) -> str:
    given = request.header(b"x-request-id")
    if given and len(given) <= _REQUEST_ID_CHARS_MAX and given.isascii() and given.isprintable() and " " not in given:
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
