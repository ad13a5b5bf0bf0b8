"""Batched reads from asyncio: one thread sends all waiting requests in one round trip to the database.

The event loop never blocks on SQL. A switch to a thread costs more than most reads, so all requests of one loop
iteration share a switch.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from callsheet.core.model.errors import Overloaded
from callsheet.core.policy.admission import QueueLimits, QueueLoad, WorkClass, is_overloaded
from callsheet.engine.queue_stats import QueueStats
from callsheet.engine.reads.read_batch import ReadRequest, make_batch, resolve_futures
from callsheet.store.connection import Connection, ConnectionLost, Database, NamedQuery, Rows


class BatchedReader:
    """Executes read requests in batches, on a read connection of its own. Over the limits, it refuses requests."""

    def __init__(self, database: Database, name: str, limits: QueueLimits) -> None:
        self.stats = QueueStats()
        self._limits = limits
        self._database = database
        self._connection: Connection | None = None
        self._gathering: dict[asyncio.AbstractEventLoop, list[ReadRequest]] = {}
        """Requests of each loop in its current iteration. Only the loop's thread touches its list."""
        self._waiting: deque[tuple[float, Sequence[ReadRequest]]] = deque()
        """Requests that wait for the thread, with the time since when they wait."""
        self._waiting_count = 0
        self._changed = threading.Condition(threading.Lock())
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run_forever, name=f"callsheet-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def load(self) -> QueueLoad:
        """What waits for the thread."""
        try:
            return QueueLoad(self._waiting_count, time.monotonic() - self._waiting[0][0])
        except IndexError:
            return QueueLoad(0)

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
        if is_overloaded(self.load, self._limits):
            self.stats.refused[WorkClass.READ] += 1
            raise Overloaded
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
        with self._changed:
            if not self._ended:
                self._waiting.append((time.monotonic(), requests))
                self._waiting_count += len(requests)
                self._changed.notify()
                return
        resolve_futures(requests, [_closed_error() for _ in requests])  # the thread has ended and will not see them

    def _run_forever(self) -> None:
        while requests := self._gather():
            self._answer_all(requests)
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

    def _gather(self) -> list[ReadRequest]:
        """Wait for requests, and return as many as fit into a batch; an empty list means stop."""
        with self._changed:
            while not self._waiting and not self._stopping:
                self._changed.wait()
            now = time.monotonic()
            requests: list[ReadRequest] = []
            while self._waiting and len(requests) < self._limits.batch_max:
                put_at, more = self._waiting.popleft()
                self.stats.record_wait(WorkClass.READ, now - put_at, len(more))
                requests.extend(more)
            self._waiting_count -= len(requests)
            self._ended = not requests
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
