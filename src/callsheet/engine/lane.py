"""A lane: one thread with one writing connection that takes all commands that wait as one batch.

While a batch commits, the next one gathers: nobody waits for a timer, and an idle lane answers a single command
at once. If the database refuses a batch or the connection breaks, its commands are run one by one; their ids were
made before, so one that had been committed finds its own work.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from callsheet.config import Settings
from callsheet.core.commands import Command
from callsheet.engine.batch import Batch, Done
from callsheet.store.connection import Clash, ConnectionLost, Contended, Full

Answer = Callable[[list[Any]], None]
FULL = "The disk of the database is full."
_CLASHES_MAX = 5
"""A race is over after one or two; a command that clashes still will clash for ever, and holds up the others."""


class Unavailable(Exception):  # noqa: N818 - says what happened
    """The database could not be reached in time; whether the command took effect is not known."""


class Order:
    """Commands of one caller, and how to answer all of them: at once, or on the caller's event loop."""

    __slots__ = ("answer", "commands", "loop")

    def __init__(
        self, commands: Sequence[Command], answer: Answer, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.commands = commands
        self.answer = answer
        self.loop = loop


class Lane:
    """Runs batches, one after the other, in a thread of its own."""

    def __init__(
        self,
        name: str,
        make_batch: Callable[[], Batch],
        after: Callable[[Done], None],
        settings: Settings,
    ) -> None:
        self.trouble: str | None = None
        """What keeps it from writing, for a person, until it has written again."""
        self._make_batch = make_batch
        self._after = after
        self._batch: Batch | None = None
        self._batch_max = settings.limits.batch_max
        self._patience = settings.patience_seconds
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._held: Order | None = None
        """An order that did not fit into the batch before."""
        self._stopping = threading.Event()
        self._door = threading.Lock()
        """Nobody comes in behind the last order."""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, order: Order) -> None:
        """Hand in commands; the answer comes after the commit, from the lane's thread."""
        with self._door:
            if self._stopping.is_set():
                raise Unavailable("The engine is closed.")
            self._orders.put(order)

    def stop(self) -> None:
        """Finish what was handed in, then end."""
        with self._door:
            self._stopping.set()
            self._orders.put(None)
        self._thread.join()

    def _work(self) -> None:
        while orders := self._gather():
            commands = [command for order in orders for command in order.commands]
            results = self._results(commands)
            _deliver(orders, results)
        if self._batch is not None:
            self._batch.connection.close()

    def _gather(self) -> list[Order]:
        """Wait for an order, and take those that have come meanwhile and fit; none is the end."""
        first, self._held = self._held or self._orders.get(), None
        if first is None:
            return []
        orders, size = [first], len(first.commands)
        with suppress(queue.Empty):
            while size < self._batch_max:
                order = self._orders.get_nowait()
                if order is None:
                    self._orders.put(None)  # for the next look: these are done first
                    break
                size += len(order.commands)
                if size > self._batch_max:
                    self._held = order
                    break
                orders.append(order)
        return orders

    def _results(self, commands: Sequence[Command]) -> list[Any]:
        try:
            return self._run(commands, again=False)
        except Exception:  # noqa: BLE001 - a refused batch, or a fault that is one command's own: each hears its own
            end = time.monotonic() + self._patience  # of the batch: its last caller waits no longer than its first
            return [self._alone(command, end) for command in commands]

    def _alone(self, command: Command, end: float) -> Any:
        """Run one command until the database lets it, or patience ends."""
        pause = 0.005
        clashes = 0
        while True:
            try:
                return self._run([command], again=True)[0]
            except Full:
                return Unavailable(FULL)
            except (ConnectionLost, Contended) as error:
                clashes += isinstance(error, Clash)
                if clashes == _CLASHES_MAX:
                    return error
                if time.monotonic() >= end or self._stopping.is_set():
                    return Unavailable(f"The database did not answer: {type(error).__name__}.")
            except Exception as error:  # noqa: BLE001 - this command's own fault, and its caller's to hear
                return error
            self._stopping.wait(pause)
            pause = min(pause * 2, 1.0)

    def _run(self, commands: Sequence[Command], *, again: bool) -> list[Any]:
        try:
            batch = self._batch or self._make_batch()
            self._batch = batch
            done = batch.run(commands, again=again)
        except ConnectionLost as error:
            self.trouble = FULL if isinstance(error, Full) else None
            self._drop()
            raise
        if done.wrote:
            self.trouble = None
        self._after(done)
        return done.results

    def _drop(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.connection.close()


def _deliver(orders: Sequence[Order], results: list[Any]) -> None:
    """Answer everybody; an event loop is woken once for all its callers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Answer, list[Any]]]] = {}
    start = 0
    for order in orders:
        end = start + len(order.commands)
        mine = results[start:end]
        start = end
        if order.loop is None:
            order.answer(mine)
        else:
            by_loop.setdefault(order.loop, []).append((order.answer, mine))
    for loop, answers in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, and its callers are gone
            loop.call_soon_threadsafe(_answer_all, answers)


def _answer_all(answers: list[tuple[Answer, list[Any]]]) -> None:
    for answer, results in answers:
        answer(results)


class Box:
    """Where a waiting thread finds its answers."""

    __slots__ = ("_full", "results")

    def __init__(self) -> None:
        self._full = threading.Lock()
        self._full.acquire()
        self.results: list[Any] = []

    def put(self, results: list[Any]) -> None:
        self.results = results
        self._full.release()

    def take(self) -> list[Any]:
        self._full.acquire()
        return self.results
