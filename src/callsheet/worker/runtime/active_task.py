"""A task in hand: what its handler said, how long its lease lasts, and whether it must stop.

The handler's thread says, the heart tells; both meet here. Time is this machine's own, never the house's clock: a
handler stops when four fifths of its lease are over and nobody has prolonged it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from callsheet.api.worker_protocol import HeartbeatResult, TaskHeartbeat, TaskPayload
from callsheet.core.model.errors import LeaseLost, NotFound
from callsheet.core.model.plural import counted
from callsheet.transport.backoff import backoff_delays
from callsheet.worker.errors import (
    InvalidTokenError,
    TaskCanceled,
    TaskLeaseLost,
    TaskStopped,
    UnreachableError,
    WorkerShutdown,
)
from callsheet.worker.link.base import LOST_LEASE_CODES

T = TypeVar("T")
UPDATE_INTERVAL_SECONDS = 0.2
"""How often the house is told of progress at most; what was said in between is told as the last of it."""
HEARTBEAT_RETRY_SECONDS = 1.0
"""How soon a heartbeat that was not answered is sent again."""
RETRY_SECONDS_MAX = 600.0
"""How long a store that does not answer is asked before the try fails: it would keep a machine for nothing."""
LOG_LINES_MAX, LOG_LINES_PER_HEARTBEAT_MAX = 1_000, 90
"""Lines of the log that wait to be told, and how many of them one heartbeat takes."""
_STOP_FRACTION, _HONOR_RETRY_AFTER_FRACTION = 0.8, 0.6


class ActiveTask:
    """One task in hand."""

    def __init__(self, work: TaskPayload, heartbeat_seconds: float) -> None:
        self.work = work
        now = time.monotonic()
        self.acknowledged_count = 0
        """How many heartbeats were answered."""
        self._heartbeat_interval_seconds = min(work.lease_seconds / 3, heartbeat_seconds)
        self._lock = threading.Lock()
        self._progress: int | None = None
        self._message: str | None = None
        self._preview = self._preview_sent = self._preview_acknowledged = 0
        self._update_no = self._update_no_sent = self._update_no_acknowledged = 0
        self._lines: deque[str] = deque()
        self._lines_sent: list[str] = []
        self._lines_dropped = self._lines_dropped_sent = 0
        self._last_sent_at = float("-inf")
        self.honor_retry_after_until = now
        """Until then a house that says "later" is obeyed; afterwards the lease is in danger, and it is asked again."""
        self._set_lease_deadlines(now, work.lease_seconds)
        self._heartbeat_due_at = now + self._heartbeat_interval_seconds
        self._stop: type[TaskStopped] | None = None
        self._stopped = threading.Event()
        self._on_stop: Callable[[], None] | None = None

    # -- the handler's side

    def set_progress(self, progress: int, message: str | None) -> None:
        with self._lock:
            self._progress = progress
            self._message = self._message if message is None else message
            self._update_no += 1

    def set_preview(self, picture: int) -> None:
        """Say that there is a new preview; it goes out with the progress."""
        with self._lock:
            self._progress = self._progress or 0
            self._preview = picture
            self._update_no += 1

    def append_log(self, lines: list[str]) -> None:
        """Say lines of a log. If they come faster than they can be told, the oldest are left out, and that is said."""
        with self._lock:
            self._lines.extend(lines)
            while len(self._lines) > LOG_LINES_MAX:
                self._lines.popleft()
                self._lines_dropped += 1

    @property
    def preview_acknowledged(self) -> bool:
        """Say whether the house knows of the newest preview."""
        return self._preview == self._preview_acknowledged

    @property
    def stop_reason(self) -> type[TaskStopped] | None:
        """Return why the handler must stop, if it must."""
        if self._stop is None and time.monotonic() >= self._stop_at:
            self.request_stop(TaskLeaseLost)
        return self._stop

    @property
    def lease_expired(self) -> bool:
        """Say whether the whole lease has run out, as far as this machine knows."""
        return time.monotonic() >= self._lease_expires_at

    def raise_if_stopped(self) -> None:
        """Raise inside the handler what it must stop for."""
        if (stop := self.stop_reason) is not None:
            raise stop

    def call_with_retry(self, call: Callable[[], T]) -> T:
        """Call until there is an answer, for as long as the task is in hand, within reason."""
        retry_deadline = self.retry_deadline()
        for pause in backoff_delays():
            self.raise_if_stopped()
            try:
                return call()
            except (LeaseLost, InvalidTokenError):
                self.request_stop(TaskLeaseLost)
            except UnreachableError as error:
                if time.monotonic() >= retry_deadline:
                    raise
                self._sleep(max(pause, error.retry_after_seconds))
        raise AssertionError  # pauses never end

    @staticmethod
    def retry_deadline() -> float:
        """Return until when something that begins now is asked for."""
        return time.monotonic() + RETRY_SECONDS_MAX

    def on_stop(self, call: Callable[[], None] | None) -> None:
        """Call back, from any thread, when the handler must stop; at once if it must already."""
        with self._lock:
            self._on_stop = call
            now = call if self._stop is not None else None
        if now is not None:
            now()

    # -- the heart's side

    def next_heartbeat_at(self) -> float:
        """Return when the house must hear of this task next, or the handler of its end."""
        update_due_at = (
            self._last_sent_at + UPDATE_INTERVAL_SECONDS if self._has_unsent_updates() else self._heartbeat_due_at
        )
        return min(self._heartbeat_due_at, update_due_at, self._stop_at)

    @property
    def has_unsent_updates(self) -> bool:
        """Say whether there is something that the house was not told."""
        with self._lock:
            return self._has_unsent_updates()

    @property
    def heartbeat_timeout_seconds(self) -> float:
        """Return how long an answer to a heartbeat may take."""
        return max(self._heartbeat_interval_seconds, HEARTBEAT_RETRY_SECONDS)

    def build_heartbeat(self) -> TaskHeartbeat:
        """Return what to tell now; without news, a heartbeat only prolongs. What nobody heard is told again."""
        with self._lock:
            self._lines.extendleft(reversed(self._lines_sent))
            self._lines_sent = [
                self._lines.popleft() for _ in range(min(len(self._lines), LOG_LINES_PER_HEARTBEAT_MAX))
            ]
            self._lines_dropped_sent = self._lines_dropped
            dropped_notice = (
                [f"({counted(self._lines_dropped, 'line', verb='was')} left out here)"] if self._lines_dropped else []
            )
            lease, log, self._last_sent_at = self.work.lease, [*dropped_notice, *self._lines_sent], time.monotonic()
            if self._update_no == self._update_no_acknowledged:
                return TaskHeartbeat(lease=lease, log=log)
            self._update_no_sent, self._preview_sent = self._update_no, self._preview
            return TaskHeartbeat(
                lease=lease, progress=self._progress, message=self._message, preview=self._preview, log=log
            )

    def apply_heartbeat_result(self, result: HeartbeatResult | Exception, sent_at: float) -> None:
        """Take in what the house answered to a heartbeat."""
        if isinstance(result, HeartbeatResult) and result.error is None:
            self.acknowledged_count += 1
            self._acknowledge_sent()
            self._set_lease_deadlines(sent_at, max(result.lease_seconds, self._lease_expires_at - sent_at))
            self._heartbeat_due_at = sent_at + self._heartbeat_interval_seconds
            if result.cancel:
                self.request_stop(TaskCanceled)
        elif _is_lease_lost(result):
            self.request_stop(TaskLeaseLost)
        else:
            if not isinstance(result, UnreachableError):
                self._acknowledge_sent()  # refused: it is not said again
            self._heartbeat_due_at = (
                time.monotonic() + min(HEARTBEAT_RETRY_SECONDS, self._heartbeat_interval_seconds) / 2
            )
            self._last_sent_at = max(self._last_sent_at, self._heartbeat_due_at - UPDATE_INTERVAL_SECONDS)

    def begin_shutdown(self) -> bool:
        """Stop the handler because the worker goes away; False if it has stopped for another reason."""
        self.request_stop(WorkerShutdown)
        return self._stop is WorkerShutdown

    def request_stop(self, stop: type[TaskStopped]) -> None:
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

    def _sleep(self, seconds: float) -> None:
        """Wait; a stop ends the wait."""
        self._stopped.wait(min(seconds, max(self._stop_at - time.monotonic(), 0)))

    def _has_unsent_updates(self) -> bool:
        return self._update_no > self._update_no_acknowledged or bool(self._lines or self._lines_sent)

    def _acknowledge_sent(self) -> None:
        with self._lock:
            self._update_no_acknowledged, self._preview_acknowledged = self._update_no_sent, self._preview_sent
            self._lines_sent, self._lines_dropped = [], self._lines_dropped - self._lines_dropped_sent
            self._lines_dropped_sent = 0

    def _set_lease_deadlines(self, started_at: float, seconds: float) -> None:
        self.honor_retry_after_until = started_at + seconds * _HONOR_RETRY_AFTER_FRACTION
        self._stop_at = started_at + seconds * _STOP_FRACTION
        self._lease_expires_at = started_at + seconds


def _is_lease_lost(result: HeartbeatResult | Exception) -> bool:
    if isinstance(result, HeartbeatResult):
        return result.error is not None and result.error.code in LOST_LEASE_CODES
    return isinstance(result, LeaseLost | NotFound | InvalidTokenError)
