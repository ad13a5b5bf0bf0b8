"""Batched reads from asyncio: one thread sends all waiting requests in one round trip to the database.

The event loop never blocks on SQL. A switch to a thread costs more than most reads, so all requests of one loop
iteration share a switch. If the event loop can wait for the database's socket, each loop gets a connection of its own
and reads without the thread. The thread then handles errors only.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from callsheet.engine.reads.direct import DirectReader
from callsheet.engine.reads.read_batch import ReadRequest, make_batch, resolve_futures
from callsheet.store.connection import Connection, ConnectionLost, Database, NamedQuery, Rows

_BATCH_MAX = 256
_CLOSE_SECONDS = 5.0
_RECONNECT_SECONDS = 10.0


class BatchedReader:
    """Executes read requests in batches, on a read connection of its own."""

    def __init__(self, database: Database, name: str, *, direct_timeout_seconds: float = 0.0) -> None:
        self._database = database
        self._direct_timeout_seconds = direct_timeout_seconds
        """Timeout of direct reads; 0 if this database does not support them."""
        self.direct: dict[asyncio.AbstractEventLoop, DirectReader] = {}
        """Event loops with a connection of their own."""
        self._direct_retry_at = 0.0
        self._connecting: dict[asyncio.AbstractEventLoop, DirectReader] = {}
        """Direct readers that their loops have not attached yet."""
        self._lock = threading.Lock()
        """No direct reader is attached after `stop`."""
        self._connection: Connection | None = None
        self._gathering: dict[asyncio.AbstractEventLoop, list[ReadRequest]] = {}
        """Requests of each loop in its current iteration. Only the loop's thread touches its list."""
        self._waiting: queue.SimpleQueue[Sequence[ReadRequest] | None] = queue.SimpleQueue()
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run_forever, name=f"callsheet-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            direct = list(self.direct.items())
        for loop, one in direct:
            _close_on_loop(loop, one)
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            connecting = list(self._connecting.values())
            self._connecting.clear()
        for one in connecting:
            one.close()

    async def fetch(self, query: str, /, **parameters: Any) -> Rows:
        """Read a named query."""
        return (await self.fetch_all([(query, parameters)]))[0]

    def row(self, query: str, key: str) -> "asyncio.Future[Sequence[Any] | None]":
        """Read one row by its key; the query takes `ids`, and the key is its first column."""
        return self._enqueue([(query, {})], key)

    def fetch_all(self, named_queries: Sequence[NamedQuery]) -> "asyncio.Future[list[Rows]]":
        """Read several named queries, one after the other."""
        return self._enqueue(named_queries)

    def _enqueue(self, named_queries: Sequence[NamedQuery], key: str | None = None) -> "asyncio.Future[Any]":
        if self._stopping:
            raise _closed_error()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        gathered = self._gathering.get(loop)
        if gathered is None:
            gathered = self._gathering[loop] = []
            loop.call_soon(self._dispatch, loop)
        gathered.append(ReadRequest(named_queries, future, loop, key))
        return future

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        requests = self._gathering.pop(loop)
        direct = self.direct.get(loop)
        if direct is not None and not direct.closed:
            direct.ask(requests)
        else:
            self._send_to_thread(requests)

    def _send_to_thread(self, requests: Sequence[ReadRequest]) -> None:
        """Pass requests to the thread."""
        self._waiting.put(requests)
        if self._ended:  # the thread has ended and will not see them
            resolve_futures(requests, [_closed_error() for _ in requests])

    def _connect_loops(self, loops: Iterable[asyncio.AbstractEventLoop]) -> None:
        """Open a connection for each loop that reads. After a failure, wait before the next attempt."""
        for loop in self._loops_without_connection(loops):
            try:
                connection: Any = self._database.connect(reading=True)
            except Exception:  # noqa: BLE001 - no connection available: the thread continues alone
                self._direct_retry_at = time.monotonic() + _RECONNECT_SECONDS
                return
            direct = DirectReader(connection, self._send_to_thread, self._direct_timeout_seconds)
            with self._lock:
                self._connecting[loop] = direct
            with suppress(RuntimeError):  # the loop was closed: its connection is closed next time
                loop.call_soon_threadsafe(self._attach, loop)

    def _loops_without_connection(self, loops: Iterable[asyncio.AbstractEventLoop]) -> list[asyncio.AbstractEventLoop]:
        """Return the loops without a connection of their own. Close the connections of closed loops."""
        with self._lock:
            for readers in (self.direct, self._connecting):
                for closed_loop in [loop for loop in readers if loop.is_closed()]:
                    readers.pop(closed_loop).close()
            if self._stopping or self._connection is None or time.monotonic() < self._direct_retry_at:
                return []
            return [
                loop for loop in loops
                if loop not in self._connecting and (loop not in self.direct or self.direct[loop].closed)
            ]  # fmt: skip

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            direct = self._connecting.pop(loop, None)
            if direct is None:
                return
            if not self._stopping:
                self.direct[loop] = direct
        if self._stopping:
            direct.close()
        else:
            direct.begin(loop)

    def _run_forever(self) -> None:
        while requests := self._gather():
            self._answer_all(requests)
            if self._direct_timeout_seconds:
                self._connect_loops({request.loop for request in requests})
        self._ended = True
        if unanswered := self._drain():
            _deliver_answers(unanswered, [_closed_error() for _ in unanswered])
        if self._connection is not None:
            self._connection.close()

    def _answer_all(self, requests: Sequence[ReadRequest]) -> None:
        """Execute requests in one batch, once more on a new connection if the connection was lost.

        If a request fails, each request is executed alone, and its result delivered at once.
        """
        for may_retry in (True, False):
            try:
                _deliver_answers(requests, self._fetch_answers(requests))
            except ConnectionLost as lost:
                if may_retry:
                    continue
                _deliver_answers(requests, [ConnectionLost(str(lost)) for _ in requests])
            except Exception:  # noqa: BLE001 - only the request that fails gets the error
                for request in requests:
                    _deliver_answers([request], [self._fetch_single(request)])
            return

    def _drain(self) -> list[ReadRequest]:
        """Return the requests that arrived while the reader stopped."""
        unanswered: list[ReadRequest] = []
        with suppress(queue.Empty):
            while True:
                unanswered.extend(self._waiting.get_nowait() or [])
        return unanswered

    def _gather(self) -> list[ReadRequest]:
        """Wait for a request, and return it with all others that wait; an empty list means stop."""
        first = self._waiting.get()
        if first is None:
            return []
        requests = list(first)
        with suppress(queue.Empty):
            while len(requests) < _BATCH_MAX:
                more = self._waiting.get_nowait()
                if more is None:
                    self._waiting.put(None)  # stop after these requests
                    break
                requests.extend(more)
        return requests

    def _fetch_answers(self, requests: Sequence[ReadRequest]) -> list[Any]:
        """Execute requests in one round trip."""
        if self._connection is None:
            self._connection = self._database.connect(reading=True)
        batch = make_batch(requests)
        try:
            rows = self._connection.fetch_all(batch.named_queries)
        except ConnectionLost:
            self._connection.close()
            self._connection = None
            raise
        return batch.answers(rows)

    def _fetch_single(self, request: ReadRequest) -> Any:
        """Execute one request. A lost connection is replaced by the next call."""
        try:
            return self._fetch_answers([request])[0]
        except Exception as error:  # noqa: BLE001 - the caller gets it
            return error


def _closed_error() -> ConnectionLost:
    return ConnectionLost("The engine is closed.")


def _deliver_answers(requests: Sequence[ReadRequest], answers: Sequence[Any]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, tuple[list[ReadRequest], list[Any]]] = {}
    for request, answer in zip(requests, answers, strict=True):
        own_requests, own_answers = by_loop.setdefault(request.loop, ([], []))
        own_requests.append(request)
        own_answers.append(answer)
    for loop, pair in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, and its callers with it
            loop.call_soon_threadsafe(resolve_futures, *pair)


def _close_on_loop(loop: asyncio.AbstractEventLoop, direct: DirectReader) -> None:
    """Close the connection of a loop, in the loop's thread if it runs."""
    if not loop.is_running() or asyncio._get_running_loop() is loop:  # noqa: SLF001 - get_running_loop raises without a loop
        direct.close()
        return
    closed = threading.Event()

    def close() -> None:
        direct.close()
        closed.set()

    with suppress(RuntimeError):  # the loop ends at the same time
        loop.call_soon_threadsafe(close)
        closed.wait(_CLOSE_SECONDS)
    direct.close()
