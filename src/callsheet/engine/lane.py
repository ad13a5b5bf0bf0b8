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
from callsheet.core.model.commands import Command
from callsheet.engine.batch import Batch, BatchResult
from callsheet.store.connection import ConnectionLost, DiskFull, TransactionConflict, UniqueConflict

Answer = Callable[[list[Any]], None]
DISK_FULL_MESSAGE = "The disk of the database is full."
_CONFLICTS_MAX = 5
"""A unique conflict resolves after one or two retries; more would only delay other commands."""


class Unavailable(Exception):  # noqa: N818 - says what happened
    """The database was unreachable. The command may or may not have been committed."""


class Submission:
    """Commands of one caller and the callback for their answers, optionally on an event loop."""

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
        on_done: Callable[[BatchResult], None],
        settings: Settings,
    ) -> None:
        self.write_error: str | None = None
        """Why the lane cannot write, as text, until its next successful write."""
        self._make_batch = make_batch
        self._on_done = on_done
        self._batch: Batch | None = None
        self._batch_max = settings.limits.batch_commands_max
        self._retry_seconds = settings.database_retry_seconds
        self._queue: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._carried_over: Submission | None = None
        """A submission that did not fit into the previous batch."""
        self._stopping = threading.Event()
        self._send_lock = threading.Lock()
        """Guards against submissions after stop."""
        self._thread = threading.Thread(target=self._run_forever, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, submission: Submission) -> None:
        """Queue commands; they are answered after the commit, from the lane's thread."""
        with self._send_lock:
            if self._stopping.is_set():
                raise Unavailable("The engine is closed.")
            self._queue.put(submission)

    def stop(self) -> None:
        """Finish queued commands, then stop."""
        with self._send_lock:
            self._stopping.set()
            self._queue.put(None)
        self._thread.join()

    def _run_forever(self) -> None:
        while submissions := self._gather():
            commands = [command for submission in submissions for command in submission.commands]
            results = self._run_with_fallback(commands)
            _deliver_results(submissions, results)
        if self._batch is not None:
            self._batch.connection.close()

    def _gather(self) -> list[Submission]:
        """Wait for a submission and take all queued ones that fit; an empty list means stop."""
        first, self._carried_over = self._carried_over or self._queue.get(), None
        if first is None:
            return []
        submissions, size = [first], len(first.commands)
        with suppress(queue.Empty):
            while size < self._batch_max:
                submission = self._queue.get_nowait()
                if submission is None:
                    self._queue.put(None)  # for the next look: these are done first
                    break
                size += len(submission.commands)
                if size > self._batch_max:
                    self._carried_over = submission
                    break
                submissions.append(submission)
        return submissions

    def _run_with_fallback(self, commands: Sequence[Command]) -> list[Any]:
        try:
            return self._run(commands, retrying=False)
        except Exception:  # noqa: BLE001 - a refused batch, or a fault that is one command's own: each hears its own
            end = time.monotonic() + self._retry_seconds  # of the batch: its last caller waits no longer than its first
            return [self._run_single(command, end) for command in commands]

    def _run_single(self, command: Command, end: float) -> Any:
        """Run one command, with retries until the time limit."""
        pause = 0.005
        conflicts = 0
        while True:
            try:
                return self._run([command], retrying=True)[0]
            except DiskFull:
                return Unavailable(DISK_FULL_MESSAGE)
            except (ConnectionLost, TransactionConflict) as error:
                conflicts += isinstance(error, UniqueConflict)
                if conflicts == _CONFLICTS_MAX:
                    return error
                if time.monotonic() >= end or self._stopping.is_set():
                    return Unavailable(f"The database did not answer: {type(error).__name__}.")
            except Exception as error:  # noqa: BLE001 - this command's own fault, and its caller's to hear
                return error
            self._stopping.wait(pause)
            pause = min(pause * 2, 1.0)

    def _run(self, commands: Sequence[Command], *, retrying: bool) -> list[Any]:
        try:
            batch = self._batch or self._make_batch()
            self._batch = batch
            done = batch.run(commands, retrying=retrying)
        except ConnectionLost as error:
            self.write_error = DISK_FULL_MESSAGE if isinstance(error, DiskFull) else None
            self._close_batch()
            raise
        if done.wrote:
            self.write_error = None
        self._on_done(done)
        return done.results

    def _close_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.connection.close()


def _deliver_results(submissions: Sequence[Submission], results: list[Any]) -> None:
    """Answer all callers; an event loop is woken once for all of its callers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Answer, list[Any]]]] = {}
    start = 0
    for submission in submissions:
        end = start + len(submission.commands)
        own_results = results[start:end]
        start = end
        if submission.loop is None:
            submission.answer(own_results)
        else:
            by_loop.setdefault(submission.loop, []).append((submission.answer, own_results))
    for loop, answers in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, and its callers are gone
            loop.call_soon_threadsafe(_answer_all, answers)


def _answer_all(answers: list[tuple[Answer, list[Any]]]) -> None:
    for answer, results in answers:
        answer(results)


class ThreadFuture:
    """A future for a blocked thread."""

    __slots__ = ("_ready", "results")

    def __init__(self) -> None:
        self._ready = threading.Lock()
        self._ready.acquire()
        self.results: list[Any] = []

    def put(self, results: list[Any]) -> None:
        self.results = results
        self._ready.release()

    def wait_for_results(self) -> list[Any]:
        self._ready.acquire()
        return self.results
