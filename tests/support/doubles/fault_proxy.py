"""A proxy in front of a server that injects faults: lost answers and error statuses."""

import socket
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx

from tests.support.doubles.http_double import HttpDouble

_HOP = {"connection", "transfer-encoding", "keep-alive", "host"}


class CallFault(NamedTuple):
    """A fault of one call: its answer is lost after the effect, or the proxy answers without passing the call on."""

    lost: bool = False
    status: int = 503
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


LOST_ANSWER, UNAVAILABLE = CallFault(lost=True), CallFault()


class ProxiedCall(NamedTuple):
    """A call that the proxy received."""

    method: str
    path: str
    headers: dict[str, str]
    at: float


class FaultProxy(HttpDouble):
    """The proxy; `faults["claim"]` holds the faults of the next calls whose path contains that word."""

    def __init__(self, url: str) -> None:
        self.passed: list[ProxiedCall] = []
        self.order: list[tuple[str, str]] = []
        """Requests and answers in order: `received` or `answered`, and the path."""
        self.faults: dict[str, deque[CallFault]] = defaultdict(deque)
        # The proxy does not retry: a call that the server loses is lost.
        self._http = httpx.Client(base_url=url, timeout=60, verify=False)
        super().__init__(self._handler())

    def close(self) -> None:
        super().close()
        self._http.close()

    def calls(self, word: str) -> list[ProxiedCall]:
        """Return the calls so far whose path contains a word."""
        return [call for call in list(self.passed) if word in call.path]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                proxy.order.append(("received", self.path))
                proxy.passed.append(ProxiedCall(self.command, self.path, headers, time.monotonic()))
                fault = next(
                    (queue.popleft() for word, queue in proxy.faults.items() if queue and word in self.path), None
                )
                if fault is not None and not fault.lost:
                    self.send(fault.status, dict(fault.headers), fault.body)
                    return
                kept = {name: value for name, value in headers.items() if name not in _HOP}
                response = proxy.forward(self.command, self.path, kept, body)
                proxy.order.append(("answered", self.path))
                if fault is not None or response is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send(response.status_code, dict(response.headers), response.content)

            do_GET = do_POST = do_PUT = do_HEAD = answer  # noqa: N815 - names of the base class

            def send(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in _HOP | {"content-length"}:
                        self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Log nothing: a test looks at `passed`."""

        return Handler

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> httpx.Response | None:
        """Pass a call on to the server; return None if it does not answer."""
        try:
            return self._http.request(method, path, headers=headers, content=body)
        except (httpx.TransportError, RuntimeError):
            return None
