"""Serving the application: uvicorn, with limits on what a slow or greedy client may hold."""

import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from callsheet.config import HttpSettings


class Server(uvicorn.Server):
    """A server that says when it answers."""

    def __init__(self, app: Any, bound: socket.socket, settings: HttpSettings, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, date_header=False, lifespan="off",
                timeout_keep_alive=settings.idle_seconds, timeout_graceful_shutdown=5,
            )
        )  # fmt: skip
        self._bound = bound
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def serve_here(self) -> None:
        """Serve on the bound socket until told to stop."""
        self.run(sockets=[self._bound])


def bind(host: str, port: int) -> socket.socket:
    """Take an address; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, port))
    bound.set_inheritable(True)
    return bound
