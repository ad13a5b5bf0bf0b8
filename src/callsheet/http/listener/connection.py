"""One HTTP connection: uvicorn's protocol, with limits against slow and malicious clients.

- Request line and headers have a deadline, a maximum size and a maximum number, and the URL has a maximum length.
- Headers that must be unique are refused if they are repeated: a proxy in front of the server might use the other one.
- Host is required, and must name this server.
- If a handler does not read a body, the rest of it is discarded, within limits, so that the connection can be reused.
- Trailers after a chunked body are ignored, and the size of the chunk framing is limited.
- A client that still sends its body when it gets an error can read the response before the connection is closed.
- The number of pipelined requests is limited. All of them are notified when the client disconnects.
- Over the limit of connections, clients get 503 instead of waiting in the backlog, and health checks are still served.
- An address with too many connections gets 429 for further ones.
- A client that does not read its response for too long is disconnected.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from callsheet.http.early_refusals import EarlyRefusals
from callsheet.http.listener.connection_limits import Admission
from callsheet.http.listener.listener_context import ListenerContext
from callsheet.http.listener.whole_request import find_whole_request
from callsheet.http.server.problems import CONTENT_TYPE, Problem, new_request_id, unavailable
from callsheet.http.server.security_headers import SECURITY_HEADERS

_PIPELINE_MAX = 64
_DRAIN_SECONDS = 2.0
_REFUSED_SECONDS = 1.0
"""How long a refused connection stays open, so that its client can read the response."""
_DRAIN_BYTES_MAX = 32 * 1024 * 1024
_METHODS_WITHOUT_BODY: Final = frozenset({"GET", "HEAD"})
_CHUNKED: Final = b"chunked"
_SINGLE_HEADERS: Final = (
    b"authorization", b"callsheet-tenant", b"content-encoding", b"content-type", b"host", b"idempotency-key",
    b"last-event-id", b"transfer-encoding",
)  # fmt: skip
_TOO_MANY_CONNECTIONS = unavailable("This server has reached its limit of connections")
_HOST_MISSING = Problem(400, "invalid_request", "The request has no Host header. Send the host and port of the URL.")
_REFUSED_CYCLE = SimpleNamespace(response_complete=True, message_event=asyncio.Event())
"""Takes the place of a request that was refused before it started: its body is discarded."""
_INVALID_HTTP = Problem(400, "invalid_request", "The request is not valid HTTP/1.1. Send one that follows RFC 9112.")


class Connection(HttpToolsProtocol):
    """Reads requests from one socket, and closes it if the client exceeds a limit."""

    def __init__(self, context: ListenerContext, **protocol_options: Any) -> None:
        super().__init__(**protocol_options)
        self._context = context
        self._settings = context.settings
        self._active_cycle: RequestResponseCycle | None = None
        self._early_refusals: EarlyRefusals | None = getattr(self.config.app, "early_refusals", None)
        self._in_head = True
        """The parser is between two requests, or within the request line and headers."""
        self._read_size = 0
        self._partial_bytes = 0
        """Bytes of earlier reads that completed nothing: of an unfinished head, or of chunk framing."""
        self._progress = 0
        """Counts what the parser has completed: a head, a part of a body, a request."""
        self._unread = 0
        """Bytes of the body that arrived after the response."""
        self._refusal = _INVALID_HTTP
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # -- the socket

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        admission = self._context.add_connection(self, transport)
        if admission is Admission.SERVE:
            self._set_timer(self._settings.header_timeout_seconds, transport.close)
        elif admission is Admission.REFUSE_ADDRESS:
            transport.write(_render_problem(self._too_many_from_address()))
            self._stop_reading_requests(_REFUSED_SECONDS)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._draining:
            self._discard(len(data))
            return
        early_refusals = self._early_refusals
        if early_refusals is None or not early_refusals.are_likely or not self._is_taken_over(early_refusals, data):
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        before, self._read_size = self._progress, len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._partial_bytes = self._partial_bytes + len(data) if self._progress == before else 0
        if self._partial_bytes > self._settings.header_bytes_max:
            self._refusal = self._too_large()
            self.send_400_response("")
        elif self._in_head and self._timer is None and self._is_idle():
            self._set_timer(self._settings.header_timeout_seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._context.limits.remove(self)
        self._unset_keepalive_if_required()
        self._clear_timer()
        self.resume_writing()
        self.pipeline.clear()
        running = self._active_cycle
        if running is not None and not running.response_complete:  # uvicorn notifies only the newest request
            running.disconnected = True
            running.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._start_stall_timer(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def shutdown(self) -> None:
        if self._active_cycle is not None:
            self._active_cycle.keep_alive = False
        super().shutdown()

    # -- the parser

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        limit = self._settings.url_bytes_max
        if len(self.url) > limit:
            self._refuse(Problem(414, "target_too_long", f"The URL is longer than {limit} bytes. Send a shorter one."))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # ignore trailers: the request was authenticated without them
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        limit = self._settings.header_bytes_max
        if self._partial_bytes + self._read_size > limit and _size(self.url, self.headers) > limit:
            self._refuse(self._too_large())
        if len(self.headers) > self._settings.headers_max:
            self._refuse(self._too_many_headers())
        by_name = dict(self.headers)
        if len(by_name) != len(self.headers) and (duplicate := _find_duplicate(self.headers)):
            self._refuse(Problem(400, "invalid_request", f"The header {duplicate.decode()} is repeated. Send it once."))
        if len(self.pipeline) >= _PIPELINE_MAX:
            self._refuse(_INVALID_HTTP)
        version = self.parser.get_http_version()
        self._check_framing(by_name.get(b"transfer-encoding"), version)
        self._check_host(by_name.get(b"host"), version)
        was_idle = self._is_idle()
        within_limit = not was_idle or self._is_within_limit()
        self._in_head = False
        self._progress += 1
        self._partial_bytes = self._unread = 0
        self._clear_timer()
        if was_idle and self._early_refusals is not None and self._is_refused_early(self._early_refusals):
            return
        super().on_headers_complete()
        if was_idle:
            self._active_cycle = self.cycle
        if self.parser.should_upgrade() or not within_limit:
            # Upgrades are not supported, and the bytes that follow may not be HTTP.
            self.cycle.keep_alive = False
        if self.scope["method"] not in _METHODS_WITHOUT_BODY:
            self.cycle.transport = DrainingTransport(self)  # type: ignore[assignment]

    def _is_refused_early(self, early_refusals: EarlyRefusals) -> bool:
        """Respond to a request that the app does not admit, without starting a task for it."""
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        method = self.parser.get_method().decode("ascii")
        response = early_refusals.refuse(cast("dict[str, Any]", self.scope), method, self.url, keep_alive=keep_alive)
        if response is None:
            return False
        self.cycle = self._active_cycle = cast("RequestResponseCycle", _REFUSED_CYCLE)
        self.transport.write(response)
        if keep_alive:
            self.on_response_complete()
        else:
            self.drain()
        return True

    def _is_taken_over(self, early_refusals: EarlyRefusals, data: bytes) -> bool:
        """Return whether a whole request was refused unparsed, or the decision about it was deferred."""
        if not self._in_head or self._partial_bytes or not self._is_idle():
            return False
        request = find_whole_request(data)
        handle = partial(self._parse, data)
        return request is not None and early_refusals.refuse_or_defer(request, self.server, self.transport, handle)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._progress += 1
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > self._settings.body_bytes_max:
                self.transport.close()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._progress += 1
        self._clear_timer()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the response has its own message
        if self._is_idle():
            self.transport.write(_render_problem(self._refusal))
        elif self._active_cycle is self.cycle and not self.cycle.response_started:
            self.cycle.disconnected = True  # its body is invalid: stop the handler and respond here
            self.cycle.message_event.set()
            self.transport.write(_render_problem(self._refusal))
        self.transport.close()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._context.limits.mark_idle(self)
        if self._draining:
            return
        if self.pipeline:
            self._active_cycle = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing() or not self._is_idle():
            return
        if self._in_head:
            if self._partial_bytes:
                self._set_timer(self._settings.header_timeout_seconds, self.transport.close)
        elif self.expect_100_continue:  # the client may or may not send the body
            self.transport.close()
        else:
            self._set_timer(self._settings.body_timeout_seconds, self.transport.close)

    # -- closing and timers

    def drain(self) -> None:
        """Close the connection. If the client still sends a body, give it time to read the response first."""
        if self._in_head or self.transport.is_closing():
            self.transport.close()
        else:
            self._stop_reading_requests(_DRAIN_SECONDS)

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    @property
    def is_draining(self) -> bool:
        return self._draining or self.transport.is_closing()

    def _stop_reading_requests(self, seconds: float) -> None:
        """End the response and discard what the client still sends, for a time."""
        self._draining = True
        self._unread = 0
        self.flow.resume_reading()
        self.transport.write_eof()
        self._set_timer(seconds, self.transport.close)

    def _discard(self, size: int) -> None:
        self._unread += size
        if self._unread > _DRAIN_BYTES_MAX:
            self.transport.close()

    def _is_idle(self) -> bool:
        """Return whether no request waits for its response."""
        newest = cast("RequestResponseCycle | None", self.cycle)
        return newest is None or newest.response_complete

    def _refuse(self, problem: Problem) -> None:
        """Stop the parser. Uvicorn then calls `send_400_response`."""
        self._refusal = problem
        raise problem

    def _too_large(self) -> Problem:
        limit = self._settings.header_bytes_max
        message = f"Request line and headers have more than {limit} bytes. Send fewer or shorter headers."
        return Problem(431, "headers_too_large", message)

    def _too_many_headers(self) -> Problem:
        limit = self._settings.headers_max
        return Problem(431, "headers_too_large", f"The request has more than {limit} headers. Send fewer headers.")

    def _too_many_from_address(self) -> Problem:
        limit = self._context.limits.per_address_max
        message = f"Your IP address has {limit} open connections, the limit of this server. Close some, then retry."
        return Problem(429, "too_many_connections", message, {"retry-after": "1"})

    def _check_framing(self, transfer_encoding: bytes | None, version: str) -> None:
        """Refuse a request whose end a proxy may see elsewhere. HTTP/1.0 does not know transfer encodings."""
        if version not in {"1.0", "1.1"}:
            self._refuse(_INVALID_HTTP)
        if transfer_encoding is not None and (version == "1.0" or transfer_encoding.lower() != _CHUNKED):
            self._refuse(_INVALID_HTTP)

    def _check_host(self, host: bytes | None, version: str) -> None:
        """Refuse a request to another host. Only HTTP/1.0, which no browser sends, may leave out the header."""
        if host is None:
            if version != "1.0":
                self._refuse(_HOST_MISSING)
            return
        own_address = self.server[0] if self.server else ""
        for name in (host, _authority(self.url) or host):
            problem = self._context.hosts.problem_of(name, own_address)
            if problem is not None:
                self._refuse(problem)

    def _is_within_limit(self) -> bool:
        """Record that a request has arrived. Beyond the limit of connections, refuse it unless it is a health check."""
        self._context.limits.mark_busy(self)
        if self._context.limits.make_space():
            return True
        if self.url.partition(b"?")[0] not in self._context.health_paths:
            self._refuse(_TOO_MANY_CONNECTIONS)
        return False

    def _start_stall_timer(self, buffered: int) -> None:
        """Check later whether the client has read anything; if not, disconnect it."""
        self._stall_timer = self.loop.call_later(self._settings.send_timeout_seconds, self._check_stall, buffered)

    def _check_stall(self, before: int) -> None:
        buffered = self.transport.get_write_buffer_size()
        if buffered >= before:
            self.transport.abort()
        else:
            self._start_stall_timer(buffered)

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        self._clear_timer()
        self._timer = self.loop.call_later(seconds, callback)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class DrainingTransport:
    """The transport of requests with a body. Closing it drains the connection first."""

    __slots__ = ("_connection", "write")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.write = connection.transport.write

    def is_closing(self) -> bool:
        return self._connection.is_draining

    def close(self) -> None:
        self._connection.drain()


def _size(target: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(target) + sum(len(name) + len(value) + len(": \r\n") for name, value in headers)


def _authority(target: bytes) -> bytes:
    """Return the host and port in a target such as `http://host/path`; empty for a path."""
    return b"" if target.startswith(b"/") else target.partition(b"://")[2].partition(b"/")[0]


def _find_duplicate(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    names = [name for name, _ in headers]
    return next((name for name in _SINGLE_HEADERS if names.count(name) > 1), None)


def _render_problem(problem: Problem) -> bytes:
    request_id = new_request_id()
    body = msgspec.json.encode(problem.body(request_id))
    headers = {
        "content-type": CONTENT_TYPE, "content-length": len(body), "x-request-id": request_id, **problem.headers,
        "connection": "close",
    }  # fmt: skip
    lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"]
    lines += [f"{header}: {value}" for header, value in headers.items()]
    lines += [f"{header.decode()}: {value.decode()}" for header, value in SECURITY_HEADERS]
    return "\r\n".join([*lines, "", ""]).encode() + body
