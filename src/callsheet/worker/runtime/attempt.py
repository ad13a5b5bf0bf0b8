"""`AttemptRunner`: runs the handler of one task and reports the outcome to the server."""

import asyncio
import inspect
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from callsheet.api.worker_protocol import Complete, Fail, ReportResult
from callsheet.core.model.errors import BadInput, LeaseLost, Refusal
from callsheet.core.policy.redaction import redact_error
from callsheet.transport.backoff import backoff_delays
from callsheet.worker.context import Context
from callsheet.worker.errors import (
    InvalidTokenError,
    NonRetryableError,
    RetryableError,
    TaskCanceled,
    UnreachableError,
    WorkerShutdown,
)
from callsheet.worker.files.cache import Cache
from callsheet.worker.files.temp_folders import Scratch, remove_folder
from callsheet.worker.link.base import Link
from callsheet.worker.runtime.active_task import ActiveTask
from callsheet.worker.runtime.heartbeater import Heartbeater
from callsheet.worker.runtime.worker_events import EventListener, WorkerError

Handler = Callable[[Context], Any] | Callable[[Context], Awaitable[Any]]
_MESSAGE_CHARS_MAX = 2_000
_RETRY_AFTER_SECONDS_MAX = 10.0
_FINAL_CODES = frozenset({"storage_quota_exceeded"})
"""Refusals that another attempt would meet too, after it has repeated the work."""


class AttemptRunner:
    """Runs one attempt of one task."""

    def __init__(self, task: ActiveTask, link: Link, heartbeater: Heartbeater, on_event: EventListener) -> None:
        self._task = task
        self._link = link
        self._heartbeater = heartbeater
        self._emit = on_event

    def run(self, handler: Handler, scratch: Scratch, cache: Cache | None) -> str:
        """Run the handler, report the outcome and return it (see `TaskEnded.outcome`)."""
        folders: list[Path] = []

        def create_folder() -> Path:
            lease = self._task.work.lease
            folders.append(scratch.create_task_folder(f"{lease.task_id}-{lease.attempt}"))
            return folders[0]

        try:
            ctx = Context(self._task, self._link, create_folder, cache, self._heartbeater.wake)
            output, error = _run_handler(self._task, handler, ctx)
        finally:
            for task_folder in folders:
                remove_folder(task_folder)
        try:
            return self._report_outcome(ctx, output, error)
        except Exception as report_error:  # noqa: BLE001 - the lease expires and the task is reassigned
            self._emit(WorkerError(f"Reporting the outcome of {self._task.work.kind} failed", report_error))
            return "unreported"

    def _report_outcome(self, ctx: Context, output: Any, error: BaseException | None) -> str:
        stop = self._task.stop_reason
        if stop is WorkerShutdown:
            return "requeued"
        self._flush_updates()
        if error is None:
            return self._report_completion(ctx, output)
        if stop is TaskCanceled:
            return self._report_failure("canceled", "The job was canceled.", retryable=False, outcome="canceled")
        return "lost" if stop is not None else self._report_error(error)

    def _flush_updates(self) -> None:
        """Send the last progress and log lines before the task ends; the server rejects them afterwards."""
        task = self._task
        for pause in backoff_delays():
            if not task.has_unsent_updates or task.lease_expired or task.stop_reason not in {None, TaskCanceled}:
                return
            if not self._heartbeater.send_now(task):
                time.sleep(pause)

    def _report_completion(self, ctx: Context, output: Any) -> str:
        lease = self._task.work.lease
        try:
            json_output = json.loads(json.dumps(output, allow_nan=False))  # rejects NaN and values that are not JSON
            report = Complete(lease=lease, output=json_output, files=list(ctx.files), delivered_percent=ctx.delivered)
            return self._send_report(lambda: self._link.complete(report), "completed")
        except (Refusal, TypeError, ValueError) as rejection:
            self._emit(WorkerError(f"The output of {self._task.work.kind} was rejected", rejection))
            code = rejection.code if isinstance(rejection, Refusal) else "invalid_output"
            # An invalid output is the same in the next attempt.
            may_succeed_later = isinstance(rejection, Refusal) and not isinstance(rejection, BadInput)
            return self._report_failure(
                code, str(rejection), retryable=None if may_succeed_later and code not in _FINAL_CODES else False
            )

    def _report_error(self, error: BaseException) -> str:
        if isinstance(error, RetryableError | NonRetryableError):
            resume = isinstance(error, RetryableError) and error.resume
            return self._report_failure(
                error.code, error.message, retryable=isinstance(error, RetryableError), resume=resume
            )
        self._emit(WorkerError(f"{self._task.work.kind} failed", error))
        if isinstance(error, Refusal):
            return self._report_failure(
                error.code, error.message, retryable=False if error.code in _FINAL_CODES else None
            )
        if isinstance(error, UnreachableError):
            return self._report_failure("unreachable", str(error), retryable=True)
        return self._report_failure("task_failed", f"{type(error).__name__}: {error}", retryable=None)

    def _report_failure(
        self, code: str, text: str, *, retryable: bool | None, outcome: str = "failed", resume: bool = False
    ) -> str:
        message = redact_error(text, _MESSAGE_CHARS_MAX)
        report = Fail(lease=self._task.work.lease, code=code, message=message, retryable=retryable, resume=resume)
        return self._send_report(lambda: self._link.fail(report), outcome)

    def _send_report(self, send: Callable[[], ReportResult], outcome: str) -> str:
        """Send a report until the server responds or the lease expires. Heartbeats continue meanwhile."""
        retry_deadline = self._task.retry_deadline()
        for pause in backoff_delays():
            try:
                send()
            except LeaseLost:
                return "lost"  # the task was reassigned, and this result is rejected
            except (UnreachableError, InvalidTokenError) as error:
                stopped = self._task.lease_expired or self._task.stop_reason is WorkerShutdown
                if stopped or time.monotonic() >= retry_deadline:
                    raise
                retryable = self._task.renew_token(error) if isinstance(error, InvalidTokenError) else error
                time.sleep(max(pause, min(retryable.retry_after_seconds, _RETRY_AFTER_SECONDS_MAX)))
            else:
                return outcome
        raise AssertionError("backoff_delays() never ends")


def _run_handler(task: ActiveTask, handler: Handler, ctx: Context) -> tuple[Any, BaseException | None]:
    try:
        result = handler(ctx)
        return asyncio.run(_await_result(task, result)) if inspect.isawaitable(result) else result, None
    except BaseException as error:  # noqa: BLE001 - every error is reported to the server
        return None, error


async def _await_result(task: ActiveTask, result: Awaitable[Any]) -> Any:
    """Await an async handler; a stop request cancels it."""
    loop, work = asyncio.get_running_loop(), asyncio.ensure_future(result)

    def stop() -> None:
        with suppress(RuntimeError):  # the handler and its event loop have ended
            loop.call_soon_threadsafe(work.cancel)

    task.on_stop(stop)
    try:
        return await work
    finally:
        task.on_stop(None)
