"""A worker's link to an engine in the same process: no network, the same rules."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, TypeVar

from callsheet.blobs.local import LocalBlobs, Place
from callsheet.core import commands
from callsheet.core.commands import Beat, Leased, Made, TaskState
from callsheet.core.rows import File
from callsheet.engine import Engine
from callsheet.engine.engine import Unavailable
from callsheet.store.connection import StoreError
from callsheet.worker.errors import Unreachable
from callsheet.worker.link import Earlier, Kept, Said

T = TypeVar("T")
_PREVIEW = "preview"


class EngineLink:
    """Reaches an engine by its commands, and blobs by their places."""

    def __init__(self, engine: Engine, blobs: LocalBlobs, worker_id: str) -> None:
        self._engine = engine
        self._blobs = blobs
        self._worker_id = worker_id
        self._kinds: tuple[str, ...] = ()
        self._stopping = Event()

    # -- commands

    def claim(self, kinds: Sequence[str], count: int, wait_seconds: float) -> list[Leased]:
        self._kinds = tuple(kinds)
        command = commands.Claim(worker_id=self._worker_id, kinds=self._kinds, count=count)
        return _answered(lambda: self._engine.claim(command, wait_seconds, lambda: not self._stopping.is_set()))

    def heartbeat(self, beats: Sequence[tuple[Leased, Said]]) -> list[Beat | Exception]:
        many = [
            commands.Heartbeat(lease=task.lease, progress=said.progress, message=said.message, preview=said.preview)
            for task, said in beats
        ]
        return _answered(lambda: self._engine.execute_many(many))

    def complete(self, task: Leased, output: Any, files: Sequence[Made], delivered: int) -> TaskState:
        return self._execute(
            commands.Complete(lease=task.lease, output=output, files=tuple(files), delivered=delivered)
        )

    def fail(self, task: Leased, code: str, message: str, *, retryable: bool | None) -> TaskState:
        return self._execute(commands.Fail(lease=task.lease, code=code, message=message, retryable=retryable))

    def requeue(self, task: Leased, reason: str) -> TaskState:
        return self._execute(commands.Requeue(lease=task.lease, reason=reason))

    # -- files

    def put(self, task: Leased, no: int, body: bytes) -> None:
        self._blobs.put(_place(task, str(no)), body)

    def put_preview(self, task: Leased, body: bytes) -> None:
        self._blobs.put(_place(task, _PREVIEW), body)

    def before(self, task: Leased) -> list[Earlier]:
        return _answered(lambda: self._before(task))

    def read(self, task: Leased, file: Kept) -> bytes:
        rows = _answered(lambda: self._engine.read.fetch("file_of_tenant", id=file.id, tenant=task.tenant))
        found = File(*rows[0]) if rows else None
        if found is None or found.job_id != task.lease.job_id:
            raise FileNotFoundError(f"This job has no file {file.name!r}.")
        place = Place(found.tenant, found.job_id, found.task_id, found.attempt, str(found.no))
        with self._blobs.open(place) as blob:
            return blob.read()

    def stop(self) -> None:
        self._stopping.set()
        self._engine.hints.announce(self._kinds)

    # -- inside

    def _execute(self, command: commands.Command) -> TaskState:
        state: TaskState = _answered(lambda: self._engine.execute(command))
        return state

    def _before(self, task: Leased) -> list[Earlier]:
        read, job_id = self._engine.read, task.lease.job_id
        files: dict[tuple[str, int], list[Kept]] = defaultdict(list)
        for row in read.fetch("files_of", id=job_id):
            file = File(*row)
            kept = Kept(file.id, file.name, file.media_type, file.bytes, file.sha256)
            files[file.task_id, file.attempt].append(kept)
        outputs = {(document.owner_id, document.name): document.body for document in read.documents(job_id)}
        stages = {stage.id: stage for stage in read.stages(job_id) if stage.no < task.stage_no}
        return [
            Earlier(
                stages[one.stage_id].name, stages[one.stage_id].no, one.no,
                json.loads(outputs.get((one.id, f"output:{one.attempts}"), "null")), tuple(files[one.id, one.attempts]),
            )
            for one in read.tasks(job_id) if one.stage_id in stages and one.status == "completed"
        ]  # fmt: skip


def _place(task: Leased, name: str) -> Place:
    return Place(task.tenant, task.lease.job_id, task.lease.task_id, task.lease.attempt, name)


def _answered(call: Callable[[], T]) -> T:
    """Say in the worker's words that there was no answer."""
    try:
        return call()
    except (Unavailable, StoreError) as error:
        raise Unreachable(str(error)) from error
