"""Reads from asyncio: one thread that takes all questions that wait as one trip to the database.

The event loop never runs SQL, and a hop to a thread costs more than most reads; so hops are shared: what is asked in
one turn of a loop goes over together at its end.
"""

import asyncio
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from callsheet.store.connection import Ask, Connection, ConnectionLost, Database, Rows

_TRIP_MAX = 256


class Question(NamedTuple):
    """What one caller asks together, and where the answer goes."""

    asks: Sequence[Ask]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    key: str | None = None
    """Only the row with this key is wanted: whoever asks the same query in the same trip is asked for at once."""


class ReadLane:
    """Answers questions, many at a time, on a reading connection of its own."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._turns: dict[asyncio.AbstractEventLoop, list[Question]] = {}
        """What each loop has asked in this turn; only its own thread touches its list."""
        self._waiting: queue.SimpleQueue[list[Question] | None] = queue.SimpleQueue()
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._work, name=f"callsheet-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join()

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
            raise ConnectionLost("The engine is closed.")
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
        self._waiting.put(questions)
        if self._ended:  # they came behind the last look
            _settle([(question, ConnectionLost("The engine is closed.")) for question in questions])

    def _work(self) -> None:
        while questions := self._gather():
            try:
                answers = self._answered(questions)
            except Exception:  # noqa: BLE001 - whoever asked what cannot be answered hears of it alone; the lane lives on
                answers = [self._alone(question) for question in questions]
            _deliver(questions, answers)
        self._ended = True
        if late := self._left():
            _deliver(late, [ConnectionLost("The engine is closed.")] * len(late))
        if self._connection is not None:
            self._connection.close()

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
        keys = _keys(questions)
        asks: list[Ask] = [(query, {"ids": list(mine)}) for query, mine in keys.items()]
        asks.extend(ask for question in questions if question.key is None for ask in question.asks)
        try:
            rows = self._connection.fetch_all(asks)
        except ConnectionLost:
            self._connection.close()
            self._connection = None
            raise
        by_key = {query: {row[0]: row for row in found} for query, found in zip(keys, rows, strict=False)}
        answers: list[Any] = []
        start = len(keys)
        for question in questions:
            if question.key is not None:
                answers.append(by_key[question.asks[0][0]].get(question.key))
            else:
                answers.append(rows[start : start + len(question.asks)])
                start += len(question.asks)
        return answers

    def _alone(self, question: Question) -> Any:
        """Ask again for one caller; a connection that broke is replaced."""
        try:
            return self._answered([question])[0]
        except Exception as error:  # noqa: BLE001 - this caller's to hear
            return error


def _keys(questions: Sequence[Question]) -> dict[str, dict[str, None]]:
    """Return, by query, the keys whose rows are wanted, each once."""
    keys: dict[str, dict[str, None]] = {}
    for question in questions:
        if question.key is not None:
            keys.setdefault(question.asks[0][0], {})[question.key] = None
    return keys


def _deliver(questions: Sequence[Question], answers: Sequence[Any]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Question, Any]]] = {}
    for question, answer in zip(questions, answers, strict=True):
        by_loop.setdefault(question.loop, []).append((question, answer))
    for loop, mine in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, and its callers are gone
            loop.call_soon_threadsafe(_settle, mine)


def _settle(mine: Sequence[tuple[Question, Any]]) -> None:
    for question, answer in mine:
        if question.future.done():
            continue
        if isinstance(answer, Exception):
            question.future.set_exception(answer)
        else:
            question.future.set_result(answer)
