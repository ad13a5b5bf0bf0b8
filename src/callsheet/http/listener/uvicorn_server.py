"""The HTTP server: uvicorn on httptools and uvloop, on one or several ports, with limits per client."""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn

from callsheet.config import HttpSettings
from callsheet.http.listener.connection import RESERVED_FILES, Connection

_BACKLOG = 2_048
_OPEN_FILES_MAX = 65_536
"""More connections than one process can serve."""
_PORT_MAX = 65_535
_FILE_THREADS = 32
"""Threads that read and write files, or wait for object storage."""
_BIND_ERRORS = {
    errno.EADDRINUSE: "{where} is in use by another program: choose another port.",
    errno.EACCES: "{where} needs more rights than this user has: choose a port above 1023.",
    errno.EADDRNOTAVAIL: "{host} is not an address of this machine.",
}


class Server(uvicorn.Server):
    """Serves one app on bound sockets; all ports share limits, metrics and shutdown. Streams end when it stops."""

    def __init__(
        self, app: Any, bound: socket.socket, settings: HttpSettings, ready: Callable[[], None],
        more: Sequence[socket.socket] = (),
    ) -> None:  # fmt: skip
        connection: Any = partial(Connection, settings, max(raise_file_limit() - RESERVED_FILES, 1))
        super().__init__(
            uvicorn.Config(
                app, http=connection, ws="none", lifespan="off", server_header=False, date_header=False,
                proxy_headers=False,
                # The app reports its own errors, and clients get a response to theirs: uvicorn logs nothing.
                log_config=None, log_level=logging.CRITICAL, access_log=False,
                timeout_keep_alive=settings.idle_timeout_seconds,
                timeout_graceful_shutdown=settings.shutdown_timeout_seconds,
                backlog=_BACKLOG,
            )
        )  # fmt: skip
        self._sockets = [bound, *more]
        self._ready = ready
        self._file_threads = ThreadPoolExecutor(_FILE_THREADS, "callsheet-files")
        self._end_streams: Callable[[], None] | None = getattr(app, "end_streams", None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_default_executor(self._file_threads)
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._end_streams is not None:
            self._end_streams()
        await super().shutdown(sockets)
        for connection in self.server_state.connections:  # a client that does not read would keep the loop open
            connection.transport.abort()
        self._file_threads.shutdown(wait=False, cancel_futures=True)
        # A closing loop waits for its threads, and one may wait for storage for minutes: give it an idle executor.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    def serve_on_socket(self) -> None:
        """Serve on the bound sockets until `should_exit` is set."""
        self.run(sockets=self._sockets)


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit and return it: each connection is one file.

    Shells and services start with 1,024, which a few streams use up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):  # the system may refuse its own hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket and listen; port 0 takes a free one.

    The `strerror` of an OSError is a sentence for the operator.
    """
    if not 0 <= port <= _PORT_MAX:
        raise OSError(errno.EINVAL, f"{port} is not a port: choose one from 0 to {_PORT_MAX}.")
    name = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # an unknown name, or an address family that is not available
        raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of this machine.") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)  # two processes may bind, but only one can listen
    except OSError as error:
        bound.close()
        why = _BIND_ERRORS.get(error.errno or 0, "{where} cannot be used: {error}.")
        where = f"Port {port} on {host}"
        raise OSError(error.errno, why.format(where=where, host=host, error=error.strerror)) from None
    bound.set_inheritable(True)
    return bound
