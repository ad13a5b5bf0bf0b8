"""`ActiveTask`: the state of a running task, shared by its handler and the heartbeat thread.

It holds the updates that were not sent yet, the deadlines of the lease and the reason to stop. Deadlines use the local
monotonic clock: a handler is stopped when 80 % of its lease has passed without a renewal.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from callsheet.api.worker_protocol import HeartbeatResult, TaskHeartbeat, TaskPayload
from callsheet.core.model.errors import LeaseLost, NotFound
from callsheet.core.model.plural import pluralize
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
"""Minimum interval between two progress reports of a task; updates in between are coalesced to the latest."""
HEARTBEAT_RETRY_SECONDS = 1.0
"""Delay before an unanswered heartbeat is sent again."""
RETRY_SECONDS_MAX = 600.0
"""How long a call is retried before the attempt fails: a longer outage should not occupy the machine."""
LOG_LINES_MAX, LOG_LINES_PER_HEARTBEAT_MAX = 1_000, 90
"""Unsent log lines that are kept, and log lines per heartbeat."""
RenewToken = Callable[[InvalidTokenError], UnreachableError]
"""Registers the worker again, and returns the error with which the rejected call is retried."""
_STOP_FRACTION, _HONOR_RETRY_AFTER_FRACTION = 0.8, 0.6


class ActiveTask:
    """A task that this worker has leased and runs. Thread-safe."""

    def __init__(self, work: TaskPayload, heartbeat_seconds: float, renew_token: RenewToken) -> None:
        self.work = work
        self.renew_token = renew_token
        now = time.monotonic()
        self.acknowledged_count = 0
        """The number of successful heartbeats."""
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
        """Until this time a `Retry-After` of the server is respected; later the lease would be at risk."""
        self._set_lease_deadlines(now, work.lease_seconds)
        self._heartbeat_due_at = now + self._heartbeat_interval_seconds
        self._stop: type[TaskStopped] | None = None
        self._stopped = threading.Event()
        self._on_stop: Callable[[], None] | None = None

    # -- called by the handler

    def set_progress(self, progress: int, message: str | None) -> None:
        with self._lock:
            self._progress = progress
            self._message = self._message if message is None else message
            self._update_no += 1

    def set_preview(self, picture: int) -> None:
        """Record the number of the newest preview; it is sent with the progress."""
        with self._lock:
            self._progress = self._progress or 0
            self._preview = picture
            self._update_no += 1

    def append_log(self, lines: list[str]) -> None:
        """Append log lines. If too many are unsent, the oldest are dropped and the log says how many."""
        with self._lock:
            self._lines.extend(lines)
            while len(self._lines) > LOG_LINES_MAX:
                self._lines.popleft()
                self._lines_dropped += 1

    @property
    def preview_acknowledged(self) -> bool:
        """Whether the server has acknowledged the newest preview."""
        return self._preview == self._preview_acknowledged

    @property
    def stop_reason(self) -> type[TaskStopped] | None:
        """Why the handler must stop; None if it may continue."""
        if self._stop is None and time.monotonic() >= self._stop_at:
            self.request_stop(TaskLeaseLost)
        return self._stop

    @property
    def lease_expired(self) -> bool:
        """Whether the lease has expired by the local clock."""
        return time.monotonic() >= self._lease_expires_at

    def raise_if_stopped(self) -> None:
        """Raise the stop reason, if there is one."""
        if (stop := self.stop_reason) is not None:
            raise stop

    def call_with_retry(self, call: Callable[[], T]) -> T:
        """Repeat a call while the server is unreachable, for at most `RETRY_SECONDS_MAX` or until the task stops."""
        retry_deadline = self.retry_deadline()
        for pause in backoff_delays():
            self.raise_if_stopped()
            try:
                return call()
            except LeaseLost:
                self.request_stop(TaskLeaseLost)
            except (UnreachableError, InvalidTokenError) as error:
                if time.monotonic() >= retry_deadline:
                    raise
                retryable = self.renew_token(error) if isinstance(error, InvalidTokenError) else error
                self._sleep(max(pause, retryable.retry_after_seconds))
        raise AssertionError("backoff_delays() never ends")

    @staticmethod
    def retry_deadline() -> float:
        """Return the deadline of retries that begin now."""
        return time.monotonic() + RETRY_SECONDS_MAX

    def on_stop(self, call: Callable[[], None] | None) -> None:
        """Set the callback for a stop request. It may run in any thread; after a stop it runs immediately."""
        with self._lock:
            self._on_stop = call
            now = call if self._stop is not None else None
        if now is not None:
            now()

    # -- called by the heartbeat thread

    def next_heartbeat_at(self) -> float:
        """Return when the next heartbeat is due, or the handler must be stopped."""
        update_due_at = (
            self._last_sent_at + UPDATE_INTERVAL_SECONDS if self._has_unsent_updates() else self._heartbeat_due_at
        )
        return min(self._heartbeat_due_at, update_due_at, self._stop_at)

    def send_heartbeat_soon(self) -> None:
        """Make the next heartbeat due now."""
        self._heartbeat_due_at = time.monotonic()

    @property
    def has_unsent_updates(self) -> bool:
        """Whether there is progress or log output that the server has not acknowledged."""
        with self._lock:
            return self._has_unsent_updates()

    @property
    def heartbeat_timeout_seconds(self) -> float:
        """The timeout of a heartbeat request."""
        return max(self._heartbeat_interval_seconds, HEARTBEAT_RETRY_SECONDS)

    def build_heartbeat(self) -> TaskHeartbeat:
        """Return the next heartbeat, with the updates that were not acknowledged yet."""
        with self._lock:
            self._lines.extendleft(reversed(self._lines_sent))
            self._lines_sent = [
                self._lines.popleft() for _ in range(min(len(self._lines), LOG_LINES_PER_HEARTBEAT_MAX))
            ]
            self._lines_dropped_sent = self._lines_dropped
            dropped_notice = (
                [f"({pluralize(self._lines_dropped, 'line', verb='was')} dropped here)"] if self._lines_dropped else []
            )
            lease, log, self._last_sent_at = self.work.lease, [*dropped_notice, *self._lines_sent], time.monotonic()
            if self._update_no == self._update_no_acknowledged:
                return TaskHeartbeat(lease=lease, log=log)
            self._update_no_sent, self._preview_sent = self._update_no, self._preview
            return TaskHeartbeat(
                lease=lease, progress=self._progress, message=self._message, preview=self._preview, log=log
            )

    def apply_heartbeat_result(self, result: HeartbeatResult | Exception, sent_at: float) -> None:
        """Apply the result of a heartbeat: new deadlines, cancellation, or a lost lease."""
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
                self._acknowledge_sent()  # rejected by the server: do not send it again
            self._heartbeat_due_at = (
                time.monotonic() + min(HEARTBEAT_RETRY_SECONDS, self._heartbeat_interval_seconds) / 2
            )
            self._last_sent_at = max(self._last_sent_at, self._heartbeat_due_at - UPDATE_INTERVAL_SECONDS)

    def begin_shutdown(self) -> bool:
        """Stop the handler for a shutdown; return False if it was already stopped for another reason."""
        self.request_stop(WorkerShutdown)
        return self._stop is WorkerShutdown

    def request_stop(self, stop: type[TaskStopped]) -> None:
        """Stop the handler. Only the first reason is kept."""
        with self._lock:
            if self._stop is not None:
                return
            self._stop = stop
            self._stopped.set()
            call = self._on_stop
        if call is not None:
            call()

    # -- helpers

    def _sleep(self, seconds: float) -> None:
        """Sleep until the time has passed or the task is stopped."""
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
    return isinstance(result, LeaseLost | NotFound)
