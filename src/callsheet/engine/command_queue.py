"""The queue of a lane: bounded, and ordered by class of work, so that reports of workers never wait behind submits."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from callsheet.core.model.commands import Command
from callsheet.core.model.errors import Overloaded
from callsheet.core.policy.admission import QueueLimits, QueueLoad, WorkClass, class_of, is_full, is_overloaded
from callsheet.engine.queue_stats import QueueStats
from callsheet.settings import Settings

Answer = Callable[[list[Any]], None]
_EMPTY = QueueLoad(0)


class Submission:
    """Commands of one caller and the callback for their answers, optionally on an event loop."""

    __slots__ = ("answer", "commands", "loop")

    def __init__(
        self, commands: Sequence[Command], answer: Answer, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.commands = commands
        self.answer = answer
        self.loop = loop


class Taken(NamedTuple):
    """Submissions to execute, and those that waited too long and are answered without being executed."""

    submissions: list[Submission]
    expired: list[Submission]


class _ClassQueue:
    """The waiting submissions of one class."""

    __slots__ = ("commands", "entries", "limits")

    def __init__(self, limits: QueueLimits | None) -> None:
        self.limits = limits
        """None if this class is never refused."""
        self.entries: deque[tuple[float, Submission]] = deque()
        self.commands = 0

    def load(self, now: float) -> QueueLoad:
        try:
            return QueueLoad(self.commands, now - self.entries[0][0])
        except IndexError:  # empty, or emptied by the lane since the caller looked
            return _EMPTY


class CommandQueue:
    """Submissions that wait for one lane. Any thread puts them, the lane takes them."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        batch_max = settings.limits.batch_commands_max
        wait_seconds_max = settings.queue_wait_seconds_max
        self.stats = QueueStats()
        self._clock = clock
        self._batch_max = batch_max
        self._timeout_seconds = settings.queue_timeout_seconds
        self._classes = {
            WorkClass.ESSENTIAL: _ClassQueue(None),
            WorkClass.CLAIM: _ClassQueue(QueueLimits(settings.claims_waiting_max, wait_seconds_max, batch_max)),
            WorkClass.WRITE: _ClassQueue(QueueLimits(settings.writes_waiting_max, wait_seconds_max, batch_max)),
        }
        """In the order in which they are taken."""
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    def is_overloaded(self, work_class: WorkClass) -> bool:
        """Return whether new requests of this class should be refused."""
        queue = self._classes[work_class]
        return queue.limits is not None and is_overloaded(queue.load(self._clock()), queue.limits)

    def put(self, submission: Submission) -> bool:
        """Add a submission; raise `Overloaded` if its class is full. Return False if the queue is closed.

        Only the number of waiting commands counts here: to refuse a request that was decoded already would waste that.
        """
        work_class = class_of(submission.commands)
        queue = self._classes[work_class]
        with self._changed:
            if self._closed:
                return False
            if queue.limits is not None and is_full(QueueLoad(queue.commands), queue.limits):
                self.stats.refused[work_class] += len(submission.commands)
                raise Overloaded
            queue.entries.append((self._clock(), submission))
            queue.commands += len(submission.commands)
            self._changed.notify()
        return True

    def take(self) -> Taken | None:
        """Wait for submissions, and take as many as fit into a batch; None if the queue is closed and empty."""
        with self._changed:
            while not any(queue.entries for queue in self._classes.values()):
                if self._closed:
                    return None
                self._changed.wait()
            taken, size = Taken([], []), 0
            for work_class, queue in self._classes.items():
                size = self._take_class(work_class, queue, taken, size)
            return taken

    def close(self) -> None:
        """Accept no more submissions. Those that wait can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _take_class(self, work_class: WorkClass, queue: _ClassQueue, taken: Taken, size: int) -> int:
        """Move submissions of one class to `taken`, and return the number of commands to execute."""
        now = self._clock()
        while queue.entries:
            put_at, submission = queue.entries[0]
            commands = len(submission.commands)
            expired = queue.limits is not None and now - put_at > self._timeout_seconds
            if not expired and size and size + commands > self._batch_max:
                break
            queue.entries.popleft()
            queue.commands -= commands
            if expired:
                self.stats.refused[work_class] += commands
                taken.expired.append(submission)
                continue
            self.stats.record_wait(work_class, now - put_at, commands)
            taken.submissions.append(submission)
            size += commands
        return size
