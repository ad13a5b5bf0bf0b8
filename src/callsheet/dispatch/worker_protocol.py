"""Task delivery and task reports of the worker protocol.

The HTTP routes of workers and the link of embedded workers both use this module, so that reports have the same effect.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from callsheet.api import worker_protocol
from callsheet.blobs.base import BlobError
from callsheet.core.model import commands
from callsheet.core.model.commands import LeasedTask, TaskState
from callsheet.core.model.errors import Refusal
from callsheet.dispatch.log_rate_limit import LogLimiter
from callsheet.dispatch.task_payloads import TaskPayloads
from callsheet.dispatch.waiting_claims import requeue_undelivered
from callsheet.engine.engine import Engine

_STORAGE_ERROR_CODE = "storage_unavailable"


class TaskReports:
    """Delivers tasks to workers and records what workers report."""

    def __init__(self, engine: Engine, payloads: TaskPayloads, log_limiter: LogLimiter | None = None) -> None:
        self._engine = engine
        self._payloads = payloads
        self._log_limiter = log_limiter

    async def deliver(self, tasks: Sequence[LeasedTask]) -> list[worker_protocol.TaskPayload]:
        """Return leased tasks as their worker receives them. If that fails, the tasks are requeued."""
        try:
            return await self._payloads.build_payloads(tasks)
        except BaseException:
            await requeue_undelivered(self._engine, tasks, "The server could not deliver the task.")
            raise

    async def heartbeat(
        self, heartbeats: Sequence[worker_protocol.TaskHeartbeat], worker_id: str
    ) -> list[worker_protocol.HeartbeatResult]:
        """Extend leases; each has its own result, in the order of the request."""
        answers: list[Any] = await self._engine.aexecute_many(
            [
                commands.Heartbeat(
                    lease=heartbeat.lease, lease_seconds=heartbeat.lease_seconds, progress=heartbeat.progress,
                    message=heartbeat.message, preview=heartbeat.preview, log=self._limit_log(worker_id, heartbeat.log),
                    worker_id=worker_id,
                )
                for heartbeat in heartbeats
            ]
        )  # fmt: skip
        return [await self._heartbeat_result(worker_id, *pair) for pair in zip(heartbeats, answers, strict=True)]

    def _limit_log(self, worker_id: str, lines: Sequence[str]) -> tuple[str, ...]:
        if self._log_limiter is None or not lines or len(lines) > self._engine.settings.limits.log_lines_max:
            return tuple(lines)  # too many lines are refused
        return self._log_limiter.limit_lines(worker_id, lines)

    async def _heartbeat_result(
        self, worker_id: str, heartbeat: worker_protocol.TaskHeartbeat, answer: commands.HeartbeatResult | Exception
    ) -> worker_protocol.HeartbeatResult:
        if isinstance(answer, Refusal):
            return worker_protocol.HeartbeatResult(
                heartbeat.lease.task_id, error=worker_protocol.RefusalInfo(answer.code, answer.message)
            )
        if isinstance(answer, Exception):
            raise answer
        result = worker_protocol.HeartbeatResult(heartbeat.lease.task_id, answer.lease_seconds, answer.cancel)
        if not (heartbeat.downloads or heartbeat.uploads):
            return result
        try:
            grants = await self.grant_files(worker_id, heartbeat)
        except Refusal as refusal:  # the lease is extended, and the other leases have their own results
            return replace(result, grants_error=worker_protocol.RefusalInfo(refusal.code, refusal.message))
        except BlobError:
            info = worker_protocol.RefusalInfo(_STORAGE_ERROR_CODE, "The file storage is unavailable. Retry later.")
            return replace(result, grants_error=info)
        return replace(result, grants=grants)

    async def grant_files(
        self, worker_id: str, request: worker_protocol.FileGrantsRequest | worker_protocol.TaskHeartbeat
    ) -> worker_protocol.FileGrants:
        """Return signed URLs for files of a leased task."""
        return await self._payloads.create_grants(
            await self._payloads.get_leased_task(worker_id, request.lease), request
        )

    async def previous_outputs(
        self, worker_id: str, request: worker_protocol.PreviousOutputsRequest
    ) -> worker_protocol.PreviousOutputs:
        """Return a page of the outputs of the stages before a leased task."""
        task = await self._payloads.get_leased_task(worker_id, request.lease)
        return await self._payloads.previous_outputs(task, request.cursor)

    async def complete(self, report: worker_protocol.Complete, worker_id: str) -> worker_protocol.ReportResult:
        """Verify the files of a task, then complete it."""
        task = await self._payloads.find_leased_task(worker_id, report.lease) if report.files else None
        if task is not None:  # if the lease has ended, the decision checks whether the report is a repetition
            await self._payloads.verify_files(task, report.files)
        return await self._execute(
            commands.Complete(
                lease=report.lease, output=report.output, files=tuple(report.files), delivered=report.delivered_percent,
                worker_id=worker_id,
            )
        )  # fmt: skip

    async def fail(self, report: worker_protocol.Fail, worker_id: str) -> worker_protocol.ReportResult:
        """Record that an attempt failed."""
        return await self._execute(
            commands.Fail(
                lease=report.lease, code=report.code, message=report.message, retryable=report.retryable,
                resume=report.resume, worker_id=worker_id,
            )
        )  # fmt: skip

    async def requeue(self, report: worker_protocol.Requeue, worker_id: str) -> worker_protocol.ReportResult:
        """Requeue a task; its attempt does not count."""
        return await self._execute(
            commands.Requeue(lease=report.lease, reason=report.reason, cause=report.cause, worker_id=worker_id)
        )

    async def record_submission(
        self, report: worker_protocol.ProviderSubmission, worker_id: str
    ) -> worker_protocol.ReportResult:
        """Record the provider's job id of a task."""
        return await self._execute(
            commands.RecordSubmission(lease=report.lease, provider=report.provider, ref=report.ref, worker_id=worker_id)
        )

    async def _execute(self, command: commands.Command) -> worker_protocol.ReportResult:
        result: TaskState = await self._engine.aexecute(command)
        return worker_protocol.ReportResult(
            result.task_id, result.status, result.job_status, result.skipped, result.replay
        )
