"""Reads from asyncio: one thread that takes all questions that wait as one trip to the database.

The event loop never runs SQL, and a hop to a thread costs more than most reads; so hops are shared.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from callsheet.store.connection import Ask, Connection, ConnectionLost, Database, Rows, StoreError

_TRIP_MAX = 256


class Question(NamedTuple):
    """What one caller asks together, and where the answer goes."""

    asks: Sequence[Ask]
    future: "asyncio.Future[list[Rows]]"
    loop: asyncio.AbstractEventLoop


class ReadLane:
    """Answers questions, many at a time, on a reading connection of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._waiting: deque[Question] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="callsheet-reads", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    async def fetch(self, query: str, /, **given: Any) -> Rows:
        """Read a named query."""
        return (await self.fetch_all([(query, given)]))[0]

    async def fetch_all(self, asks: Sequence[Ask]) -> list[Rows]:
        """Read several named queries, one after the other."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Rows]] = loop.create_future()
        with self._wake:
            if self._stopping:
                raise ConnectionLost("The engine is closed.")
            self._waiting.append(Question(asks, future, loop))
            if len(self._waiting) == 1:
                self._wake.notify()
        return await future

    def _work(self) -> None:
        while questions := self._gather():
            try:
                answers = self._answered(questions)
            except StoreError:
                answers = [self._alone(question) for question in questions]
            _deliver(questions, answers)
        if self._connection is not None:
            self._connection.close()

    def _gather(self) -> list[Question]:
        with self._wake:
            while not self._waiting:
                if self._stopping:
                    return []
                self._wake.wait()
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _TRIP_MAX))]

    def _answered(self, questions: Sequence[Question]) -> list[Any]:
        """Ask everything in one trip."""
        if self._connection is None:
            self._connection = self._database.connect(reading=True)
        try:
            rows = self._connection.fetch_all([ask for question in questions for ask in question.asks])
        except ConnectionLost:
            self._connection.close()
            self._connection = None
            raise
        answers, start = [], 0
        for question in questions:
            answers.append(rows[start : start + len(question.asks)])
            start += len(question.asks)
        return answers

    def _alone(self, question: Question) -> Any:
        """Ask again for one caller; a connection that broke is replaced."""
        try:
            return self._answered([question])[0]
        except StoreError as error:
            return error


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
