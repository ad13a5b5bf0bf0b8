"""Reads from asyncio: one thread that takes all questions that wait as one trip to the database.

The event loop never waits for SQL, and a hop to a thread costs more than most reads; so hops are shared: what is
asked in one turn of a loop goes over together at its end. Where a database can be waited for by its socket, a loop gets
a connection of its own and asks without the thread, which is there for what goes wrong.
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
    """Answers questions, many at a time, on a reading connection of its own."""

    def __init__(self, database: Database, name: str, *, direct_timeout_seconds: float = 0.0) -> None:
        self._database = database
        self._direct_timeout_seconds = direct_timeout_seconds
        """How long a loop that asks by itself waits for an answer; 0 if this database cannot be asked so."""
        self.direct: dict[asyncio.AbstractEventLoop, DirectReader] = {}
        """Loops that ask by themselves."""
        self._direct_retry_at = 0.0
        self._connecting: dict[asyncio.AbstractEventLoop, DirectReader] = {}
        """Made, and not yet begun by their loops."""
        self._lock = threading.Lock()
        """Nobody begins to ask by itself once the lane ends."""
        self._connection: Connection | None = None
        self._gathering: dict[asyncio.AbstractEventLoop, list[ReadRequest]] = {}
        """What each loop has asked in this turn; only its own thread touches its list."""
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
        """Let the thread ask."""
        self._waiting.put(requests)
        if self._ended:  # they came behind the last look
            resolve_futures(requests, [_closed_error() for _ in requests])

    def _connect_loops(self, loops: Iterable[asyncio.AbstractEventLoop]) -> None:
        """Give each loop that asks a connection of its own; where that fails, it is tried again some time later."""
        for loop in self._loops_without_connection(loops):
            try:
                connection: Any = self._database.connect(reading=True)
            except Exception:  # noqa: BLE001 - there is none to be had: the thread goes on alone, and does not ask each time
                self._direct_retry_at = time.monotonic() + _RECONNECT_SECONDS
                return
            direct = DirectReader(connection, self._send_to_thread, self._direct_timeout_seconds)
            with self._lock:
                self._connecting[loop] = direct
            with suppress(RuntimeError):  # the loop is closed meanwhile: its connection is let go with the next look
                loop.call_soon_threadsafe(self._attach, loop)

    def _loops_without_connection(self, loops: Iterable[asyncio.AbstractEventLoop]) -> list[asyncio.AbstractEventLoop]:
        """Return the loops that have no connection of their own; those of loops that are closed are let go."""
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
        """Answer everybody: together, on a new connection if the old one was lost; if that is lost too, say so to all.

        Where one of them cannot be answered, each hears its own as soon as that is known.
        """
        for may_retry in (True, False):
            try:
                _deliver_answers(requests, self._fetch_answers(requests))
            except ConnectionLost as lost:
                if may_retry:
                    continue
                _deliver_answers(requests, [ConnectionLost(str(lost)) for _ in requests])
            except Exception:  # noqa: BLE001 - whose fault it is, is that one's to hear; the lane lives on
                for request in requests:
                    _deliver_answers([request], [self._fetch_single(request)])
            return

    def _drain(self) -> list[ReadRequest]:
        """Return what was asked while the lane ended."""
        unanswered: list[ReadRequest] = []
        with suppress(queue.Empty):
            while True:
                unanswered.extend(self._waiting.get_nowait() or [])
        return unanswered

    def _gather(self) -> list[ReadRequest]:
        """Wait for a question, and take those that have come meanwhile; none is the end."""
        first = self._waiting.get()
        if first is None:
            return []
        requests = list(first)
        with suppress(queue.Empty):
            while len(requests) < _BATCH_MAX:
                more = self._waiting.get_nowait()
                if more is None:
                    self._waiting.put(None)  # for the next look: these are answered first
                    break
                requests.extend(more)
        return requests

    def _fetch_answers(self, requests: Sequence[ReadRequest]) -> list[Any]:
        """Ask everything in one trip."""
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
        """Ask again for one caller; a connection that broke is replaced."""
        try:
            return self._fetch_answers([request])[0]
        except Exception as error:  # noqa: BLE001 - this caller's to hear
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
        with suppress(RuntimeError):  # the loop is closed, and its callers are gone
            loop.call_soon_threadsafe(resolve_futures, *pair)


def _close_on_loop(loop: asyncio.AbstractEventLoop, direct: DirectReader) -> None:
    """End a loop's own connection, where the loop runs if it does."""
    if not loop.is_running() or asyncio._get_running_loop() is loop:  # noqa: SLF001 - the one way to ask without an error
        direct.close()
        return
    closed = threading.Event()

    def close() -> None:
        direct.close()
        closed.set()

    with suppress(RuntimeError):  # the loop ends meanwhile
        loop.call_soon_threadsafe(close)
        closed.wait(_CLOSE_SECONDS)
    direct.close()
