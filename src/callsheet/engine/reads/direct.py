"""Direct reads: a read connection whose socket an event loop waits for, without a thread.

On any error, its requests are passed to the thread of the batched reader. Reads can be repeated safely; the thread
reports the error if the request fails again.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from callsheet.engine.reads.read_batch import ReadBatch, ReadRequest, make_batch, resolve_futures
from callsheet.store.connection import ConnectionLost, NamedQuery, Rows

Fallback = Callable[[Sequence[ReadRequest]], None]


class NonBlockingConnection(Protocol):
    """A connection that sends queries and receives rows without blocking."""

    @property
    def socket(self) -> int: ...
    def ask(self, named_queries: Sequence[NamedQuery]) -> None: ...
    def receive(self) -> list[Rows] | None: ...
    def close(self) -> None: ...


class DirectReader:
    """The connection of one loop: one batch at a time. Requests that arrive meanwhile make the next batch."""

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
        """Start waiting for rows on this loop. All other methods are called from it."""
        self._loop = loop
        loop.add_reader(self._socket, self._on_readable)

    def ask(self, requests: Sequence[ReadRequest]) -> None:
        self._pending.extend(requests)
        if self._batch is None:
            self._send_batch()

    def close(self) -> None:
        """Close the connection. Open requests are passed to the fallback."""
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
        except Exception:  # noqa: BLE001 - the fallback finds out which request fails
            self.close()
            return
        self._timeout = self._loop.call_later(self._timeout_seconds, self.close)

    def _on_readable(self) -> None:
        try:
            rows = self._connection.receive()
        except ConnectionLost:
            self.close()
            return
        except Exception:  # noqa: BLE001 - the fallback finds out which request fails
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
        """Return the batch in progress and cancel its timeout."""
        batch, self._batch = self._batch, None
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        return batch
