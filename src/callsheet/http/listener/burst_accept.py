"""Accepts bursts of connections.

The event loop accepts one connection of each socket in a turn. A turn of a busy server takes milliseconds, so the
backlog of the system would overflow, and clients would wait for seconds until they repeat the attempt.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from callsheet.http.early_refusals import EarlyRefusals
from callsheet.http.listener.whole_request import find_whole_request

_ACCEPT_SECONDS, _OPENING_MAX = 0.01, 256
"""How long a turn accepts connections, and how many are being opened at once: more would delay open connections."""
_OPENING_MIN = 32
"""Near the limit of connections, fewer are opened at once: they fit into the reserved file descriptors."""
_PEEK_BYTES = 16 * 1024


class BurstAcceptor:
    """Accepts waiting connections after the event loop has accepted one."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        early_refusals: EarlyRefusals | None,
        count_free: Callable[[], int],
    ) -> None:
        """`count_free` returns how many connections the server has left."""
        self._sockets = sockets
        self._count_free = count_free
        self._early_refusals = early_refusals
        self._make_protocol = make_protocol
        self._scheduled = False
        self._opening: set[asyncio.Task[None]] = set()

    def schedule(self) -> None:
        """Accept what waits in the next turn."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._accept_waiting)

    def _accept_waiting(self) -> None:
        self._scheduled = False
        for listening in self._sockets:
            with suppress(OSError):  # none waits, no file descriptor is free, or the server stops
                self._accept_from(listening)

    def _accept_from(self, listening: socket.socket) -> None:
        server, end = listening.getsockname(), time.monotonic() + _ACCEPT_SECONDS
        opening_max = max(_OPENING_MIN, min(_OPENING_MAX, self._count_free() // 2))
        while len(self._opening) < opening_max and time.monotonic() < end:
            accepted, _address = listening.accept()
            if not self._is_refused(accepted, server):
                self._open(accepted)

    def _is_refused(self, accepted: socket.socket, server: Any) -> bool:
        """Refuse the only request of a connection without opening it."""
        if self._early_refusals is None or not self._early_refusals.are_likely:
            return False
        try:
            request = find_whole_request(accepted.recv(_PEEK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT))
            if request is None or request.keep_alive:
                return False
            response = self._early_refusals.refuse_whole(request, server)
            if response is None:
                return False
            accepted.recv(_PEEK_BYTES)
            accepted.send(response)
        except OSError:  # nothing has arrived yet, or the client has closed the connection
            return False
        accepted.close()
        return True

    def _open(self, accepted: socket.socket) -> None:
        accepted.settimeout(0)
        task = asyncio.ensure_future(self._create_transport(accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _create_transport(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # the client has closed the connection
            await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, accepted)
