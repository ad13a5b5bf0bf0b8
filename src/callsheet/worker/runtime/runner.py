"""`WorkerRun`: the main loop of a worker. Registers, claims tasks, runs each in a thread, and shuts down."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from msgspec import Struct

from callsheet.api.worker_protocol import Claim, ClaimResult, Registration, Requeue, TaskPayload
from callsheet.core.model.errors import LeaseLost, Refusal
from callsheet.transport.backoff import backoff_delays
from callsheet.worker.errors import InvalidTokenError, RegistrationError, TaskLeaseLost, UnreachableError
from callsheet.worker.files.cache import Cache
from callsheet.worker.files.temp_folders import Scratch
from callsheet.worker.link.base import Link
from callsheet.worker.runtime.active_task import ActiveTask
from callsheet.worker.runtime.attempt import AttemptRunner, Handler
from callsheet.worker.runtime.heartbeater import Heartbeater
from callsheet.worker.runtime.scale_in_protection import ProtectionController, ScaleInProtection
from callsheet.worker.runtime.worker_events import (
    EventListener,
    TaskEnded,
    TaskStarted,
    WorkerError,
    WorkerReady,
    WorkerRegistered,
    WorkerStopped,
    WorkerWaiting,
    ignore_listener_errors,
    log_to_stderr,
)

_CLAIM_WAIT_SECONDS = 25.0
_HANDLER_STOP_SECONDS = 2.0
"""How long a shutdown waits for stopped handlers to return."""
_REREGISTRATIONS_MAX, _REREGISTRATIONS_WINDOW_SECONDS = 3, 600.0
_NOT_APPROVED = "worker_not_approved"
_APPROVAL_POLL_SECONDS = 5.0
_READY_POLL_SECONDS = 2.0
_DEFAULT_REASON = "the worker is shutting down"


class WorkerOptions(Struct, frozen=True):
    """Optional parts of a worker: temporary folders, file cache, scale-in protection, event listener."""

    scratch: Scratch | None = None
    cache: Cache | None = None
    protection: ScaleInProtection | None = None
    on_event: EventListener = log_to_stderr


class Shutdown(Struct, frozen=True):
    """A shutdown request. `cause` is a code (`shutdown`, `spot`), `reason` is text for people."""

    cause: str = "shutdown"
    reason: str = _DEFAULT_REASON
    grace_seconds: float = 0.0


class WorkerRun:
    """A running worker. It ends when it is stopped or drained, or when the server rejects its registration."""

    def __init__(
        self, handlers: Mapping[str, Handler], link: Link, concurrency: int, worker_options: WorkerOptions,
        check_ready: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._handlers = handlers
        self._readiness_check = check_ready
        self._link = link
        self._concurrency = concurrency
        self._cache = worker_options.cache
        self._emit = ignore_listener_errors(worker_options.on_event)
        self._scratch = worker_options.scratch or Scratch()
        self._controller = (
            ProtectionController(worker_options.protection, self._emit) if worker_options.protection else None
        )
        self._heartbeater = Heartbeater(link, self.drain, self._renew_token, self._emit)
        self._tasks: set[ActiveTask] = set()
        self._changed = threading.Condition()
        self._shutdown: Shutdown | None = None
        self._draining = False
        self._registered_at: float | None = None
        self._renewing = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._heartbeat_seconds = self._wait_seconds = _CLAIM_WAIT_SECONDS
        self._reregistered_at: deque[float] = deque(maxlen=_REREGISTRATIONS_MAX)
        self._waiting_reason: str | None = None
        self.failure: str | None = None
        """Why the server rejected the registration, if the run ended for that."""
        self._thread = threading.Thread(target=self._run, name="callsheet-worker", daemon=True)

    def start(self) -> None:
        self._scratch.open()
        self._heartbeater.start()
        if self._controller:
            self._controller.start()
        self._thread.start()

    def stop(self, grace_seconds: float = 0.0, cause: str = "shutdown", reason: str = _DEFAULT_REASON) -> None:
        """Stop and wait until it is done.

        The worker stops claiming, waits up to `grace_seconds` for running tasks, requeues the rest (this does not count
        as an attempt) and deregisters.
        """
        self.begin_shutdown(Shutdown(cause, reason, grace_seconds))
        self._ended.wait()

    def begin_shutdown(self, shutdown: Shutdown) -> None:
        """Begin to stop, without waiting for the end."""
        with self._changed:
            self._shutdown = self._shutdown or shutdown
            self._stopping.set()
            self._changed.notify_all()
        self._link.stop()

    def drain(self) -> None:
        """Stop claiming, and end when all running tasks have ended."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        self._link.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the run; return whether it has ended."""
        return self._ended.wait(seconds)

    @property
    def active_count(self) -> int:
        """The number of running tasks."""
        return len(self._tasks)

    @property
    def draining(self) -> bool:
        """Whether the worker has stopped claiming tasks."""
        return self._is_stopping()

    # -- lifecycle

    def _run(self) -> None:
        try:
            self._register()
            while not self._is_stopping():
                self._claim_tasks()
            with self._changed:  # drained: wait for the running tasks
                self._changed.wait_for(lambda: self._shutdown or not self._tasks)
        except RegistrationError as error:
            self.failure = str(error)
        finally:
            try:
                self._finish_shutdown(self._shutdown or Shutdown(reason="drained"))
            finally:
                self._ended.set()

    def _is_stopping(self) -> bool:
        return self._draining or self._shutdown is not None

    def _register(self) -> None:
        """Register; retry while the server is unreachable."""
        for pause in backoff_delays():
            if self._is_stopping():
                return
            try:
                registration = self._link.register(tuple(self._handlers), self._concurrency)
            except UnreachableError as error:
                self._report_waiting(f"The server is unreachable: {error}")
                self._stopping.wait(pause + error.retry_after_seconds)
            else:
                self._on_registered(registration)
                return

    def _on_registered(self, registration: Registration) -> None:
        self._registered_at, self._waiting_reason = time.monotonic(), None
        self._heartbeat_seconds = registration.heartbeat_seconds
        self._wait_seconds = min(_CLAIM_WAIT_SECONDS, registration.wait_seconds_max)
        self._emit(WorkerRegistered(registration.worker, registration.kinds, registration.approved))

    def _finish_shutdown(self, shutdown: Shutdown) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks, shutdown.grace_seconds)
            remaining = [task for task in self._tasks if task.begin_shutdown()]
        for task in remaining:
            self._requeue(task.work, shutdown)
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks, _HANDLER_STOP_SECONDS)
        self._heartbeater.stop()
        if self._registered_at is not None and self.failure is None:
            self._deregister(shutdown)
        if self._controller:
            self._controller.stop()
        self._link.close()
        self._scratch.close()
        self._emit(WorkerStopped(self.failure or shutdown.reason))

    def _deregister(self, shutdown: Shutdown) -> None:
        try:
            self._link.deregister(shutdown.reason)
        except (Refusal, UnreachableError, InvalidTokenError) as error:  # the server notices when heartbeats stop
            self._emit(WorkerError("Deregistering failed", error))

    # -- tasks

    def _claim_tasks(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping() or len(self._tasks) < self._concurrency)
            count = self._concurrency - len(self._tasks)
        if self._is_stopping():
            return
        if self._readiness_check is not None and not self._check_ready(self._readiness_check):
            return
        claimed = self._claim_with_retry(count)
        for work in claimed.tasks:
            self._start_task(work)
        if claimed.drain:
            self.drain()

    def _check_ready(self, check_ready: Callable[[], None]) -> bool:
        """Run the readiness check. Once it has passed, it is not repeated."""
        try:
            check_ready()
        except UnreachableError as error:
            if str(error) != self._waiting_reason:
                self._waiting_reason = str(error)
                self._emit(WorkerError("Not ready to claim tasks", error))
            self._stopping.wait(_READY_POLL_SECONDS)
            self._send_idle_heartbeat()
            return False
        self._readiness_check = None
        if self._waiting_reason is not None:
            self._waiting_reason = None
            self._emit(WorkerReady())
        return True

    def _send_idle_heartbeat(self) -> None:
        """Send a heartbeat without tasks, so that the server sees the worker and can drain it."""
        try:
            if self._link.heartbeat([], _READY_POLL_SECONDS).drain:
                self.drain()
        except InvalidTokenError as error:
            self._renew_token(error)
        except (Refusal, UnreachableError):
            return  # the next claim reports it

    def _claim_with_retry(self, count: int) -> ClaimResult:
        """Claim; retry while the server is unreachable or rejects the claim."""
        empty = ClaimResult([], drain=False)
        for pause in backoff_delays():
            if self._is_stopping():
                break
            try:
                claimed = self._link.claim(self._build_claim(count))
            except InvalidTokenError as error:
                self._stopping.wait(max(pause, self._renew_token(error).retry_after_seconds))
            except UnreachableError as error:
                self._report_waiting(f"The server is unreachable: {error}")
                self._stopping.wait(pause + error.retry_after_seconds)
            except Refusal as error:
                self._report_waiting(error.message)
                self._stopping.wait(_APPROVAL_POLL_SECONDS if error.code == _NOT_APPROVED else max(pause, 1.0))
            else:
                self._waiting_reason = None
                return claimed
        return empty

    def _build_claim(self, count: int) -> Claim:
        """Return the claim. It lists the running tasks, so that the server requeues tasks of a lost response."""
        return Claim(
            count=count,
            kinds=list(self._handlers),
            wait_seconds=self._wait_seconds,
            held_task_ids=self._held_task_ids(),
        )

    def _held_task_ids(self) -> list[str]:
        with self._changed:
            return [task.work.lease.task_id for task in self._tasks]

    def _start_task(self, work: TaskPayload) -> None:
        if self._shutdown is not None:
            self._requeue(work, self._shutdown)
            return
        task = ActiveTask(work, self._heartbeat_seconds, self._renew_token)
        with self._changed:
            self._tasks.add(task)
            if self._controller:
                self._controller.set_busy(busy=True)
        self._heartbeater.add(task)
        self._emit(TaskStarted(work))
        name = f"callsheet-{work.kind}-{work.lease.task_id[-6:]}"
        threading.Thread(target=self._run_task, args=(task,), name=name, daemon=True).start()

    def _run_task(self, task: ActiveTask) -> None:
        started_at, work = time.monotonic(), task.work
        try:
            outcome = AttemptRunner(task, self._link, self._heartbeater, self._emit).run(
                self._handlers[work.kind], self._scratch, self._cache
            )
            self._emit(TaskEnded(work, outcome, time.monotonic() - started_at))
        finally:
            self._heartbeater.remove(task)
            self._link.forget(work)
            with self._changed:
                self._tasks.discard(task)
                if self._controller and not self._tasks:
                    self._controller.set_busy(busy=False)
                self._changed.notify_all()

    def _requeue(self, work: TaskPayload, shutdown: Shutdown) -> None:
        try:
            self._link.requeue(Requeue(lease=work.lease, reason=shutdown.reason, cause=shutdown.cause))
        except LeaseLost:
            return  # the task has ended or was reassigned
        except (Refusal, UnreachableError, InvalidTokenError) as error:  # deregistering requeues it
            self._emit(WorkerError("Requeuing a task failed", error))

    # -- the worker's token

    def _renew_token(self, error: InvalidTokenError) -> UnreachableError:
        """Register again after the server rejected the token, in the thread that noticed it. Running tasks continue.

        The heartbeats that follow tell which leases the worker still has. Returns the error with which the rejected
        call is retried.
        """
        with self._renewing:
            renewed = self._registered_at is not None and error.sent_at < self._registered_at
            if not renewed and self.failure is None:
                self._report_waiting("The server no longer accepts this worker's token. The worker registers again.")
                try:
                    self._limit_renewals()
                    self._on_registered(
                        self._link.register(tuple(self._handlers), self._concurrency, self._held_task_ids())
                    )
                except UnreachableError as unreachable:
                    return unreachable
                except RegistrationError as rejection:
                    self._end_rejected(rejection)
                else:
                    self._reregistered_at.append(time.monotonic())
                    self._heartbeater.send_all_soon()
        return UnreachableError("the worker's token was replaced")

    def _limit_renewals(self) -> None:
        """Refuse to register again too often: then two workers probably use the same name."""
        if (
            len(self._reregistered_at) == _REREGISTRATIONS_MAX
            and time.monotonic() - self._reregistered_at[0] < _REREGISTRATIONS_WINDOW_SECONDS
        ):
            raise RegistrationError(
                "The server revoked this worker's token several times in a row: another worker has the same name. "
                "Give each worker its own name."
            )

    def _end_rejected(self, rejection: RegistrationError) -> None:
        """Stop all tasks and the run: the server has requeued the tasks."""
        self.failure = str(rejection)
        with self._changed:
            tasks = list(self._tasks)
        for task in tasks:
            task.request_stop(TaskLeaseLost)
        self.begin_shutdown(Shutdown(reason=self.failure))

    def _report_waiting(self, reason: str) -> None:
        """Emit a waiting event, once per reason."""
        if reason != self._waiting_reason:
            self._waiting_reason = reason
            self._emit(WorkerWaiting(reason))
