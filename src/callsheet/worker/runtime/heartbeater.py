"""The heart of a worker: one thread that prolongs all leases in hand, and tells the house how far the work is.

A house that says "later" is asked later, about all of them, for as long as no lease is in danger.
"""

import threading
import time
from collections.abc import Callable, Sequence

from callsheet.api.worker_protocol import HeartbeatResult
from callsheet.core.model.errors import Refusal
from callsheet.transport.backoff import add_jitter
from callsheet.worker.errors import InvalidTokenError, UnreachableError
from callsheet.worker.link.base import Link
from callsheet.worker.runtime.active_task import HEARTBEAT_RETRY_SECONDS, UPDATE_INTERVAL_SECONDS, ActiveTask
from callsheet.worker.runtime.events import EventListener, WorkerError

_IDLE_SECONDS = 3_600.0


class Heartbeater:
    """Beats for every task in hand, in as few calls as there can be."""

    def __init__(
        self, link: Link, on_drain: Callable[[], None], on_invalid_token: Callable[[], None], on_event: EventListener
    ) -> None:
        self._link = link
        self._on_drain = on_drain
        self._on_invalid_token = on_invalid_token
        self._emit = on_event
        self._tasks: set[ActiveTask] = set()
        self._urgent: set[ActiveTask] = set()
        self._retry_at = float("-inf")
        """Not before this does the house want to be asked again."""
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="callsheet-heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join()

    def add(self, task: ActiveTask) -> None:
        """Beat for one more task."""
        with self._wake:
            self._tasks.add(task)
            self._wake.notify_all()

    def remove(self, task: ActiveTask) -> None:
        """Beat for a task no longer."""
        with self._wake:
            self._tasks.discard(task)

    def wake(self) -> None:
        """Look again: a handler said something."""
        with self._wake:
            self._wake.notify_all()

    def send_now(self, task: ActiveTask) -> bool:
        """Beat for a task as soon as the house hears it, and return whether that was answered."""
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
        """Return how long nobody is due."""
        now = time.monotonic()
        return min((self._due_at(task) - now for task in self._open_tasks()), default=_IDLE_SECONDS)

    def _due_tasks(self, now: float) -> set[ActiveTask]:
        """Return the tasks to beat for now. Whoever is due in a moment goes with them: one call is enough for all."""
        due_by_task = {task: self._due_at(task) for task in self._open_tasks()}
        latest = now + UPDATE_INTERVAL_SECONDS if min(due_by_task.values(), default=_IDLE_SECONDS + now) <= now else now
        return {task for task in due_by_task if due_by_task[task] <= latest}

    def _open_tasks(self) -> set[ActiveTask]:
        """Return the tasks to beat for; one that was told to stop is not asked about again."""
        return {task for task in self._tasks if task.stop_reason is None} | self._urgent

    def _due_at(self, task: ActiveTask) -> float:
        """Return when to beat for a task: when it is due, and not before the house said, if its lease lasts so long."""
        next_heartbeat_at = float("-inf") if task in self._urgent else task.next_heartbeat_at()
        return max(next_heartbeat_at, min(self._retry_at, task.honor_retry_after_until))

    def _request_results(self, tasks: Sequence[ActiveTask]) -> Sequence[HeartbeatResult | Exception]:
        """Return an answer for each: without one, what happened instead, and the hand sends again."""
        try:
            response = self._link.heartbeat(
                [task.build_heartbeat() for task in tasks], min(task.heartbeat_timeout_seconds for task in tasks)
            )
        except InvalidTokenError as error:
            self._on_invalid_token()
            return [error] * len(tasks)
        except UnreachableError as error:
            self._retry_at = time.monotonic() + max(error.retry_after_seconds, add_jitter(HEARTBEAT_RETRY_SECONDS))
            return [error] * len(tasks)
        except Refusal as error:
            return self._send_in_halves(tasks) if len(tasks) > 1 else [error]  # one of them spoils it for all
        except Exception as error:  # noqa: BLE001 - no answer for any of them: sent again until their leases run out
            return [error] * len(tasks)
        self._retry_at = float("-inf")
        if response.drain:
            self._on_drain()
        return response.heartbeats

    def _send_in_halves(self, tasks: Sequence[ActiveTask]) -> Sequence[HeartbeatResult | Exception]:
        """Ask for one half, then for the other; if the house is gone or says "later", the other half waits, too."""
        middle = len(tasks) // 2
        first = self._request_results(tasks[:middle])
        if isinstance(first[-1], UnreachableError | InvalidTokenError):
            return [*first, *[first[-1]] * (len(tasks) - middle)]
        return [*first, *self._request_results(tasks[middle:])]

    def _handle_result(self, task: ActiveTask, result: HeartbeatResult | Exception, sent_at: float) -> None:
        task.apply_heartbeat_result(result, sent_at)
        error = result.error if isinstance(result, HeartbeatResult) else result if isinstance(result, Refusal) else None
        if error is not None and task.stop_reason is None:
            self._emit(WorkerError("A heartbeat was refused", Refusal(error.code, error.message)))
