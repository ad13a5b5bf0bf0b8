"""The base of doubles that are HTTP servers: a server on a free port, in a thread of this process."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class HttpDouble:
    """Serves a request handler between `__enter__` and `__exit__`."""

    def __init__(
        self, handler: type[BaseHTTPRequestHandler], server_type: type[ThreadingHTTPServer] = ThreadingHTTPServer
    ) -> None:
        self._server = server_type(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        name = type(self).__name__
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
