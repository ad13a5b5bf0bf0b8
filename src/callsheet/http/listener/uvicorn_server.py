"""The HTTP server: uvicorn on httptools and uvloop, on one or several ports, with limits per client."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import uvicorn

from callsheet.http.listener.burst_accept import BurstAcceptor
from callsheet.http.listener.connection_limits import RESERVED_FILES, ConnectionLimits
from callsheet.http.listener.host_check import HostCheck
from callsheet.http.listener.listener_context import ListenerContext
from callsheet.http.listener.new_connection import open_connection
from callsheet.http.listener.process_setup import raise_file_limit
from callsheet.http.routes import health
from callsheet.settings import HttpSettings

_BACKLOG = 4_096
_PORT_MAX = 65_535
_FILE_THREADS = 32
"""Threads that read and write files, or wait for object storage."""
_BIND_ERRORS = {
    errno.EADDRINUSE: "{where} is in use by another program: choose another port.",
    errno.EACCES: "{where} requires more permissions than this user has: choose a port above 1023.",
    errno.EADDRNOTAVAIL: "{host} is not an address of this machine: use one such as 127.0.0.1 or 0.0.0.0.",
}


class Server(uvicorn.Server):
    """Serves one app on bound sockets. All ports share limits, metrics and shutdown, which ends open streams."""

    def __init__(
        self, app: Any, bound: socket.socket, settings: HttpSettings, ready: Callable[[], None],
        more: Sequence[socket.socket] = (), health_ports: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(
            uvicorn.Config(
                app, http=cast("Any", self._accept), ws="none", lifespan="off", server_header=False, date_header=False,
                proxy_headers=False,
                # The app reports its own errors, and clients get a response to theirs: uvicorn logs nothing.
                log_config=None, log_level=logging.CRITICAL, access_log=False,
                timeout_keep_alive=settings.idle_timeout_seconds,
                timeout_graceful_shutdown=settings.shutdown_timeout_seconds,
                backlog=_BACKLOG,
            )
        )  # fmt: skip
        self._sockets = [bound, *more]
        self._context = _context(bound, settings, health_ports)
        self._open_connection = partial(open_connection, self._context)
        self._burst_acceptor: BurstAcceptor | None = None
        self._ready = ready
        self._file_threads = ThreadPoolExecutor(_FILE_THREADS, "callsheet-files")
        self._end_streams: Callable[[], None] | None = getattr(app, "end_streams", None)

    def _accept(self, **protocol_options: Any) -> asyncio.Protocol:
        """Return the protocol of a connection that was accepted, and accept the others that wait."""
        if self._burst_acceptor is None:
            early_refusals = getattr(self.config.app, "early_refusals", None)
            make_protocol = partial(self._accept, **protocol_options)
            count_free = self._context.limits.count_free
            self._burst_acceptor = BurstAcceptor(self._sockets, make_protocol, early_refusals, count_free)
        self._burst_acceptor.schedule()
        return self._open_connection(**protocol_options)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_default_executor(self._file_threads)
        for listening in self._sockets:
            listening.settimeout(0)
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._end_streams is not None:
            self._end_streams()
        await super().shutdown(sockets)
        for connection in self.server_state.connections:  # a client that does not read would delay the exit
            connection.transport.abort()
        self._file_threads.shutdown(wait=False, cancel_futures=True)
        # A closing loop waits for its executor, and a thread may wait for storage for minutes: set an idle executor.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    def serve_on_socket(self) -> None:
        """Serve on the bound sockets until `should_exit` is set."""
        self.run(sockets=self._sockets)


def _context(bound: socket.socket, settings: HttpSettings, health_ports: Sequence[int]) -> ListenerContext:
    connections_max = max(raise_file_limit() - RESERVED_FILES, 1)
    return ListenerContext(
        settings,
        ConnectionLimits(connections_max, settings.connections_per_address_max, settings.proxy_addresses),
        HostCheck(bound.getsockname()[0], settings.allowed_hosts),
        frozenset(route.path.encode() for route in health.ROUTES),
        frozenset(health_ports),
    )


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket and listen; port 0 chooses a free port.

    The `strerror` of a raised OSError is a message for the operator.
    """
    if not 0 <= port <= _PORT_MAX:
        raise OSError(errno.EINVAL, f"{port} is not a port: choose one from 0 to {_PORT_MAX}.")
    name = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # an unknown name, or an address family that is not available
        raise OSError(errno.EADDRNOTAVAIL, _BIND_ERRORS[errno.EADDRNOTAVAIL].format(host=host)) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)  # two processes may bind, but only one can listen
    except OSError as error:
        bound.close()
        message = _BIND_ERRORS.get(error.errno or 0, "{where} cannot be used: {error}.")
        where = f"Port {port} on {host}"
        raise OSError(error.errno, message.format(where=where, host=host, error=error.strerror)) from None
    bound.set_inheritable(True)
    return bound
