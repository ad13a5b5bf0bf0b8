"""`EngineLink`: the link of a worker that runs in the server's process. It calls the engine without HTTP."""

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
    InputFile,
    PreviousOutput,
    ProviderSubmission,
    Registration,
    ReportResult,
    Requeue,
    TaskHeartbeat,
    TaskPayload,
)
from callsheet.blobs import object_keys
from callsheet.blobs.base import BlobBusyError, Blobs, StorageFullError, StorageUnavailableError
from callsheet.core.model import commands
from callsheet.core.model.commands import Lease, OutputFile
from callsheet.core.model.errors import LeaseLost, NotFound, Overloaded, RateLimited
from callsheet.core.model.rows import File, Task
from callsheet.dispatch.task_payloads import TaskPayloads
from callsheet.dispatch.worker_protocol import TaskReports
from callsheet.engine import Engine
from callsheet.engine.engine import Unavailable
from callsheet.engine.stoppable_thread import BackgroundThread
from callsheet.store.connection import StoreError
from callsheet.worker.errors import UnreachableError
from callsheet.worker.link.base import LOST_LEASE_CODES, Check

T = TypeVar("T")
_HEARTBEAT_SECONDS, _CLAIM_WAIT_SECONDS_MAX = 10.0, 30.0
_CLOSE_SECONDS = 5.0


class LoopThread(BackgroundThread):
    """A thread with an event loop that runs the async calls of worker threads."""

    def __init__(self) -> None:
        super().__init__("embedded-link")
        self._loop = asyncio.new_event_loop()
        self._stop_lock = Lock()
        """Guards against calls after the stop."""

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from any other thread, and return its result."""
        with self._stop_lock:
            if self._stopping.is_set():
                call.close()
                raise UnreachableError("The server has shut down.")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise UnreachableError("The server has shut down.") from None

    def request_stop(self) -> None:
        with self._stop_lock:
            if not self._stopping.is_set():
                self._stopping.set()
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class EngineLink:
    """Calls the engine and the file storage directly."""

    def __init__(self, engine: Engine, blobs: Blobs, worker_id: str) -> None:
        self._engine = engine
        self._blobs = blobs
        self._payloads = TaskPayloads(engine, blobs)
        self._reports = TaskReports(engine, self._payloads)
        self._worker_id = worker_id
        self._kinds: tuple[str, ...] = ()
        self._stopping = Event()
        self._loop_thread = LoopThread()
        self._loop_thread.start()

    # -- registration

    def register(self, kinds: Sequence[str], concurrency: int, held_task_ids: Sequence[str] = ()) -> Registration:
        """Return a registration without a token: a worker in the server's process needs none."""
        _ = concurrency, held_task_ids
        return Registration(
            self._worker_id,
            "",
            list(kinds),
            approved=True,
            heartbeat_seconds=_HEARTBEAT_SECONDS,
            wait_seconds_max=_CLAIM_WAIT_SECONDS_MAX,
        )

    def deregister(self, reason: str) -> Deregistered:
        """Do nothing: the worker has requeued its tasks before."""
        _ = reason
        return Deregistered(0)

    def stop(self) -> None:
        self._stopping.set()
        self._engine.hints.announce(self._kinds)

    def close(self) -> None:
        """Stop the event loop. The engine stays open. A call that is blocked on storage is abandoned."""
        self._loop_thread.stop(_CLOSE_SECONDS)

    # -- tasks

    def claim(self, request: Claim) -> ClaimResult:
        self._kinds = tuple(request.kinds or ())
        command = commands.Claim(worker_id=self._worker_id, kinds=self._kinds, count=request.count)

        def keep_waiting() -> bool:
            return not self._stopping.is_set()

        tasks = _translate_errors(lambda: self._engine.claim(command, request.wait_seconds, keep_waiting))
        return ClaimResult(self._run(self._reports.deliver(tasks)) if tasks else [], drain=False)

    def heartbeat(self, heartbeats: Sequence[TaskHeartbeat], timeout_seconds: float) -> HeartbeatResponse:
        _ = timeout_seconds
        return HeartbeatResponse(self._run(self._reports.heartbeat(heartbeats, self._worker_id)), drain=False)

    def record_submission(self, report: ProviderSubmission) -> ReportResult:
        return self._run(self._reports.record_submission(report, self._worker_id))

    def complete(self, report: Complete) -> ReportResult:
        return self._run(self._reports.complete(report, self._worker_id))

    def fail(self, report: Fail) -> ReportResult:
        return self._run(self._reports.fail(report, self._worker_id))

    def requeue(self, report: Requeue) -> ReportResult:
        return self._run(self._reports.requeue(report, self._worker_id))

    def forget(self, work: TaskPayload) -> None:
        """Do nothing: this link caches nothing per task."""

    # -- files

    def input_file(self, work: TaskPayload, file_id: str) -> InputFile:
        return self._run(self._input_file(work.lease, file_id))

    async def _input_file(self, lease: Lease, file_id: str) -> InputFile:
        request = FileGrantsRequest(lease=lease, downloads=[file_id])
        return (await self._reports.grant_files(self._worker_id, request)).downloads[0]

    def download(self, work: TaskPayload, file: InputFile, into: Path, check: Check) -> None:
        check()
        self.input_file(work, file.id)  # checks that the task may read it
        (row,) = _translate_errors(lambda: self._engine.reads.fetch("files_by_id", ids=[file.id]))
        with (
            _translate_storage_errors(lambda: self._blobs.open(object_keys.file_key(File(*row)))) as blob,
            into.open("wb") as target,
        ):
            shutil.copyfileobj(blob, target)

    def upload(self, work: TaskPayload, output_file: OutputFile, body: bytes | Path, check: Check) -> None:
        check()
        task = self._leased_task(work)
        self._run(self._payloads.announce_outputs(task, work.lease, [output_file]))
        key = object_keys.output_key(task.tenant, task.job_id, task.id, task.attempts, output_file.no)
        _translate_storage_errors(lambda: self._blobs.put(key, body))

    def upload_preview(self, work: TaskPayload, picture: bytes, media_type: str) -> None:
        _ = media_type
        task = self._leased_task(work)
        self._run(self._payloads.announce_outputs(task, work.lease, [], preview=True))
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

    # -- helpers

    def _leased_task(self, work: TaskPayload) -> Task:
        return self._run(self._payloads.get_leased_task(self._worker_id, work.lease))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop and wait for its result."""
        return _translate_errors(lambda: self._loop_thread.run(call))


def _translate_errors(call: Callable[[], T]) -> T:
    """Translate errors of the engine into those that `Link` documents."""
    try:
        return call()
    except NotFound as refusal:
        raise LeaseLost(refusal.message) if refusal.code in LOST_LEASE_CODES else refusal from None
    except RateLimited as refusal:
        raise UnreachableError(refusal.message, refusal.retry_after_seconds) from None
    except (Unavailable, StoreError, Overloaded) as error:
        raise UnreachableError(str(error)) from error


def _translate_storage_errors(call: Callable[[], T]) -> T:
    """Translate errors of the file storage into those that `Link` documents."""
    try:
        return call()
    except (StorageUnavailableError, StorageFullError, BlobBusyError) as error:
        raise UnreachableError(str(error)) from error
