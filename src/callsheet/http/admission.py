"""Admission of requests: refuses requests that would have to wait too long, before anything is spent on them.

A request is judged by its route when its headers have arrived: before authentication, and before its body is read.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable

from callsheet.core.policy.admission import WorkClass
from callsheet.engine.engine import Engine
from callsheet.engine.queue_stats import QueueStats
from callsheet.settings import HttpSettings

_DECIDE_SECONDS, _DECIDED_MIN, _DECIDED_MAX = 0.005, 16, 256
"""How long a turn decides about deferred requests, about how many at least and at most: the rest is for others."""
_REFUSED_AT_ONCE_MAX = 32
_RECENT_SECONDS = 1.0
_REFUSABLE = frozenset(WorkClass) - {WorkClass.ESSENTIAL}


class RequestAdmission:
    """Decides which requests a server starts. Only the event loop calls it.

    A class of requests is refused if too many of them are in progress, or if the engine has too much of that work. The
    load of the engine is looked up once in each turn of the loop.
    """

    def __init__(self, engine: Engine, settings: HttpSettings) -> None:
        self.stats = QueueStats()
        self.in_progress: Counter[WorkClass] = Counter()
        """Requests that were admitted and have no response yet, without those that wait for a body or an event."""
        self._engine = engine
        self._in_progress_max = {
            WorkClass.CLAIM: settings.claims_in_progress_max, WorkClass.WRITE: settings.writes_in_progress_max,
            WorkClass.READ: settings.reads_in_progress_max, WorkClass.STREAM: settings.reads_in_progress_max,
        }  # fmt: skip
        self._expected: Counter[WorkClass] = Counter()
        self._expected_before: Counter[WorkClass] = Counter()
        """Requests on connections that this turn, and the turn before, have accepted. They start in the next turns."""
        self._in_turn = False
        self._refused: frozenset[WorkClass] = frozenset()
        self._refused_at = -math.inf
        self._refused_in_turn = 0
        self._deferred: deque[Callable[[], None]] = deque()

    @property
    def is_refusing(self) -> bool:
        """Whether the server refuses requests at the moment, or did so shortly before."""
        return bool(self._refused) or time.monotonic() < self._refused_at + _RECENT_SECONDS

    def admits(self, work_class: WorkClass) -> bool:
        """Return whether to start a request. It is in progress until the caller lowers the number again."""
        if self.refuses(work_class):
            return False
        self.in_progress[work_class] += 1
        self._expected_before[work_class] = max(self._expected_before[work_class] - 1, 0)
        if work_class in _REFUSABLE and self._is_full(work_class):
            self._refused |= {work_class}
        return True

    def refuses(self, work_class: WorkClass) -> bool:
        """Return whether the current turn refuses such requests, and count the refusal."""
        refused = self.is_refused(work_class)
        if refused:
            self.stats.refused[work_class] += 1
            self._refused_at = time.monotonic()
            self._refused_in_turn += 1
        return refused

    def expect(self, work_class: WorkClass) -> None:
        """Count a request on a connection that was accepted, before the request is read."""
        self._expected[work_class] += 1
        if work_class in _REFUSABLE and self._is_full(work_class):
            self._refused |= {work_class}

    def is_refused(self, work_class: WorkClass) -> bool:
        """Return whether the current turn refuses such requests."""
        if not self._in_turn:
            self._begin_turn()
        return work_class in self._refused

    @property
    def should_defer(self) -> bool:
        """Whether this turn has refused so many requests that others are decided about later."""
        return bool(self._deferred) or self._refused_in_turn >= _REFUSED_AT_ONCE_MAX

    def defer(self, decide: Callable[[], None]) -> None:
        """Decide about a request in one of the next turns, in the order of arrival.

        A turn decides about a part of the deferred requests. Otherwise clients that are refused, and send the next
        request at once, could keep a turn from ending, and with it all responses.
        """
        if not self._deferred:
            asyncio.get_running_loop().call_soon(self._decide_deferred)
        self._deferred.append(decide)

    def _decide_deferred(self) -> None:
        self._in_turn = False  # responses may have made space since the turn began
        deferred = self._deferred
        end = time.monotonic() + _DECIDE_SECONDS
        for decided in range(min(len(deferred), _DECIDED_MAX)):
            if decided >= _DECIDED_MIN and time.monotonic() > end:
                break
            deferred.popleft()()
        if deferred:
            asyncio.get_running_loop().call_soon(self._decide_deferred)

    def _begin_turn(self) -> None:
        self._in_turn = True
        self._expected, self._expected_before = Counter(), self._expected
        self._refused_in_turn = 0
        self._refused = frozenset(
            one for one in _REFUSABLE if self._is_full(one) or self._engine.is_overloaded(one)
        )  # fmt: skip
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _is_full(self, work_class: WorkClass) -> bool:
        expected = self._expected[work_class] + self._expected_before[work_class]
        return self.in_progress[work_class] + expected >= self._in_progress_max[work_class]

    def _end_turn(self) -> None:
        self._in_turn = False
