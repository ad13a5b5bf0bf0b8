"""A worker at work: claims as many tasks as it has free hands, runs each in a thread, reports how it ended."""

import asyncio
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from callsheet.core.commands import Leased
from callsheet.core.errors import BadInput, LeaseLost, Refusal
from callsheet.core.redact import clean
from callsheet.worker.context import Context
from callsheet.worker.errors import Canceled, GiveUp, Retry, Unreachable
from callsheet.worker.hand import Hand
from callsheet.worker.heart import Heart
from callsheet.worker.link import Link

Fault = Callable[[str, BaseException], None]
_WAIT_SECONDS = 30.0
_MESSAGE_CHARS_MAX = 2_000
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 5.0
_LEAVE_SECONDS = 2.0
"""How long a handler that was told to leave may take to do so before the shift ends without it."""


def to_stderr(what: str, error: BaseException) -> None:
    """Write down what went wrong, for whoever wrote the handler."""
    why = f" {error}\n" if isinstance(error, Unreachable) else f"\n{''.join(traceback.format_exception(error))}"
    sys.stderr.write(f"{what}:{why}")


class Shift:
    """One run of a worker, from start to stop."""

    def __init__(
        self, handlers: Mapping[str, Callable[[Context], Any]], link: Link, concurrency: int, beat_seconds_max: float,
        fault: Fault,
    ) -> None:  # fmt: skip
        self._handlers = handlers
        self._link = link
        self._concurrency = concurrency
        self._beat_seconds_max = beat_seconds_max
        self._fault = fault
        self._heart = Heart(link)
        self._hands: set[Hand] = set()
        self._free = threading.Condition()
        self._stopping = threading.Event()
        self._claimer = threading.Thread(target=self._claim, name="callsheet-claims", daemon=True)

    def start(self) -> None:
        self._heart.start()
        self._claimer.start()

    def stop(self, grace_seconds: float = 0.0) -> None:
        """Take no more work; give back, without using up a try, what does not end within the grace."""
        self._stopping.set()
        with self._free:
            self._free.notify_all()
        self._link.stop()
        self._claimer.join()
        self._idle(grace_seconds)
        with self._free:
            left = [hand for hand in self._hands if hand.leave()]
        for hand in left:
            self._give_back(hand.task)
        self._idle(_LEAVE_SECONDS)
        self._heart.stop()

    @property
    def busy(self) -> int:
        """How many tasks are in hand."""
        return len(self._hands)

    def _idle(self, seconds: float) -> bool:
        with self._free:
            return self._free.wait_for(lambda: not self._hands, seconds)

    # -- taking work

    def _claim(self) -> None:
        pause = _PAUSE_SECONDS
        while not self._stopping.is_set():
            with self._free:
                self._free.wait_for(lambda: self._stopping.is_set() or len(self._hands) < self._concurrency)
                count = self._concurrency - len(self._hands)
            if self._stopping.is_set():
                return
            try:
                tasks = self._link.claim(tuple(self._handlers), count, _WAIT_SECONDS)
                pause = _PAUSE_SECONDS
            except Exception as error:  # noqa: BLE001 - the worker outlives a house that is away for a while
                self._fault("Claiming work failed", error)
                self._stopping.wait(pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
                continue
            for task in tasks:
                self._begin(task)

    def _begin(self, task: Leased) -> None:
        if self._stopping.is_set():
            self._give_back(task)
            return
        hand = Hand(task, self._beat_seconds_max)
        with self._free:
            self._hands.add(hand)
        self._heart.take(hand)
        name = f"callsheet-{task.kind}-{task.lease.task_id[-6:]}"
        threading.Thread(target=self._work, args=(hand,), name=name, daemon=True).start()

    def _give_back(self, task: Leased) -> None:
        try:
            self._link.requeue(task, "the worker goes away")
        except LeaseLost:
            return  # it ended in the meantime, or is another's
        except (Refusal, Unreachable) as error:  # the lease runs out
            self._fault("Giving a task back failed", error)

    # -- doing it

    def _work(self, hand: Hand) -> None:
        try:
            self._finish(hand, *self._ended(hand))
        except Exception as error:  # noqa: BLE001 - the lease runs out, and the task is another's
            self._fault(f"Reporting a {hand.task.kind} failed", error)
        finally:
            self._heart.drop(hand)
            with self._free:
                self._hands.discard(hand)
                self._free.notify_all()

    def _ended(self, hand: Hand) -> tuple[Context, Any, BaseException | None]:
        ctx = Context(hand, self._link, self._heart.news)
        try:
            made = self._handlers[hand.task.kind](ctx)
            return ctx, asyncio.run(_awaited(hand, made)) if inspect.isawaitable(made) else made, None
        except BaseException as error:  # noqa: BLE001 - whatever it is, the house is told
            return ctx, None, error

    def _finish(self, hand: Hand, ctx: Context, output: Any, error: BaseException | None) -> None:
        if error is None:
            self._complete(hand, ctx, output)
        elif hand.stop is Canceled:
            self._report(hand, lambda: self._link.fail(hand.task, "canceled", "Stopped as asked.", retryable=False))
        elif hand.stop is None:
            self._failed(hand, error)

    def _complete(self, hand: Hand, ctx: Context, output: Any) -> None:
        try:
            self._report(hand, lambda: self._link.complete(hand.task, output, ctx.files, ctx.delivered))
        except (BadInput, TypeError) as refused:  # the result itself cannot be taken, and will not get better
            self._fault(f"The result of a {hand.task.kind} was refused", refused)
            code, why = getattr(refused, "code", "invalid_output"), clean(str(refused), _MESSAGE_CHARS_MAX)
            self._report(hand, lambda: self._link.fail(hand.task, code, why, retryable=False))

    def _failed(self, hand: Hand, error: BaseException) -> None:
        retryable: bool | None = None
        if isinstance(error, Retry | GiveUp):
            code, text, retryable = error.code, error.message, isinstance(error, Retry)
        else:
            self._fault(f"A {hand.task.kind} failed", error)
            code, text = "task_failed", f"{type(error).__name__}: {error}"
        message = clean(text, _MESSAGE_CHARS_MAX)
        self._report(hand, lambda: self._link.fail(hand.task, code, message, retryable=retryable))

    def _report(self, hand: Hand, send: Callable[[], Any]) -> None:
        """Send a report until the house answers, or the lease has run out."""
        pause = _PAUSE_SECONDS
        while True:
            try:
                send()
            except LeaseLost:
                return  # the task is another's by now, and what this one made is not wanted
            except Unreachable:
                if hand.expired or hand.stop not in {None, Canceled}:
                    raise
            else:
                return
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)


async def _awaited(hand: Hand, made: Awaitable[Any]) -> Any:
    """Wait for an async handler; a stop cancels it where it waits."""
    loop, work = asyncio.get_running_loop(), asyncio.ensure_future(made)

    def stop() -> None:
        with suppress(RuntimeError):  # it ended in the meantime, and its loop with it
            loop.call_soon_threadsafe(work.cancel)

    hand.on_stop(stop)
    try:
        return await work
    finally:
        hand.on_stop(None)
