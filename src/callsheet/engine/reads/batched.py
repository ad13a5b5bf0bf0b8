"""Batched reads from asyncio: one thread sends all waiting requests in one round trip to the database.

The event loop never blocks on SQL. A switch to a thread costs more than most reads, so all requests of one loop
iteration share a switch.
"""

import asyncio
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from callsheet.engine.reads.read_batch import ReadRequest, make_batch, resolve_futures
from callsheet.store.connection import Connection, ConnectionLost, Database, NamedQuery, Rows

_BATCH_MAX = 256


class BatchedReader:
    """Executes read requests in batches, on a read connection of its own."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
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
        self._stopping = True
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join()

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
        """Pass the requests of a loop iteration to the thread."""
        requests = self._gathering.pop(loop)
        self._waiting.put(requests)
        if self._ended:  # the thread has ended and will not see them
            resolve_futures(requests, [_closed_error() for _ in requests])

    def _run_forever(self) -> None:
        while requests := self._gather():
            self._answer_all(requests)
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
        with suppress(RuntimeError):  # the loop is closed, so its callers no longer wait
            loop.call_soon_threadsafe(resolve_futures, *pair)
