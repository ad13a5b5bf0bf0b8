"""One try of one task: its handler runs, and the house is told how it ended."""

import asyncio
import inspect
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from callsheet.core.errors import BadInput, LeaseLost, Refusal
from callsheet.core.redact import clean
from callsheet.protocol import Complete, Fail, Reported
from callsheet.worker.cache import Cache
from callsheet.worker.context import Context
from callsheet.worker.errors import Canceled, Dismissed, GiveUp, Leaving, Retry, Unreachable
from callsheet.worker.facts import Tell, Trouble
from callsheet.worker.hand import Hand
from callsheet.worker.heart import Heart
from callsheet.worker.link import Link
from callsheet.worker.patience import pauses
from callsheet.worker.scratch import Scratch, remove

Handler = Callable[[Context], Any] | Callable[[Context], Awaitable[Any]]
_MESSAGE_CHARS_MAX = 2_000
_AFTER_SECONDS_MAX = 10.0


class Try:
    """A handler with a task in hand."""

    def __init__(self, hand: Hand, link: Link, heart: Heart, tell: Tell) -> None:
        self._hand = hand
        self._link = link
        self._heart = heart
        self._tell = tell

    def run(self, handler: Handler, scratch: Scratch, cache: Cache | None) -> str:
        """Run the handler, report, and say in a word how it ended."""
        folders: list[Path] = []

        def folder() -> Path:
            lease = self._hand.work.lease
            folders.append(scratch.task(f"{lease.task_id}-{lease.attempt}"))
            return folders[0]

        try:
            ctx = Context(self._hand, self._link, folder, cache, self._heart.news)
            output, error = _ended(self._hand, handler, ctx)
        finally:
            for made in folders:
                remove(made)
        try:
            return self._finish(ctx, output, error)
        except Exception as trouble:  # noqa: BLE001 - the lease runs out, and the task is another's
            self._tell(Trouble(f"Reporting {self._hand.work.kind} failed", trouble))
            return "unreported"

    def _finish(self, ctx: Context, output: Any, error: BaseException | None) -> str:
        stop = self._hand.stop
        if stop is Leaving:
            return "requeued"
        self._say_rest()
        if error is None:
            return self._complete(ctx, output)
        if stop is Canceled:
            return self._fail("canceled", "Stopped as asked.", retryable=False, how="canceled")
        return "lost" if stop is not None else self._failed(error)

    def _say_rest(self) -> None:
        """Tell what the handler said last before its task ends; afterwards nobody would listen."""
        hand = self._hand
        for pause in pauses():
            if not hand.unsaid or hand.over or hand.stop not in {None, Canceled}:
                return
            if not self._heart.say(hand):
                time.sleep(pause)

    def _complete(self, ctx: Context, output: Any) -> str:
        lease = self._hand.work.lease
        try:
            plain = json.loads(json.dumps(output, allow_nan=False))  # what is no JSON is refused here as everywhere
            told = Complete(lease=lease, output=plain, files=list(ctx.files), delivered=ctx.delivered)
            return self._report(lambda: self._link.complete(told), "completed")
        except (Refusal, TypeError, ValueError) as refused:
            self._tell(Trouble(f"The result of {self._hand.work.kind} was refused", refused))
            code = refused.code if isinstance(refused, Refusal) else "invalid_output"
            # What is wrong with the result itself will not get better.
            another = isinstance(refused, Refusal) and not isinstance(refused, BadInput)
            return self._fail(code, str(refused), retryable=None if another else False)

    def _failed(self, error: BaseException) -> str:
        if isinstance(error, Retry | GiveUp):
            resume = isinstance(error, Retry) and error.resume
            return self._fail(error.code, error.message, retryable=isinstance(error, Retry), resume=resume)
        self._tell(Trouble(f"{self._hand.work.kind} failed", error))
        if isinstance(error, Refusal):
            return self._fail(error.code, error.message, retryable=None)
        if isinstance(error, Unreachable):
            return self._fail("unreachable", str(error), retryable=True)
        return self._fail("task_failed", f"{type(error).__name__}: {error}", retryable=None)

    def _fail(self, code: str, text: str, *, retryable: bool | None, how: str = "failed", resume: bool = False) -> str:
        message = clean(text, _MESSAGE_CHARS_MAX)
        told = Fail(lease=self._hand.work.lease, code=code, message=message, retryable=retryable, resume=resume)
        return self._report(lambda: self._link.fail(told), how)

    def _report(self, send: Callable[[], Reported], how: str) -> str:
        """Send a report until the house answers, or the lease is over, within reason; heartbeats go on meanwhile."""
        tries_until = self._hand.tries_until()
        for pause in pauses():
            try:
                send()
            except (LeaseLost, Dismissed):
                return "lost"  # the task is another's by now, and what this one made is not wanted
            except Unreachable as error:
                if self._hand.over or self._hand.stop is Leaving or time.monotonic() >= tries_until:
                    raise
                time.sleep(max(pause, min(error.after_seconds, _AFTER_SECONDS_MAX)))
            else:
                return how
        raise AssertionError  # pauses never end


def _ended(hand: Hand, handler: Handler, ctx: Context) -> tuple[Any, BaseException | None]:
    try:
        made = handler(ctx)
        return asyncio.run(_awaited(hand, made)) if inspect.isawaitable(made) else made, None
    except BaseException as error:  # noqa: BLE001 - whatever it is, the house is told
        return None, error


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
