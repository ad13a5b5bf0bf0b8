"""Where workers of a fleet wait for work: together per set of kinds, so that an idle fleet asks the database as one.

A claim that finds nothing joins those that wait for the same kinds. When there is a hint, or a poll is due, the first
of them asks; as long as there is work, twice as many ask the next time. A thousand waiting workers cost what one does.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from callsheet.core import commands
from callsheet.core.commands import Claim, Command, Leased
from callsheet.engine.hints import Hints

Kinds = tuple[str, ...]
_NOBODY = "nobody waited for it any more"
_FRESH_SECONDS = 1.0
_ASK_MAX = 256
"""Claims that ask together."""


class Claims(Protocol):
    """What the room needs of an engine."""

    hints: Hints

    async def aexecute_many(self, many: Sequence[Command]) -> list[Any]: ...


class Waiter(NamedTuple):
    """One claim that waits."""

    command: Claim
    future: "asyncio.Future[list[Leased]]"
    since: float

    def asking(self) -> Claim:
        """Return the claim as it stands now: what it says of its worker is as old as its wait."""
        waited = time.monotonic() - self.since
        if self.command.holds is None or waited < _FRESH_SECONDS:
            return self.command
        return replace(self.command, waited_seconds=waited)


class Room:
    """Claims from asyncio that wait for work."""

    def __init__(self, engine: Claims, poll_seconds: float) -> None:
        self._engine = engine
        self._poll_seconds = poll_seconds
        self._waiting: dict[Kinds, deque[Waiter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._end = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether nobody is to wait here any more."""
        return self._end.is_set()

    @property
    def count(self) -> int:
        """How many claims wait."""
        return sum(not waiter.future.done() for waiters in self._waiting.values() for waiter in waiters)

    async def claim(self, command: Claim, wait_seconds: float) -> list[Leased]:
        """Claim; if there is nothing, wait for some. Whoever leaves meanwhile loses nothing: it is given back."""
        waiter = Waiter(command, asyncio.get_running_loop().create_future(), time.monotonic())
        if wait_seconds > 0:
            self._join(waiter)
        else:
            self._begin(self._ask_once(waiter))
        try:
            await asyncio.wait((waiter.future,), timeout=wait_seconds if wait_seconds > 0 else None)
        except BaseException:
            if waiter.future.done() and not waiter.future.exception() and (late := waiter.future.result()):
                self._begin(give_back(self._engine, late, _NOBODY))
            raise
        finally:
            waiter.future.cancel()
        return [] if waiter.future.cancelled() else waiter.future.result()

    async def rest(self, seconds: float) -> None:
        """Wait as a claim does, for whoever may take nothing: it is not to ask again at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end.wait()

    def end(self) -> None:
        """Let everybody who waits go, with nothing; from the loop's own thread."""
        self._end.set()
        self._let_go(lambda _: True)

    def let_go(self, worker_id: str) -> None:
        """Let a worker go with nothing, so that it hears what was decided about it."""
        self._let_go(lambda command: command.worker_id == worker_id)

    def _let_go(self, whom: Callable[[Claim], bool]) -> None:
        for waiters in self._waiting.values():
            for waiter in waiters:
                if whom(waiter.command) and not waiter.future.done():
                    waiter.future.set_result([])

    def _join(self, waiter: Waiter) -> None:
        kinds = waiter.command.kinds
        waiters = self._waiting.get(kinds)
        if waiters is None:
            waiters = self._waiting[kinds] = deque()
            self._begin(self._serve(kinds, waiters))
        waiters.append(waiter)

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, kinds: Kinds, waiters: deque[Waiter]) -> None:
        """Serve those who wait for these kinds until nobody does."""
        try:
            while True:
                mark = self._engine.hints.mark(kinds)
                await self._ask(waiters)
                if not _first(waiters, 1):
                    return
                await self._hint(kinds, mark)
        finally:
            del self._waiting[kinds]
            for waiter in waiters:  # only if something broke: nobody is to wait for ever
                waiter.future.cancel()

    async def _ask(self, waiters: deque[Waiter]) -> None:
        """Let claims ask, twice as many each time, for as long as all of them find something."""
        many = 1
        while True:
            asking = _first(waiters, many)
            if not asking:
                return
            dry = False
            for waiter, answer in zip(asking, await self._answers(asking), strict=True):
                if answer == [] and not waiter.future.done() and not self.ended:
                    dry = True  # it waits on, where it stands
                else:
                    await self._deliver(waiter, answer)
            if dry:
                return
            many = min(many * 2, _ASK_MAX)

    async def _ask_once(self, waiter: Waiter) -> None:
        (answer,) = await self._answers([waiter])
        await self._deliver(waiter, answer)

    async def _answers(self, asking: Sequence[Waiter]) -> list[Any]:
        """Let claims ask together; if that cannot be, each of them hears it, and none waits for nothing."""
        try:
            return await self._engine.aexecute_many([waiter.asking() for waiter in asking])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return [error] * len(asking)

    async def _deliver(self, waiter: Waiter, answer: list[Leased] | Exception) -> None:
        if not waiter.future.done():
            if isinstance(answer, Exception):
                waiter.future.set_exception(answer)
            else:
                waiter.future.set_result(answer)
        elif isinstance(answer, list) and answer:
            await give_back(self._engine, answer, _NOBODY)

    async def _hint(self, kinds: Kinds, mark: int) -> None:
        """Wait for a hint of work, or until it is time to look all the same."""
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()

        def call() -> None:
            loop.call_soon_threadsafe(heard.set)

        if not self._engine.hints.subscribe(kinds, mark, call):
            return
        try:
            async with asyncio.timeout(self._engine.hints.patience(kinds, self._poll_seconds)):
                await heard.wait()
        except TimeoutError:
            return
        finally:
            self._engine.hints.unsubscribe(kinds, call)


def _first(waiters: deque[Waiter], many: int) -> list[Waiter]:
    """Return the first who still wait; they stay where they stand, so that they can be let go while they ask."""
    while waiters and waiters[0].future.done():
        waiters.popleft()
    return list(islice((waiter for waiter in waiters if not waiter.future.done()), many))


async def give_back(engine: Claims, tasks: Sequence[Leased], why: str) -> None:
    """Give back tasks that reached nobody, without using up a try; what cannot be is given back by its lease."""
    await engine.aexecute_many([commands.Requeue(lease=task.lease, reason=why) for task in tasks])
