"""A new connection while the server refuses work: its requests are refused from their first bytes, at little cost.

Opening a `Connection` and parsing a request takes longer than an overloaded server can spend on what it refuses. The
first request that is admitted, or that needs a parser, makes it a `Connection`, which starts with the same bytes.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from callsheet.http.early_refusals import EarlyRefusals
from callsheet.http.listener.connection import Connection
from callsheet.http.listener.connection_limits import Admission
from callsheet.http.listener.listener_context import ListenerContext
from callsheet.http.listener.whole_request import find_whole_request

_KEPT_SECONDS = 5.0
"""After this time, it becomes a `Connection`, which has timeouts."""


def open_connection(context: ListenerContext, **protocol_options: Any) -> asyncio.Protocol:
    """Return the protocol of an accepted connection."""
    make_connection = partial(Connection, context, **protocol_options)
    early_refusals = getattr(protocol_options["config"].app, "early_refusals", None)
    if early_refusals is None or not early_refusals.are_likely:
        return make_connection()
    return NewConnection(context, early_refusals, make_connection, protocol_options["server_state"].connections)


class NewConnection(asyncio.Protocol):
    """Refuses requests, until one is admitted or has to be parsed. The limits of connections apply to it too."""

    def __init__(
        self, context: ListenerContext, early_refusals: EarlyRefusals, make_connection: Callable[[], Connection],
        connections: set[Any],
    ) -> None:  # fmt: skip
        self.transport: Any = None
        self._context = context
        self._early_refusals = early_refusals
        self._make_connection = make_connection
        self._connections = connections
        self._server: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._server = transport.get_extra_info("sockname")
        self._connections.add(self)
        if self._context.add_connection(self, transport) is not Admission.SERVE:
            self._become_connection()  # it sends the error
            return
        self._timer = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._become_connection)

    def abort(self) -> None:
        """Close the connection at once, to make space for others."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        become_connection = partial(self._become_connection, data)
        request = find_whole_request(data)
        if request is None or not self._early_refusals.refuse_or_defer(
            request, self._server, self.transport, become_connection
        ):  # fmt: skip
            become_connection()

    def connection_lost(self, exc: Exception | None) -> None:
        _ = exc
        self._end()

    def pause_writing(self) -> None:
        self._paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self.transport.resume_reading()

    def shutdown(self) -> None:
        """Close the connection. Uvicorn calls it when the server stops."""
        self.transport.close()

    def _become_connection(self, data: bytes = b"") -> None:
        self._end()
        if self._paused:  # the client does not read its responses
            self.transport.abort()
            return
        connection = self._make_connection()
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)
        if data:
            connection.data_received(data)

    def _end(self) -> None:
        self._connections.discard(self)
        self._context.limits.remove(self)
        if self._timer is not None:
            self._timer.cancel()
