"""A worker's link to an engine in the same process: no network, the same rules."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Event, Lock
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from callsheet.api.worker_protocol import (
    Claim,
    ClaimResult,
    Complete,
    Deregistered,
    Fail,
    FileGrantsRequest,
    HeartbeatResponse,
    HeartbeatResult,
    InputFile,
    PreviousOutput,
    ProviderSubmission,
    RefusalInfo,
    Registration,
    ReportResult,
    Requeue,
    TaskHeartbeat,
    TaskPayload,
)
from callsheet.blobs import object_keys
from callsheet.blobs.base import Blobs, StorageFullError, StorageUnavailableError
from callsheet.core.model import commands
from callsheet.core.model.commands import Lease, LeasedTask, OutputFile, TaskState
from callsheet.core.model.errors import BadInput, LeaseLost, NotFound, Refusal
from callsheet.core.model.rows import File, Task
from callsheet.dispatch.task_payloads import TaskPayloads
from callsheet.dispatch.waiting_claims import requeue_undelivered
from callsheet.engine import Engine
from callsheet.engine.background_thread import BackgroundThread
from callsheet.engine.engine import Unavailable
from callsheet.http.server.problems import Problem
from callsheet.store.connection import StoreError
from callsheet.worker.errors import UnreachableError
from callsheet.worker.link.base import LOST_LEASE_CODES, Check

T = TypeVar("T")
_HEARTBEAT_SECONDS, _CLAIM_WAIT_SECONDS_MAX = 10.0, 30.0
_UNPROCESSABLE = 422
_CLOSE_SECONDS = 5.0


class LoopThread(BackgroundThread):
    """An event loop in a thread of its own, where the calls of workers' threads ask the house as its edge does."""

    def __init__(self) -> None:
        super().__init__("desk")
        self._loop = asyncio.new_event_loop()
        self._stop_lock = Lock()
        """Nobody comes in behind the last call."""

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end, from any other thread."""
        with self._stop_lock:
            if self._stopping.is_set():
                call.close()
                raise UnreachableError("The house has closed.")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise UnreachableError("The house has closed.") from None

    def request_stop(self) -> None:
        with self._stop_lock:
            if not self._stopping.is_set():
                self._stopping.set()
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class EngineLink:
    """Reaches an engine by its commands, and blobs by their keys."""

    def __init__(self, engine: Engine, blobs: Blobs, worker_id: str) -> None:
        self._engine = engine
        self._blobs = blobs
        self._payloads = TaskPayloads(engine, blobs)
        self._worker_id = worker_id
        self._kinds: tuple[str, ...] = ()
        self._stopping = Event()
        self._loop_thread = LoopThread()
        self._loop_thread.start()

    # -- coming and going

    def register(self, kinds: Sequence[str], concurrency: int) -> Registration:
        """Come to work: a part of the house needs no token."""
        _ = concurrency
        return Registration(
            self._worker_id,
            "",
            list(kinds),
            approved=True,
            heartbeat_seconds=_HEARTBEAT_SECONDS,
            wait_seconds_max=_CLAIM_WAIT_SECONDS_MAX,
        )

    def deregister(self, reason: str) -> Deregistered:
        """Go: everything was given back before."""
        _ = reason
        return Deregistered(0)

    def stop(self) -> None:
        self._stopping.set()
        self._engine.hints.announce(self._kinds)

    def close(self) -> None:
        """Leave the engine to whoever opened it; a call that hangs in a storage is left behind."""
        self._loop_thread.stop(_CLOSE_SECONDS)

    # -- work

    def claim(self, request: Claim) -> ClaimResult:
        self._kinds = tuple(request.kinds or ())
        command = commands.Claim(worker_id=self._worker_id, kinds=self._kinds, count=request.count)

        def keep_waiting() -> bool:
            return not self._stopping.is_set()

        tasks = _translate_errors(lambda: self._engine.claim(command, request.wait_seconds, keep_waiting))
        return ClaimResult(self._run(self._build_payloads(tasks)) if tasks else [], drain=False)

    async def _build_payloads(self, tasks: Sequence[LeasedTask]) -> list[TaskPayload]:
        try:
            return await self._payloads.build_payloads(tasks)
        except BaseException:
            await requeue_undelivered(self._engine, tasks, "the house could not hand it out")
            raise

    def heartbeat(self, heartbeats: Sequence[TaskHeartbeat], timeout_seconds: float) -> HeartbeatResponse:
        _ = timeout_seconds
        heartbeat_commands = [
            commands.Heartbeat(
                lease=heartbeat_request.lease, lease_seconds=heartbeat_request.lease_seconds,
                progress=heartbeat_request.progress, message=heartbeat_request.message,
                preview=heartbeat_request.preview, log=tuple(heartbeat_request.log),
            )
            for heartbeat_request in heartbeats
        ]  # fmt: skip
        answers = _translate_errors(lambda: self._engine.execute_many(heartbeat_commands))
        return HeartbeatResponse(
            [
                _heartbeat_result(heartbeat_request, answer)
                for heartbeat_request, answer in zip(heartbeats, answers, strict=True)
            ],
            drain=False,
        )

    def record_submission(self, report: ProviderSubmission) -> ReportResult:
        return self._execute(commands.RecordSubmission(lease=report.lease, provider=report.provider, ref=report.ref))

    def complete(self, report: Complete) -> ReportResult:
        if report.files:
            self._run(self._verify_files(report))
        return self._execute(
            commands.Complete(
                lease=report.lease, output=report.output, files=tuple(report.files), delivered=report.delivered
            )
        )

    async def _verify_files(self, report: Complete) -> None:
        task = await self._payloads.find_leased_task(self._worker_id, report.lease)
        if task is not None:  # if it has ended, the rules know whether this is the same report again
            await self._payloads.verify_files(task, report.files)

    def fail(self, report: Fail) -> ReportResult:
        return self._execute(
            commands.Fail(
                lease=report.lease,
                code=report.code,
                message=report.message,
                retryable=report.retryable,
                resume=report.resume,
            )
        )

    def requeue(self, report: Requeue) -> ReportResult:
        return self._execute(commands.Requeue(lease=report.lease, reason=report.reason, cause=report.cause))

    def forget(self, work: TaskPayload) -> None:
        """Nothing is kept."""

    # -- files

    def input_file(self, work: TaskPayload, file_id: str) -> InputFile:
        return self._run(self._input_file(work.lease, file_id))

    async def _input_file(self, lease: Lease, file_id: str) -> InputFile:
        task = await self._payloads.get_leased_task(self._worker_id, lease)
        return (
            await self._payloads.create_grants(task, FileGrantsRequest(lease=lease, downloads=[file_id]))
        ).downloads[0]

    def download(self, work: TaskPayload, file: InputFile, into: Path, check: Check) -> None:
        check()
        self.input_file(work, file.id)  # it must be the task's to read
        (row,) = _translate_errors(lambda: self._engine.reads.fetch("files_by_id", ids=[file.id]))
        with (
            _translate_storage_errors(lambda: self._blobs.open(object_keys.file_key(File(*row)))) as blob,
            into.open("wb") as target,
        ):
            shutil.copyfileobj(blob, target)

    def upload(self, work: TaskPayload, output_file: OutputFile, body: bytes | Path, check: Check) -> None:
        check()
        task = self._leased_task(work)
        key = object_keys.output_key(task.tenant, task.job_id, task.id, task.attempts, output_file.no)
        _translate_storage_errors(lambda: self._blobs.put(key, body))

    def upload_preview(self, work: TaskPayload, picture: bytes, media_type: str) -> None:
        _ = media_type
        task = self._leased_task(work)
        key = object_keys.preview_key(task.tenant, task.job_id, task.id, task.attempts)
        _translate_storage_errors(lambda: self._blobs.put(key, picture, overwrite=True))

    def previous_outputs(self, work: TaskPayload) -> list[PreviousOutput]:
        return self._run(self._previous_outputs(work.lease))

    async def _previous_outputs(self, lease: Lease) -> list[PreviousOutput]:
        task = await self._payloads.get_leased_task(self._worker_id, lease)
        page = await self._payloads.previous_outputs(task)
        outputs = page.tasks
        while page.next is not None:
            page = await self._payloads.previous_outputs(task, page.next)
            outputs += page.tasks
        return [replace(previous, output=msgspec.json.decode(previous.output)) for previous in outputs]

    # -- inside

    def _execute(self, command: commands.Command) -> ReportResult:
        state: TaskState = _translate_errors(lambda: self._engine.execute(command))
        return ReportResult(state.task_id, state.status, state.job_status, state.skipped, state.replay)

    def _leased_task(self, work: TaskPayload) -> Task:
        return self._run(self._payloads.get_leased_task(self._worker_id, work.lease))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Ask the house as its edge does, and hear of a problem as over HTTP."""
        try:
            return _translate_errors(lambda: self._loop_thread.run(call))
        except Problem as problem:
            error_type = BadInput if problem.status == _UNPROCESSABLE else Refusal
            raise error_type(problem.code, problem.message) from None


def _heartbeat_result(heartbeat_request: TaskHeartbeat, answer: Any) -> HeartbeatResult:
    if isinstance(answer, Refusal):
        return HeartbeatResult(heartbeat_request.lease.task_id, error=RefusalInfo(answer.code, answer.message))
    if isinstance(answer, Exception):
        raise UnreachableError(str(answer)) from answer
    return HeartbeatResult(heartbeat_request.lease.task_id, answer.lease_seconds, answer.cancel)


def _translate_errors(call: Callable[[], T]) -> T:
    """Say in the worker's words that there was no answer, or that a lease is not this worker's."""
    try:
        return call()
    except NotFound as refusal:
        raise LeaseLost(refusal.message) if refusal.code in LOST_LEASE_CODES else refusal from None
    except (Unavailable, StoreError) as error:
        raise UnreachableError(str(error)) from error


def _translate_storage_errors(call: Callable[[], T]) -> T:
    """The same, for the store of blobs."""
    try:
        return call()
    except (StorageUnavailableError, StorageFullError) as error:
        raise UnreachableError(str(error)) from error
