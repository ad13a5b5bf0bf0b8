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

from callsheet.engine.near import Near
from callsheet.engine.questions import Question, settle, trip_of
from callsheet.store.connection import Ask, Connection, ConnectionLost, Database, Rows

_TRIP_MAX = 256
_PARTING_SECONDS = 5.0
_AGAIN_SECONDS = 10.0


class ReadLane:
    """Answers questions, many at a time, on a reading connection of its own."""

    def __init__(self, database: Database, name: str, *, near_seconds: float = 0.0) -> None:
        self._database = database
        self._near_seconds = near_seconds
        """How long a loop that asks by itself waits for an answer; 0 if this database cannot be asked so."""
        self.near: dict[asyncio.AbstractEventLoop, Near] = {}
        """Loops that ask by themselves."""
        self._near_again_at = 0.0
        self._coming: dict[asyncio.AbstractEventLoop, Near] = {}
        """Made, and not yet begun by their loops."""
        self._door = threading.Lock()
        """Nobody begins to ask by itself once the lane ends."""
        self._connection: Connection | None = None
        self._turns: dict[asyncio.AbstractEventLoop, list[Question]] = {}
        """What each loop has asked in this turn; only its own thread touches its list."""
        self._waiting: queue.SimpleQueue[Sequence[Question] | None] = queue.SimpleQueue()
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._work, name=f"callsheet-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._door:
            self._stopping = True
            near = list(self.near.items())
        for loop, one in near:
            _part(loop, one)
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        with self._door:
            coming = list(self._coming.values())
            self._coming.clear()
        for one in coming:
            one.end()

    async def fetch(self, query: str, /, **given: Any) -> Rows:
        """Read a named query."""
        return (await self.fetch_all([(query, given)]))[0]

    def row(self, query: str, key: str) -> "asyncio.Future[Sequence[Any] | None]":
        """Read one row by its key; the query takes `ids`, and the key is its first column."""
        return self._asked([(query, {})], key)

    def fetch_all(self, asks: Sequence[Ask]) -> "asyncio.Future[list[Rows]]":
        """Read several named queries, one after the other."""
        return self._asked(asks)

    def _asked(self, asks: Sequence[Ask], key: str | None = None) -> "asyncio.Future[Any]":
        if self._stopping:
            raise _closed()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        turn = self._turns.get(loop)
        if turn is None:
            turn = self._turns[loop] = []
            loop.call_soon(self._hand_over, loop)
        turn.append(Question(asks, future, loop, key))
        return future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        questions = self._turns.pop(loop)
        near = self.near.get(loop)
        if near is not None and not near.ended:
            near.ask(questions)
        else:
            self._aside(questions)

    def _aside(self, questions: Sequence[Question]) -> None:
        """Let the thread ask."""
        self._waiting.put(questions)
        if self._ended:  # they came behind the last look
            settle(questions, [_closed() for _ in questions])

    def _come_near(self, loops: Iterable[asyncio.AbstractEventLoop]) -> None:
        """Give each loop that asks a connection of its own; where that fails, it is tried again some time later."""
        for loop in self._far(loops):
            try:
                connection: Any = self._database.connect(reading=True)
            except Exception:  # noqa: BLE001 - there is none to be had: the thread goes on alone, and does not ask each time
                self._near_again_at = time.monotonic() + _AGAIN_SECONDS
                return
            near = Near(connection, self._aside, self._near_seconds)
            with self._door:
                self._coming[loop] = near
            with suppress(RuntimeError):  # the loop is closed meanwhile: its connection is let go with the next look
                loop.call_soon_threadsafe(self._begin, loop)

    def _far(self, loops: Iterable[asyncio.AbstractEventLoop]) -> list[asyncio.AbstractEventLoop]:
        """Return the loops that have no connection of their own; those of loops that are closed are let go."""
        with self._door:
            for those in (self.near, self._coming):
                for gone in [loop for loop in those if loop.is_closed()]:
                    those.pop(gone).end()
            if self._stopping or self._connection is None or time.monotonic() < self._near_again_at:
                return []
            return [
                loop for loop in loops
                if loop not in self._coming and (loop not in self.near or self.near[loop].ended)
            ]  # fmt: skip

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._door:
            near = self._coming.pop(loop, None)
            if near is None:
                return
            if not self._stopping:
                self.near[loop] = near
        if self._stopping:
            near.end()
        else:
            near.begin(loop)

    def _work(self) -> None:
        while questions := self._gather():
            self._serve(questions)
            if self._near_seconds:
                self._come_near({question.loop for question in questions})
        self._ended = True
        if late := self._left():
            _deliver(late, [_closed() for _ in late])
        if self._connection is not None:
            self._connection.close()

    def _serve(self, questions: Sequence[Question]) -> None:
        """Answer everybody: together, on a new connection if the old one was lost; if that is lost too, say so to all.

        Where one of them cannot be answered, each hears its own as soon as that is known.
        """
        for again in (True, False):
            try:
                _deliver(questions, self._answered(questions))
            except ConnectionLost as lost:
                if again:
                    continue
                _deliver(questions, [ConnectionLost(str(lost)) for _ in questions])
            except Exception:  # noqa: BLE001 - whose fault it is, is that one's to hear; the lane lives on
                for question in questions:
                    _deliver([question], [self._alone(question)])
            return

    def _left(self) -> list[Question]:
        """Return what was asked while the lane ended."""
        late: list[Question] = []
        with suppress(queue.Empty):
            while True:
                late.extend(self._waiting.get_nowait() or [])
        return late

    def _gather(self) -> list[Question]:
        """Wait for a question, and take those that have come meanwhile; none is the end."""
        first = self._waiting.get()
        if first is None:
            return []
        questions = list(first)
        with suppress(queue.Empty):
            while len(questions) < _TRIP_MAX:
                more = self._waiting.get_nowait()
                if more is None:
                    self._waiting.put(None)  # for the next look: these are answered first
                    break
                questions.extend(more)
        return questions

    def _answered(self, questions: Sequence[Question]) -> list[Any]:
        """Ask everything in one trip."""
        if self._connection is None:
            self._connection = self._database.connect(reading=True)
        trip = trip_of(questions)
        try:
            rows = self._connection.fetch_all(trip.asks)
        except ConnectionLost:
            self._connection.close()
            self._connection = None
            raise
        return trip.answers(rows)

    def _alone(self, question: Question) -> Any:
        """Ask again for one caller; a connection that broke is replaced."""
        try:
            return self._answered([question])[0]
        except Exception as error:  # noqa: BLE001 - this caller's to hear
            return error


def _closed() -> ConnectionLost:
    return ConnectionLost("The engine is closed.")


def _deliver(questions: Sequence[Question], answers: Sequence[Any]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, tuple[list[Question], list[Any]]] = {}
    for question, answer in zip(questions, answers, strict=True):
        mine, theirs = by_loop.setdefault(question.loop, ([], []))
        mine.append(question)
        theirs.append(answer)
    for loop, pair in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, and its callers are gone
            loop.call_soon_threadsafe(settle, *pair)


def _part(loop: asyncio.AbstractEventLoop, near: Near) -> None:
    """End a loop's own connection, where the loop runs if it does."""
    if not loop.is_running() or asyncio._get_running_loop() is loop:  # noqa: SLF001 - the one way to ask without an error
        near.end()
        return
    ended = threading.Event()

    def end() -> None:
        near.end()
        ended.set()

    with suppress(RuntimeError):  # the loop ends meanwhile
        loop.call_soon_threadsafe(end)
        ended.wait(_PARTING_SECONDS)
    near.end()
