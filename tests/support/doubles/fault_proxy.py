"""A way to a server on which things go wrong as a test says: answers are lost, doors closed, calls led elsewhere."""

import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

import httpx

_HOP = {"connection", "transfer-encoding", "keep-alive", "host"}


class CallFault(NamedTuple):
    """What goes wrong with a call: its answer is lost though it was done, or it is answered so and never done."""

    lost: bool = False
    status: int = 503
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


LOST_ANSWER, UNAVAILABLE = CallFault(lost=True), CallFault()


class ProxiedCall(NamedTuple):
    """A call that came by."""

    method: str
    path: str
    headers: dict[str, str]
    at: float


class FaultProxy:
    """Stands before a server; `wrong["claim"]` holds what happens to the next calls whose path has that word."""

    def __init__(self, url: str) -> None:
        self.passed: list[ProxiedCall] = []
        self.order: list[tuple[str, str]] = []
        """What happened first: `asked` or `answered`, and the path."""
        self.wrong: dict[str, deque[CallFault]] = defaultdict(deque)
        # No retries of its own: what is lost behind it is lost.
        self._http = httpx.Client(base_url=url, timeout=60, verify=False)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._http.close()

    def calls(self, word: str) -> list[ProxiedCall]:
        """The calls so far whose path has a word."""
        return [call for call in list(self.passed) if word in call.path]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                proxy.order.append(("asked", self.path))
                proxy.passed.append(ProxiedCall(self.command, self.path, headers, time.monotonic()))
                wrong = next(
                    (queue.popleft() for word, queue in proxy.wrong.items() if queue and word in self.path), None
                )
                if wrong is not None and not wrong.lost:
                    self.say(wrong.status, dict(wrong.headers), wrong.body)
                    return
                kept = {name: value for name, value in headers.items() if name not in _HOP}
                got = proxy.ask(self.command, self.path, kept, body)
                proxy.order.append(("answered", self.path))
                if wrong is not None or got is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.say(got.status_code, dict(got.headers), got.content)

            do_GET = do_POST = do_PUT = do_HEAD = answer  # noqa: N815 - names of the base class

            def say(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in _HOP | {"content-length"}:
                        self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Say nothing: a test looks at `passed`."""

        return Handler

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> httpx.Response | None:
        """Pass a call on; without an answer from behind there is none in front."""
        try:
            return self._http.request(method, path, headers=headers, content=body)
        except (httpx.TransportError, RuntimeError):
            return None
