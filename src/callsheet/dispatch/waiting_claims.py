"""Claims that wait for tasks. Claims of the same kinds are one group, so that an idle fleet needs few queries.

A claim that finds no task joins its group. On a hint, or when a poll is due, the first claim of the group is executed.
While all executed claims find tasks, twice as many are executed next.
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
_NO_CLIENT_REASON = "The worker no longer waited for the task."
_FRESH_SECONDS = 1.0
_BATCH_MAX = 256
"""Claims in one batch."""


class ClaimExecutor(Protocol):
    """The part of an engine that waiting claims use."""

    hints: Hints

    async def aexecute_many(self, many: Sequence[Command]) -> list[Any]: ...


class WaitingClaim(NamedTuple):
    """A claim, the future of its result, and when it began to wait."""

    command: Claim
    future: "asyncio.Future[list[LeasedTask]]"
    since: float

    def current_command(self) -> Claim:
        """Return the command with the time that it has waited, which is the age of its `held_task_ids`."""
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
        """Whether the server is shutting down and accepts no more claims."""
        return self._end.is_set()

    @property
    def count(self) -> int:
        """Number of waiting claims."""
        return sum(not waiter.future.done() for waiters in self._waiting.values() for waiter in waiters)

    async def claim(self, command: Claim, wait_seconds: float) -> list[LeasedTask]:
        """Claim tasks, and wait if there are none. If the caller is canceled meanwhile, its tasks are requeued."""
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
        """Wait without claiming, for a worker that has no allowed kind, so that it does not retry at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end.wait()

    def end(self) -> None:
        """End all waiting claims with no tasks. Call it from the loop's thread."""
        self._end.set()
        self._release(lambda _: True)

    def release_worker(self, worker_id: str) -> None:
        """End the waiting claims of a worker with no tasks, so that it learns of a change."""
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
        """Serve the claims that wait for these kinds until none is left."""
        try:
            while True:
                mark = self._engine.hints.mark(kinds)
                await self._claim_while_successful(waiters)
                if not _first_waiting(waiters, 1):
                    return
                await self._wait_for_hint(kinds, mark)
        finally:
            del self._waiting[kinds]
            for waiter in waiters:  # only after an error: no claim may wait forever
                waiter.future.cancel()

    async def _claim_while_successful(self, waiters: deque[WaitingClaim]) -> None:
        """Execute claims, twice as many each time, while all of them find tasks."""
        batch_size = 1
        while True:
            batch = _first_waiting(waiters, batch_size)
            if not batch:
                return
            found_nothing = False
            for waiter, result in zip(batch, await self._execute_claims(batch), strict=True):
                if result == [] and not waiter.future.done() and not self.ended:
                    found_nothing = True  # it keeps its position and continues to wait
                else:
                    await self._deliver(waiter, result)
            if found_nothing:
                return
            batch_size = min(batch_size * 2, _BATCH_MAX)

    async def _claim_once(self, waiter: WaitingClaim) -> None:
        (result,) = await self._execute_claims([waiter])
        await self._deliver(waiter, result)

    async def _execute_claims(self, batch: Sequence[WaitingClaim]) -> list[Any]:
        """Execute claims in one batch. If the batch fails, the error is the result of each claim."""
        try:
            return await self._engine.aexecute_many([waiter.current_command() for waiter in batch])
        except Exception as error:  # noqa: BLE001 - every waiting caller gets it
            return [error] * len(batch)

    async def _deliver(self, waiter: WaitingClaim, result: list[LeasedTask] | Exception) -> None:
        if not waiter.future.done():
            if isinstance(result, Exception):
                waiter.future.set_exception(result)
            else:
                waiter.future.set_result(result)
        elif isinstance(result, list) and result:
            await requeue_undelivered(self._engine, result, _NO_CLIENT_REASON)

    async def _wait_for_hint(self, kinds: Kinds, mark: int) -> None:
        """Wait for a hint of new tasks, or until the fallback poll is due."""
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
    """Return the first claims that still wait. They stay in the queue, so that they can be released meanwhile."""
    while waiters and waiters[0].future.done():
        waiters.popleft()
    return list(islice((waiter for waiter in waiters if not waiter.future.done()), batch_size))


async def requeue_undelivered(engine: ClaimExecutor, tasks: Sequence[LeasedTask], reason: str) -> None:
    """Requeue tasks that reached no worker; their attempts do not count. If this fails, their leases expire."""
    await engine.aexecute_many([commands.Requeue(lease=task.lease, reason=reason) for task in tasks])
