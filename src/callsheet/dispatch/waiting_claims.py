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

from callsheet.core.model import commands
from callsheet.core.model.commands import Claim, Command, LeasedTask
from callsheet.engine.hints import Hints

Kinds = tuple[str, ...]
_NO_CLIENT_REASON = "nobody waited for it any more"
_FRESH_SECONDS = 1.0
_BATCH_MAX = 256
"""Claims that ask together."""


class ClaimExecutor(Protocol):
    """What the room needs of an engine."""

    hints: Hints

    async def aexecute_many(self, batch_size: Sequence[Command]) -> list[Any]: ...


class WaitingClaim(NamedTuple):
    """One claim that waits."""

    command: Claim
    future: "asyncio.Future[list[LeasedTask]]"
    since: float

    def asking(self) -> Claim:
        """Return the claim as it stands now: what it says of its worker is as old as its wait."""
        waited = time.monotonic() - self.since
        if self.command.held_task_ids is None or waited < _FRESH_SECONDS:
            return self.command
        return replace(self.command, waited_seconds=waited)


class WaitingClaims:
    """Claims from asyncio that wait for work."""

    def __init__(self, engine: ClaimExecutor, poll_seconds: float) -> None:
        self._engine = engine
        self._poll_seconds = poll_seconds
        self._waiting: dict[Kinds, deque[WaitingClaim]] = {}
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

    async def claim(self, command: Claim, wait_seconds: float) -> list[LeasedTask]:
        """Claim; if there is nothing, wait for some. Whoever leaves meanwhile loses nothing: it is given back."""
        waiter = WaitingClaim(command, asyncio.get_running_loop().create_future(), time.monotonic())
        if wait_seconds > 0:
            self._enqueue(waiter)
        else:
            self._start_task(self._claim_once(waiter))
        try:
            await asyncio.wait((waiter.future,), timeout=wait_seconds if wait_seconds > 0 else None)
        except BaseException:
            if waiter.future.done() and not waiter.future.exception() and (undelivered := waiter.future.result()):
                self._start_task(requeue_undelivered(self._engine, undelivered, _NO_CLIENT_REASON))
            raise
        finally:
            waiter.future.cancel()
        return [] if waiter.future.cancelled() else waiter.future.result()

    async def wait_idle(self, seconds: float) -> None:
        """Wait as a claim does, for whoever may take nothing: it is not to ask again at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end.wait()

    def end(self) -> None:
        """Let everybody who waits go, with nothing; from the loop's own thread."""
        self._end.set()
        self._release(lambda _: True)

    def release_worker(self, worker_id: str) -> None:
        """Let a worker go with nothing, so that it hears what was decided about it."""
        self._release(lambda command: command.worker_id == worker_id)

    def _release(self, matches: Callable[[Claim], bool]) -> None:
        for waiters in self._waiting.values():
            for waiter in waiters:
                if matches(waiter.command) and not waiter.future.done():
                    waiter.future.set_result([])

    def _enqueue(self, waiter: WaitingClaim) -> None:
        kinds = waiter.command.kinds
        waiters = self._waiting.get(kinds)
        if waiters is None:
            waiters = self._waiting[kinds] = deque()
            self._start_task(self._serve(kinds, waiters))
        waiters.append(waiter)

    def _start_task(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, kinds: Kinds, waiters: deque[WaitingClaim]) -> None:
        """Serve those who wait for these kinds until nobody does."""
        try:
            while True:
                mark = self._engine.hints.mark(kinds)
                await self._claim_while_successful(waiters)
                if not _first_waiting(waiters, 1):
                    return
                await self._wait_for_hint(kinds, mark)
        finally:
            del self._waiting[kinds]
            for waiter in waiters:  # only if something broke: nobody is to wait for ever
                waiter.future.cancel()

    async def _claim_while_successful(self, waiters: deque[WaitingClaim]) -> None:
        """Let claims ask, twice as many each time, for as long as all of them find something."""
        batch_size = 1
        while True:
            asking = _first_waiting(waiters, batch_size)
            if not asking:
                return
            found_nothing = False
            for waiter, answer in zip(asking, await self._execute_claims(asking), strict=True):
                if answer == [] and not waiter.future.done() and not self.ended:
                    found_nothing = True  # it waits on, where it stands
                else:
                    await self._deliver(waiter, answer)
            if found_nothing:
                return
            batch_size = min(batch_size * 2, _BATCH_MAX)

    async def _claim_once(self, waiter: WaitingClaim) -> None:
        (answer,) = await self._execute_claims([waiter])
        await self._deliver(waiter, answer)

    async def _execute_claims(self, asking: Sequence[WaitingClaim]) -> list[Any]:
        """Let claims ask together; if that cannot be, each of them hears it, and none waits for nothing."""
        try:
            return await self._engine.aexecute_many([waiter.asking() for waiter in asking])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return [error] * len(asking)

    async def _deliver(self, waiter: WaitingClaim, answer: list[LeasedTask] | Exception) -> None:
        if not waiter.future.done():
            if isinstance(answer, Exception):
                waiter.future.set_exception(answer)
            else:
                waiter.future.set_result(answer)
        elif isinstance(answer, list) and answer:
            await requeue_undelivered(self._engine, answer, _NO_CLIENT_REASON)

    async def _wait_for_hint(self, kinds: Kinds, mark: int) -> None:
        """Wait for a hint of work, or until it is time to look all the same."""
        loop = asyncio.get_running_loop()
        hinted = asyncio.Event()

        def on_hint() -> None:
            loop.call_soon_threadsafe(hinted.set)

        if not self._engine.hints.subscribe(kinds, mark, on_hint):
            return
        try:
            async with asyncio.timeout(self._engine.hints.poll_delay(kinds, self._poll_seconds)):
                await hinted.wait()
        except TimeoutError:
            return
        finally:
            self._engine.hints.unsubscribe(kinds, on_hint)


def _first_waiting(waiters: deque[WaitingClaim], batch_size: int) -> list[WaitingClaim]:
    """Return the first who still wait; they stay where they stand, so that they can be let go while they ask."""
    while waiters and waiters[0].future.done():
        waiters.popleft()
    return list(islice((waiter for waiter in waiters if not waiter.future.done()), batch_size))


async def requeue_undelivered(engine: ClaimExecutor, tasks: Sequence[LeasedTask], reason: str) -> None:
    """Give back tasks that reached nobody, without using up a try; what cannot be is given back by its lease."""
    await engine.aexecute_many([commands.Requeue(lease=task.lease, reason=reason) for task in tasks])
