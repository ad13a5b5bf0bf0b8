"""`Heartbeater`: the thread that extends the leases of all running tasks and sends their progress.

If the server answers `Retry-After`, all heartbeats wait that long, unless a lease would expire in the meantime.
"""

import threading
import time
from collections.abc import Callable, Sequence

from callsheet.api.worker_protocol import HeartbeatResult
from callsheet.core.model.errors import Refusal
from callsheet.transport.backoff import add_jitter
from callsheet.worker.errors import InvalidTokenError, UnreachableError
from callsheet.worker.link.base import Link
from callsheet.worker.runtime.active_task import (
    HEARTBEAT_RETRY_SECONDS,
    UPDATE_INTERVAL_SECONDS,
    ActiveTask,
    RenewToken,
)
from callsheet.worker.runtime.worker_events import EventListener, WorkerError

_IDLE_SECONDS = 3_600.0


class Heartbeater:
    """Sends the heartbeats of all running tasks, in as few requests as possible."""

    def __init__(
        self, link: Link, on_drain: Callable[[], None], renew_token: RenewToken, on_event: EventListener
    ) -> None:
        self._link = link
        self._on_drain = on_drain
        self._renew_token = renew_token
        self._emit = on_event
        self._tasks: set[ActiveTask] = set()
        self._urgent: set[ActiveTask] = set()
        self._retry_at = float("-inf")
        """The server asked for no request before this time."""
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="callsheet-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join()

    def add(self, task: ActiveTask) -> None:
        """Start sending heartbeats for a task."""
        with self._wake:
            self._tasks.add(task)
            self._wake.notify_all()

    def remove(self, task: ActiveTask) -> None:
        """Stop sending heartbeats for a task."""
        with self._wake:
            self._tasks.discard(task)

    def wake(self) -> None:
        """Recompute when the next heartbeat is due, after a handler reported something."""
        with self._wake:
            self._wake.notify_all()

    def send_all_soon(self) -> None:
        """Send the heartbeats of all tasks, to learn which leases the worker still has."""
        with self._wake:
            for task in self._tasks:
                task.send_heartbeat_soon()
            self._wake.notify_all()

    def send_now(self, task: ActiveTask) -> bool:
        """Send a heartbeat as soon as possible; return whether it was acknowledged."""
        acknowledged_before = task.acknowledged_count
        with self._wake:
            self._urgent.add(task)
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._stopping or task not in self._urgent)
        return task.acknowledged_count > acknowledged_before

    def _run(self) -> None:
        while True:
            with self._wake:
                idle_seconds = self._seconds_until_due()
                if idle_seconds > 0 and not self._stopping:
                    self._wake.wait(idle_seconds)
                if self._stopping:
                    return
                due = self._due_tasks(time.monotonic())
            if due:
                self._send_heartbeats([*due])
            with self._wake:
                self._urgent -= due
                self._wake.notify_all()

    def _send_heartbeats(self, tasks: Sequence[ActiveTask]) -> None:
        sent_at = time.monotonic()
        for task, result in zip(tasks, self._request_results(tasks), strict=True):
            self._handle_result(task, result, sent_at)

    def _seconds_until_due(self) -> float:
        """Return the time until the next heartbeat is due."""
        now = time.monotonic()
        return min((self._due_at(task) - now for task in self._open_tasks()), default=_IDLE_SECONDS)

    def _due_tasks(self, now: float) -> set[ActiveTask]:
        """Return the tasks whose heartbeat is due, and those due within the update interval: one request covers all."""
        due_by_task = {task: self._due_at(task) for task in self._open_tasks()}
        latest = now + UPDATE_INTERVAL_SECONDS if min(due_by_task.values(), default=_IDLE_SECONDS + now) <= now else now
        return {task for task in due_by_task if due_by_task[task] <= latest}

    def _open_tasks(self) -> set[ActiveTask]:
        """Return the tasks that need heartbeats. Stopped tasks do not."""
        return {task for task in self._tasks if task.stop_reason is None} | self._urgent

    def _due_at(self, task: ActiveTask) -> float:
        """Return when to send the heartbeat of a task: when due, but after `Retry-After` if the lease allows it."""
        next_heartbeat_at = float("-inf") if task in self._urgent else task.next_heartbeat_at()
        return max(next_heartbeat_at, min(self._retry_at, task.honor_retry_after_until))

    def _request_results(self, tasks: Sequence[ActiveTask]) -> Sequence[HeartbeatResult | Exception]:
        """Return a result, or the error, for each task. After an error the task sends its heartbeat again."""
        try:
            response = self._link.heartbeat(
                [task.build_heartbeat() for task in tasks], min(task.heartbeat_timeout_seconds for task in tasks)
            )
        except (InvalidTokenError, UnreachableError) as error:
            retryable = self._renew_token(error) if isinstance(error, InvalidTokenError) else error
            self._retry_at = time.monotonic() + max(retryable.retry_after_seconds, add_jitter(HEARTBEAT_RETRY_SECONDS))
            return [retryable] * len(tasks)
        except Refusal as error:
            return (
                self._send_in_halves(tasks) if len(tasks) > 1 else [error]
            )  # one invalid heartbeat fails the whole request
        except Exception as error:  # noqa: BLE001 - heartbeats are repeated until the leases expire
            return [error] * len(tasks)
        self._retry_at = float("-inf")
        if response.drain:
            self._on_drain()
        return response.results

    def _send_in_halves(self, tasks: Sequence[ActiveTask]) -> Sequence[HeartbeatResult | Exception]:
        """Send the heartbeats in two requests. If the first gets no response, the second is not sent."""
        middle = len(tasks) // 2
        first = self._request_results(tasks[:middle])
        if isinstance(first[-1], UnreachableError):
            return [*first, *[first[-1]] * (len(tasks) - middle)]
        return [*first, *self._request_results(tasks[middle:])]

    def _handle_result(self, task: ActiveTask, result: HeartbeatResult | Exception, sent_at: float) -> None:
        task.apply_heartbeat_result(result, sent_at)
        error = result.error if isinstance(result, HeartbeatResult) else result if isinstance(result, Refusal) else None
        if error is not None and task.stop_reason is None:
            self._emit(WorkerError("A heartbeat was rejected", Refusal(error.code, error.message)))
