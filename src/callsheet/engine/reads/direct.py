"""A reading connection that an event loop waits for itself: no thread to hand a question to, and back.

It is there for as long as all goes well. Whatever goes wrong, its questions are put aside, to the lane's thread, which
asks them again (they only read) and knows what to say if that fails too.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from callsheet.engine.reads.read_batch import ReadBatch, ReadRequest, make_batch, resolve_futures
from callsheet.store.connection import ConnectionLost, NamedQuery, Rows

Fallback = Callable[[Sequence[ReadRequest]], None]


class NonBlockingConnection(Protocol):
    """A connection that can be asked without waiting."""

    @property
    def socket(self) -> int: ...
    def ask(self, named_queries: Sequence[NamedQuery]) -> None: ...
    def receive(self) -> list[Rows] | None: ...
    def close(self) -> None: ...


class DirectReader:
    """One loop's connection: a trip at a time; what is asked meanwhile makes the next one."""

    def __init__(self, connection: NonBlockingConnection, fallback: Fallback, timeout_seconds: float) -> None:
        self.closed = False
        self._connection = connection
        self._socket = connection.socket
        self._fallback = fallback
        self._timeout_seconds = timeout_seconds
        self._batch: ReadBatch | None = None
        self._pending: list[ReadRequest] = []
        self._timeout: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for answers on this loop, from which everything here is called."""
        self._loop = loop
        loop.add_reader(self._socket, self._on_readable)

    def ask(self, requests: Sequence[ReadRequest]) -> None:
        self._pending.extend(requests)
        if self._batch is None:
            self._send_batch()

    def close(self) -> None:
        """Let go of the connection; whoever still waits is answered aside."""
        if self.closed:
            return
        self.closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._connection.close()
        self._fall_back()
        if self._pending:
            self._fallback(self._pending)

    def _send_batch(self) -> None:
        if not self._pending or self._loop is None:
            return
        self._batch, self._pending = make_batch(self._pending), []
        try:
            self._connection.ask(self._batch.named_queries)
        except Exception:  # noqa: BLE001 - whose fault it is, and what to say of it, is found out aside
            self.close()
            return
        self._timeout = self._loop.call_later(self._timeout_seconds, self.close)

    def _on_readable(self) -> None:
        try:
            rows = self._connection.receive()
        except ConnectionLost:
            self.close()
            return
        except Exception:  # noqa: BLE001 - one of them cannot be answered, and which one is found out aside
            self._fall_back()
            self._send_batch()
            return
        if rows is not None and (batch := self._finish_batch()) is not None:
            resolve_futures(batch.requests, batch.answers(rows))
            self._send_batch()

    def _fall_back(self) -> None:
        if (batch := self._finish_batch()) is not None:
            self._fallback(batch.requests)

    def _finish_batch(self) -> ReadBatch | None:
        """End the trip that was under way."""
        batch, self._batch = self._batch, None
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        return batch
