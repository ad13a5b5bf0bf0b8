"""Refusals of requests before the app starts a task for them, as bytes that are prepared as far as possible."""

import asyncio
from collections.abc import Callable, MutableMapping
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec

from callsheet.core.model.errors import Overloaded
from callsheet.http.admission import RequestAdmission
from callsheet.http.listener.whole_request import WholeRequest
from callsheet.http.metrics import Metrics
from callsheet.http.server.mounted_api import render_problem
from callsheet.http.server.path_tree import CompiledRoute, PathTree
from callsheet.http.server.problems import CONTENT_TYPE, Problem, problem_of, request_id_of
from callsheet.http.server.request import Scope
from callsheet.http.server.security_headers import SECURITY_HEADERS

ADMITTED = "callsheet.admitted"
"""In the scope: whether the request was admitted when its headers arrived."""
Handle = Callable[[], None]
"""Handles the bytes of a request as usual."""
_ID_MARK = "request id"
_REQUEST_ID = b"x-request-id"


class EarlyRefusals:
    """Refuses requests of the native API for the server, which asks before it calls the app."""

    def __init__(
        self, admission: RequestAdmission, metrics: Metrics, path_tree_of: Callable[[Scope], PathTree]
    ) -> None:
        self._admission = admission
        self._metrics = metrics
        self._path_tree_of = path_tree_of
        self._response = _OverloadedResponse()

    @property
    def are_likely(self) -> bool:
        """Whether the server is refusing requests at the moment."""
        return self._admission.is_refusing

    def refuse_or_defer(self, request: WholeRequest, server: Any, transport: asyncio.Transport, handle: Handle) -> bool:
        """Return whether the request is refused or deferred, because such requests are refused at the moment.

        In a later turn of the event loop, it is refused, or passed to `handle` if it is admitted then. Nothing is read
        from the connection until then. `server` is as in a scope.
        """
        found = self._find({"server": server}, request.method, request.url)
        if found is None or not _is_native(found, request.method) or not self._admission.is_refused(found.work_class):
            return False
        if self._admission.should_defer:
            transport.pause_reading()
            self._admission.defer(partial(self._decide, request, found, transport, handle))
        elif self._admission.refuses(found.work_class):
            self._send(request, found, transport)
        return True

    def _decide(
        self, request: WholeRequest, found: CompiledRoute, transport: asyncio.Transport, handle: Handle
    ) -> None:
        if transport.is_closing():
            return
        if not self._admission.refuses(found.work_class):
            transport.resume_reading()
            handle()
            return
        self._send(request, found, transport)
        if request.keep_alive:
            self._admission.defer(partial(_resume_reading, transport))

    def _send(self, request: WholeRequest, found: CompiledRoute, transport: asyncio.Transport) -> None:
        transport.write(self._render(found, None, keep_alive=request.keep_alive))
        if not request.keep_alive:
            transport.close()

    def refuse_whole(self, request: WholeRequest, server: Any) -> bytes | None:
        """Return the response if the server refuses such requests at the moment. `server` is as in a scope."""
        found = self._find({"server": server}, request.method, request.url)
        if found is None or not _is_native(found, request.method):
            return None
        if not self._admission.refuses(found.work_class):
            self._admission.expect(found.work_class)
            return None
        return self._render(found, None, keep_alive=request.keep_alive)

    def refuse(self, scope: MutableMapping[str, Any], method: str, url: bytes, *, keep_alive: bool) -> bytes | None:
        """Return the response to a request that is not admitted, or None if the app has to handle it.

        The app renders the refusal itself if it depends on more than the route: for another error format, for CORS,
        and for HEAD.
        """
        found = self._find(scope, method, url)
        if found is None:
            return None
        scope[ADMITTED] = admitted = self._admission.admits(found.work_class)
        if admitted or not _is_native(found, method):
            return None
        headers = dict(scope["headers"])
        return None if b"origin" in headers else self._render(found, headers.get(_REQUEST_ID), keep_alive=keep_alive)

    def _find(self, scope: Scope, method: str, url: bytes) -> CompiledRoute | None:
        try:
            return self._path_tree_of(scope).find(method, url.partition(b"?")[0].decode("latin-1"), {})
        except Problem:
            return None

    def _render(self, found: CompiledRoute, sent_id: bytes | None, *, keep_alive: bool) -> bytes:
        self._metrics.record_request(found.route, HTTPStatus.SERVICE_UNAVAILABLE, 0.0)
        request_id = request_id_of(None if sent_id is None else sent_id.decode("latin-1"))
        return self._response.render(request_id, keep_alive=keep_alive)


def _resume_reading(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.resume_reading()


def _is_native(found: CompiledRoute, method: str) -> bool:
    """Return whether the response to a refused request is the prepared one."""
    return found.api.render_error is render_problem and method != "HEAD"


class _OverloadedResponse:
    """The response of the native API to a refused request, as bytes that are prepared as far as possible."""

    def __init__(self) -> None:
        problem = problem_of(Overloaded())
        headers = {**problem.headers, "content-type": CONTENT_TYPE}
        lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"{name.decode()}: {value.decode()}" for name, value in SECURITY_HEADERS]
        self._head = "\r\n".join(lines).encode()
        self._body, self._body_end = msgspec.json.encode(problem.body(_ID_MARK)).split(msgspec.json.encode(_ID_MARK))

    def render(self, request_id: str, *, keep_alive: bool) -> bytes:
        body = self._body + msgspec.json.encode(request_id) + self._body_end
        close = b"" if keep_alive else b"\r\nconnection: close"
        sent_id = request_id.encode()
        return b"%b\r\nx-request-id: %b\r\ncontent-length: %d%b\r\n\r\n%b" % (
            self._head, sent_id, len(body), close, body
        )  # fmt: skip
