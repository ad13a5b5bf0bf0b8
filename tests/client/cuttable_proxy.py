"""A TCP proxy to a server that can cut its connections; new connections are accepted at once."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class CuttableProxy:
    """Forwards connections to a server; `cut` breaks all of them."""

    def __init__(self, url: str) -> None:
        target_url = urlsplit(url)
        self._target = (target_url.hostname or "", target_url.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.connections = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _shut_down(self._listener)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        for socket_ in (self._listener, *self._sockets):
            socket_.close()

    def cut(self) -> None:
        for socket_ in self._sockets:
            _shut_down(socket_)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client_side, _ = self._listener.accept()
                server_side = socket.create_connection(self._target)
                self.connections += 1
                self._sockets += (client_side, server_side)
                for pair in ((client_side, server_side), (server_side, client_side)):
                    self._threads.append(threading.Thread(target=_copy_bytes, args=pair, daemon=True))
                    self._threads[-1].start()


def _copy_bytes(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    _shut_down(source)
    _shut_down(target)


def _shut_down(socket_: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket_.shutdown(socket.SHUT_RDWR)
