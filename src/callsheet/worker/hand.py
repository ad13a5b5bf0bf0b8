"""A task in hand: what its handler said, how long its lease lasts, and whether it must stop.

The handler's thread says, the heart tells; both meet here. Time is this machine's own, never the house's clock: a
handler stops when four fifths of its lease are over and nobody has prolonged it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from callsheet.core.counting import counted
from callsheet.core.errors import LeaseLost, Unknown
from callsheet.protocol import Beat, Beaten, Work
from callsheet.worker.errors import Canceled, Dismissed, Leaving, Lost, Stop, Unreachable
from callsheet.worker.link import GONE
from callsheet.worker.patience import pauses

T = TypeVar("T")
TELL_SECONDS = 0.2
"""How often the house is told of progress at most; what was said in between is told as the last of it."""
AGAIN_SECONDS = 1.0
"""How soon a heartbeat that was not answered is sent again."""
ANSWER_SECONDS_MAX = 600.0
"""How long a store that does not answer is asked before the try fails: it would keep a machine for nothing."""
LINES_MAX, LINES_PER_BEAT_MAX = 1_000, 90
"""Lines of the log that wait to be told, and how many of them one heartbeat takes."""
_SAFE, _PATIENT = 0.8, 0.6


class Hand:
    """One task in hand."""

    def __init__(self, work: Work, beat_seconds: float) -> None:
        self.work = work
        now = time.monotonic()
        self.heard_count = 0
        """How many heartbeats were answered."""
        self._pace = min(work.lease_seconds / 3, beat_seconds)
        self._lock = threading.Lock()
        self._progress: int | None = None
        self._message: str | None = None
        self._preview = self._preview_sent = self._preview_heard = 0
        self._said = self._sent = self._heard = 0
        self._lines: deque[str] = deque()
        self._lines_sent: list[str] = []
        self._left_out = self._left_out_sent = 0
        self._told_at = float("-inf")
        self.patient_until = now
        """Until then a house that says "later" is obeyed; afterwards the lease is in danger, and it is asked again."""
        self._lasts(now, work.lease_seconds)
        self._beat_at = now + self._pace
        self._stop: type[Stop] | None = None
        self._stopped = threading.Event()
        self._on_stop: Callable[[], None] | None = None

    # -- the handler's side

    def say(self, progress: int, message: str | None) -> None:
        with self._lock:
            self._progress = progress
            self._message = self._message if message is None else message
            self._said += 1

    def show(self, picture: int) -> None:
        """Say that there is a new preview; it goes out with the progress."""
        with self._lock:
            self._progress = self._progress or 0
            self._preview = picture
            self._said += 1

    def note(self, lines: list[str]) -> None:
        """Say lines of a log. If they come faster than they can be told, the oldest are left out, and that is said."""
        with self._lock:
            self._lines.extend(lines)
            while len(self._lines) > LINES_MAX:
                self._lines.popleft()
                self._left_out += 1

    @property
    def shown(self) -> bool:
        """Say whether the house knows of the newest preview."""
        return self._preview == self._preview_heard

    @property
    def stop(self) -> type[Stop] | None:
        """Return why the handler must stop, if it must."""
        if self._stop is None and time.monotonic() >= self._stop_at:
            self.end(Lost)
        return self._stop

    @property
    def over(self) -> bool:
        """Say whether the whole lease has run out, as far as this machine knows."""
        return time.monotonic() >= self._over_at

    def check(self) -> None:
        """Raise inside the handler what it must stop for."""
        if (stop := self.stop) is not None:
            raise stop

    def answered(self, call: Callable[[], T]) -> T:
        """Call until there is an answer, for as long as the task is in hand, within reason."""
        tries_until = self.tries_until()
        for pause in pauses():
            self.check()
            try:
                return call()
            except (LeaseLost, Dismissed):
                self.end(Lost)
            except Unreachable as error:
                if time.monotonic() >= tries_until:
                    raise
                self._rest(max(pause, error.after_seconds))
        raise AssertionError  # pauses never end

    @staticmethod
    def tries_until() -> float:
        """Return until when something that begins now is asked for."""
        return time.monotonic() + ANSWER_SECONDS_MAX

    def on_stop(self, call: Callable[[], None] | None) -> None:
        """Call back, from any thread, when the handler must stop; at once if it must already."""
        with self._lock:
            self._on_stop = call
            now = call if self._stop is not None else None
        if now is not None:
            now()

    # -- the heart's side

    def due_at(self) -> float:
        """Return when the house must hear of this task next, or the handler of its end."""
        told = self._told_at + TELL_SECONDS if self._unsaid() else self._beat_at
        return min(self._beat_at, told, self._stop_at)

    @property
    def unsaid(self) -> bool:
        """Say whether there is something that the house was not told."""
        with self._lock:
            return self._unsaid()

    @property
    def within_seconds(self) -> float:
        """Return how long an answer to a heartbeat may take."""
        return max(self._pace, AGAIN_SECONDS)

    def beat(self) -> Beat:
        """Return what to tell now; without news, a heartbeat only prolongs. What nobody heard is told again."""
        with self._lock:
            self._lines.extendleft(reversed(self._lines_sent))
            self._lines_sent = [self._lines.popleft() for _ in range(min(len(self._lines), LINES_PER_BEAT_MAX))]
            self._left_out_sent = self._left_out
            gap = [f"({counted(self._left_out, 'line', verb='was')} left out here)"] if self._left_out else []
            lease, log, self._told_at = self.work.lease, [*gap, *self._lines_sent], time.monotonic()
            if self._said == self._heard:
                return Beat(lease=lease, log=log)
            self._sent, self._preview_sent = self._said, self._preview
            return Beat(lease=lease, progress=self._progress, message=self._message, preview=self._preview, log=log)

    def heard(self, answer: Beaten | Exception, sent_at: float) -> None:
        """Take in what the house answered to a heartbeat."""
        if isinstance(answer, Beaten) and answer.refused is None:
            self.heard_count += 1
            self._told()
            self._lasts(sent_at, max(answer.lease_seconds, self._over_at - sent_at))
            self._beat_at = sent_at + self._pace
            if answer.cancel:
                self.end(Canceled)
        elif _is_gone(answer):
            self.end(Lost)
        else:
            if not isinstance(answer, Unreachable):
                self._told()  # refused: it is not said again
            self._beat_at = time.monotonic() + min(AGAIN_SECONDS, self._pace) / 2
            self._told_at = max(self._told_at, self._beat_at - TELL_SECONDS)

    def leave(self) -> bool:
        """Stop the handler because the worker goes away; False if it has stopped for another reason."""
        self.end(Leaving)
        return self._stop is Leaving

    def end(self, stop: type[Stop]) -> None:
        """Tell the handler to stop; the first reason counts."""
        with self._lock:
            if self._stop is not None:
                return
            self._stop = stop
            self._stopped.set()
            call = self._on_stop
        if call is not None:
            call()

    # -- inside

    def _rest(self, seconds: float) -> None:
        """Wait; a stop ends the wait."""
        self._stopped.wait(min(seconds, max(self._stop_at - time.monotonic(), 0)))

    def _unsaid(self) -> bool:
        return self._said > self._heard or bool(self._lines or self._lines_sent)

    def _told(self) -> None:
        with self._lock:
            self._heard, self._preview_heard = self._sent, self._preview_sent
            self._lines_sent, self._left_out = [], self._left_out - self._left_out_sent
            self._left_out_sent = 0

    def _lasts(self, since: float, seconds: float) -> None:
        self.patient_until = since + seconds * _PATIENT
        self._stop_at = since + seconds * _SAFE
        self._over_at = since + seconds


def _is_gone(answer: Beaten | Exception) -> bool:
    if isinstance(answer, Beaten):
        return answer.refused is not None and answer.refused.code in GONE
    return isinstance(answer, LeaseLost | Unknown | Dismissed)
