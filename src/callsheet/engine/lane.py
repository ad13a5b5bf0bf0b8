"""A lane: one thread with one writing connection. It runs all waiting commands as one batch.

While a batch commits, the next commands queue up, so no timer is needed and an idle lane runs a single command at
once. If the database refuses a batch or the connection is lost, the lane runs its commands one by one. Their ids do not
change, so a command that was already committed finds its own rows.

After a lost connection, commands are retried for a while. A database that answers and cannot be used (a full
or read-only disk, missing rights) stays so until an operator acts, so commands are answered at once.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from callsheet.core.model.commands import Command
from callsheet.core.model.errors import Overloaded
from callsheet.engine.batch import Batch, BatchResult
from callsheet.engine.command_queue import Answer, CommandQueue, Submission
from callsheet.settings import Settings
from callsheet.store.connection import ConnectionLost, DatabaseUnusable, TransactionConflict, UniqueConflict

NO_ANSWER = "The database does not answer."
_WAITED_TOO_LONG = "The request waited too long for its turn."
_CONFLICTS_MAX = 5
"""A unique conflict resolves after one or two retries; more would only delay other commands."""


class Unavailable(Exception):  # noqa: N818 - says what happened
    """The database was unreachable. The command may or may not have been committed."""


class WritesRefused(Unavailable):
    """The database cannot be used until an operator acts. The message says why."""


def is_temporary(error: Exception) -> bool:
    """Return whether a retry may succeed: the database was unreachable, or transactions conflicted."""
    if isinstance(error, UniqueConflict):  # the lane has retried it already
        return False
    return isinstance(error, Unavailable | ConnectionLost | TransactionConflict)


def unusable_reason(error: Exception) -> str | None:
    """Return what an operator must do, if the error says that the database cannot be used until then."""
    return str(error) if isinstance(error, WritesRefused | DatabaseUnusable) else None


class Lane:
    """Runs batches one after the other in its own thread."""

    def __init__(
        self,
        name: str,
        make_batch: Callable[[], Batch],
        on_done: Callable[[BatchResult], None],
        settings: Settings,
    ) -> None:
        self.wrote_at = time.monotonic()
        """When the lane last wrote something."""
        self._refusal: str | None = None
        """Why the database cannot be used, until the next batch that succeeds."""
        self._lost_at: float | None = None
        """Since when there is no connection."""
        self._busy_since: float | None = None
        """Since when the current batch runs, with its retries."""
        self._stalled_seconds = settings.write_check_seconds
        self._make_batch = make_batch
        self._on_done = on_done
        self._batch: Batch | None = None
        self._retry_seconds = settings.database_retry_seconds
        self.queue = CommandQueue(settings)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_forever, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def write_error(self) -> str | None:
        """Why the lane cannot write, as text, until it can again."""
        times = [since for since in (self._lost_at, self._busy_since) if since is not None]
        stalled = bool(times) and time.monotonic() - min(times) > self._stalled_seconds
        return self._refusal or (NO_ANSWER if stalled else None)

    def send(self, submission: Submission) -> None:
        """Queue commands; they are answered after the commit, from the lane's thread.

        Raises `Overloaded` if too many commands of this class wait, unless they are essential.
        """
        if not self.queue.put(submission):
            raise Unavailable("The engine is closed.")

    def stop(self) -> None:
        """Finish queued commands, then stop."""
        self._stopping.set()
        self.queue.close()
        self._thread.join()

    def _run_forever(self) -> None:
        while taken := self.queue.take():
            refusals = [Overloaded(_WAITED_TOO_LONG) for late in taken.expired for _ in late.commands]
            _deliver_results(taken.expired, refusals)
            commands = [command for submission in taken.submissions for command in submission.commands]
            if not commands:
                continue
            self._busy_since = time.monotonic()
            results = self._run_with_fallback(commands)
            self._busy_since = None
            _deliver_results(taken.submissions, results)
        if self._batch is not None:
            self._batch.connection.close()

    def _run_with_fallback(self, commands: Sequence[Command]) -> list[Any]:
        reason = ""
        for retrying in (False, True):
            try:
                return self._run(commands, retrying=retrying)
            except DatabaseUnusable as error:  # try once more: a new connection may reach another server
                reason = str(error)
            except Exception:  # noqa: BLE001 - run alone, only the command that causes the error gets it
                break
        else:
            return [WritesRefused(reason) for _ in commands]
        return self._run_one_by_one(commands)

    def _run_one_by_one(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands with one time limit, which counts from the loss of the connection: a longer outage has lasted.

        After that time, the first command still gets its attempt. If it does not reach the database, the others do not
        wait for it.
        """
        end = (self._lost_at or time.monotonic()) + self._retry_seconds
        results: list[Any] = []
        for command in commands:
            if results and self._lost_at is not None and time.monotonic() >= end:
                results.append(Unavailable(NO_ANSWER))
            else:
                results.append(self._run_single(command, end))
        return results

    def _run_single(self, command: Command, end: float) -> Any:
        """Run one command, with retries until the time limit."""
        pause = 0.005
        conflicts = 0
        while True:
            try:
                return self._run([command], retrying=True)[0]
            except DatabaseUnusable as error:
                return WritesRefused(str(error))
            except (ConnectionLost, TransactionConflict) as error:
                conflicts += isinstance(error, UniqueConflict)
                if conflicts == _CONFLICTS_MAX:
                    return error
                if time.monotonic() >= end or self._stopping.is_set():
                    return Unavailable(f"The database did not answer: {type(error).__name__}.")
            except Exception as error:  # noqa: BLE001 - the caller of this command gets it
                return error
            self._stopping.wait(pause)
            pause = min(pause * 2, 1.0)

    def _run(self, commands: Sequence[Command], *, retrying: bool) -> list[Any]:
        try:
            batch = self._batch or self._make_batch()
            self._batch = batch
            done = batch.run(commands, retrying=retrying)
        except ConnectionLost as error:
            self._note_failure(error)
            self._close_batch()
            raise
        self._lost_at = None
        if done.wrote:
            self._refusal = None
            self.wrote_at = time.monotonic()
        self._on_done(done)
        return done.results

    def _note_failure(self, error: ConnectionLost) -> None:
        if isinstance(error, DatabaseUnusable):
            self._refusal, self._lost_at = str(error), None
        else:
            self._refusal, self._lost_at = None, self._lost_at or time.monotonic()

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
        with suppress(RuntimeError):  # the loop is closed, so its callers no longer wait
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
