"""The ASGI application: APIs mounted on one router. Match, authenticate, read the body, handle, render.

Every response has a request id and the security headers. Every error is rendered by the API of its path.
"""

import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from callsheet.core.model.errors import Overloaded
from callsheet.http.auth.authenticator import Caller
from callsheet.http.early_refusals import ADMITTED, EarlyRefusals
from callsheet.http.server.body.decoder import BodyReader
from callsheet.http.server.exception_map import problem_from
from callsheet.http.server.mounted_api import Api, render_problem
from callsheet.http.server.path_tree import CompiledRoute, PathTree
from callsheet.http.server.problems import Problem, request_id_of
from callsheet.http.server.request import ClientDisconnected, Receive, Request, Scope, Send
from callsheet.http.server.route import PUBLIC, ROLES, Response, Route, StreamingResponse
from callsheet.http.state import AppState

_encode = msgspec.json.Encoder().encode
_STATUSES_WITHOUT_BODY = frozenset({204, 304})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_CLIENT_CLOSED_REQUEST = 499


class App:
    """Serves several APIs with one state: under their prefixes, or at the root of a port of their own."""

    def __init__(self, state: AppState, apis: Sequence[Api]) -> None:
        self._state = state
        self._main = PathTree(api for api in apis if api.on_main_port)
        self._by_port: dict[int, PathTree] = {}
        self.early_refusals = EarlyRefusals(state.admission, state.metrics, self._tree_of)

    def serve_at_root(self, api: Api, port: int) -> None:
        """Serve an API without its prefix to clients that connect to this port."""
        self._by_port[port] = PathTree([api], at_root=True)

    def end_streams(self) -> None:
        """End all streams and long polls, because the server is shutting down."""
        self._state.broadcaster.end()
        self._state.fleet.waiting_claims.end()

    def _tree_of(self, scope: Scope) -> PathTree:
        return self._by_port.get(scope["server"][1], self._main) if self._by_port else self._main

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        start = time.perf_counter()
        settings = self._state.settings
        tree = self._tree_of(scope)
        request = Request(scope, receive, settings.body_bytes_max, settings.body_timeout_seconds)
        request.id = request_id_of(request.header(b"x-request-id"))
        try:
            response = _preflight(tree, request) if scope["method"] == "OPTIONS" else None
            if response is None:
                response = await self._handle(tree, request)
            if isinstance(response, StreamingResponse):
                status = await self._send_stream(response, request, send)
            else:
                status = response.status
                await _send(send, request, response)
        except ClientDisconnected:
            status = _CLIENT_CLOSED_REQUEST
        except Exception as error:  # noqa: BLE001 - every error gets a response, without internal details
            error_response = self._error_response(tree, error, request)
            status = error_response.status
            await _send(send, request, error_response)
        finally:
            if request.form is not None:
                request.form.close()
        self._state.metrics.record_request(request.route, status, time.perf_counter() - start)

    async def _handle(self, tree: PathTree, request: Request) -> Response | StreamingResponse:
        scope = request.scope
        compiled = tree.find(scope["method"], scope["raw_path"].decode("latin-1"), request.params)
        route, api = compiled.route, compiled.api
        request.route, request.api = route, api
        request.extra_headers = api.cors.headers(request)
        admitted = scope.get(ADMITTED)
        if not (self._state.admission.admits(compiled.work_class) if admitted is None else admitted):
            raise Overloaded
        in_progress = request.in_progress = self._state.admission.in_progress
        request.work_class = compiled.work_class
        try:
            return await self._handle_admitted(compiled, request)
        finally:
            in_progress[compiled.work_class] -= 1

    async def _handle_admitted(self, compiled: CompiledRoute, request: Request) -> Response | StreamingResponse:
        route, api = compiled.route, compiled.api
        if route.roles is not PUBLIC:
            request.caller = await self._authenticate(api, route, request)
        if compiled.body is not None:
            with request.not_in_progress():
                await self._read_body(compiled.body, route, request)
        return await route.handler(self._state, request)

    async def _authenticate(self, api: Api, route: Route, request: Request) -> Caller:
        """Return the caller if its role may call the route. Only here are failed authentications counted."""
        try:
            caller: Caller = await api.authenticate(self._state, request)
        except Problem as refused:
            if refused.status == HTTPStatus.UNAUTHORIZED and refused.code != "missing_key":
                self._state.failed_auth_limiter.record_failure(request.client_address, refused)
            raise
        if caller.role not in route.roles:
            allowed = " or ".join(role for role in ROLES if role in route.roles)
            raise Problem(
                403, "forbidden", f"The role {caller.role} may not call this route. Use a key with the role {allowed}."
            )
        if caller.suspended and request.method not in _SAFE_METHODS:
            raise Problem(
                403, "tenant_suspended", "This tenant is suspended and can only read. An operator can activate it."
            )
        return caller

    async def _read_body(self, body: BodyReader, route: Route, request: Request) -> None:
        state = self._state
        extra = getattr(state.engine.settings.limits, route.extra_body_limit) if route.extra_body_limit else 0
        request.body_max = getattr(state.settings, route.body_max) + extra
        request.content = await body.read(request, state.settings)

    async def _send_stream(self, response: StreamingResponse, request: Request, send: Send) -> int:
        try:
            await response.send(send)
        except ClientDisconnected:
            raise
        except Exception as error:  # noqa: BLE001 - the status is sent already: close the connection
            self._state.report_error(request.id, error)
            return 500
        return response.status

    def _error_response(self, tree: PathTree, error: Exception, request: Request) -> Response:
        """Render an error as the API of the request's path does."""
        problem = problem_from(self._state, request.id, error)
        api = request.api
        if api is None:
            api = tree.api_at(request.scope["raw_path"].decode("latin-1"))
            request.extra_headers = api.cors.headers(request)
        try:
            response: Response = api.render_error(problem, request)
        except Exception as render_error:  # noqa: BLE001 - the renderer may belong to a plugin
            self._state.report_error(request.id, render_error)
            return render_problem(problem, request)
        return response


def _preflight(tree: PathTree, request: Request) -> Response | StreamingResponse | None:
    api = tree.api_at(request.scope["raw_path"].decode("latin-1"))
    response = api.cors.preflight(request)
    if response is not None:
        request.extra_headers = api.cors.headers(request)
    return response


async def _send(send: Send, request: Request, response: Response) -> None:
    content = response.body
    body = content if isinstance(content, bytes) else b"" if content is None else _encode(content)
    headers = request.response_headers()
    if response.status not in _STATUSES_WITHOUT_BODY:
        headers.append((b"content-length", b"%d" % len(body)))
    if content is not None:
        headers.append((b"content-type", response.media_type.encode()))
    headers.extend((name.encode(), value.encode("latin-1", "replace")) for name, value in response.headers)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message: Mapping[str, Any] = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
