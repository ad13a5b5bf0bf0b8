"""A reading connection that an event loop waits for itself: no thread to hand a question to, and back.

It is there for as long as all goes well. Whatever goes wrong, its questions are put aside, to the lane's thread, which
asks them again (they only read) and knows what to say if that fails too.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from callsheet.engine.questions import Question, Trip, settle, trip_of
from callsheet.store.connection import Ask, ConnectionLost, Rows

Aside = Callable[[Sequence[Question]], None]


class Askable(Protocol):
    """A connection that can be asked without waiting."""

    @property
    def socket(self) -> int: ...
    def ask(self, asks: Sequence[Ask]) -> None: ...
    def answered(self) -> list[Rows] | None: ...
    def close(self) -> None: ...


class Near:
    """One loop's connection: a trip at a time; what is asked meanwhile makes the next one."""

    def __init__(self, connection: Askable, aside: Aside, answer_seconds: float) -> None:
        self.ended = False
        self._connection = connection
        self._socket = connection.socket
        self._aside = aside
        self._answer_seconds = answer_seconds
        self._trip: Trip | None = None
        self._waiting: list[Question] = []
        self._late: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for answers on this loop, from which everything here is called."""
        self._loop = loop
        loop.add_reader(self._socket, self._heard)

    def ask(self, questions: Sequence[Question]) -> None:
        self._waiting.extend(questions)
        if self._trip is None:
            self._go()

    def end(self) -> None:
        """Let go of the connection; whoever still waits is answered aside."""
        if self.ended:
            return
        self.ended = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._connection.close()
        self._put_aside()
        if self._waiting:
            self._aside(self._waiting)

    def _go(self) -> None:
        if not self._waiting or self._loop is None:
            return
        self._trip, self._waiting = trip_of(self._waiting), []
        try:
            self._connection.ask(self._trip.asks)
        except Exception:  # noqa: BLE001 - whose fault it is, and what to say of it, is found out aside
            self.end()
            return
        self._late = self._loop.call_later(self._answer_seconds, self.end)

    def _heard(self) -> None:
        try:
            rows = self._connection.answered()
        except ConnectionLost:
            self.end()
            return
        except Exception:  # noqa: BLE001 - one of them cannot be answered, and which one is found out aside
            self._put_aside()
            self._go()
            return
        if rows is not None and (trip := self._over()) is not None:
            settle(trip.questions, trip.answers(rows))
            self._go()

    def _put_aside(self) -> None:
        if (trip := self._over()) is not None:
            self._aside(trip.questions)

    def _over(self) -> Trip | None:
        """End the trip that was under way."""
        trip, self._trip = self._trip, None
        if self._late is not None:
            self._late.cancel()
            self._late = None
        return trip
