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

from callsheet.blobs import keys
from callsheet.blobs.base import Blobs, StorageAway, StorageFull
from callsheet.core import commands
from callsheet.core.commands import Lease, Leased, Made, TaskState
from callsheet.core.errors import BadInput, LeaseLost, Refusal, Unknown
from callsheet.core.rows import File, Task
from callsheet.engine import Engine
from callsheet.engine.background import Background
from callsheet.engine.engine import Unavailable
from callsheet.engine.room import give_back
from callsheet.http.handing import Handing
from callsheet.http.problem import Problem
from callsheet.protocol import (
    Beat,
    Beaten,
    Claim,
    Claimed,
    Complete,
    Earlier,
    Fail,
    Files,
    Given,
    Gone,
    Heartbeaten,
    Refused,
    Registered,
    Reported,
    Requeue,
    Submitted,
    Work,
)
from callsheet.store.connection import StoreError
from callsheet.worker.errors import Unreachable
from callsheet.worker.link import GONE, Check

T = TypeVar("T")
_BEAT_SECONDS, _WAIT_SECONDS = 10.0, 30.0
_UNPROCESSABLE = 422
_CLOSE_SECONDS = 5.0


class Desk(Background):
    """An event loop in a thread of its own, where the calls of workers' threads ask the house as its edge does."""

    def __init__(self) -> None:
        super().__init__("desk")
        self._loop = asyncio.new_event_loop()
        self._door = Lock()
        """Nobody comes in behind the last call."""

    def ask(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call to its end, from any other thread."""
        with self._door:
            if self._stopping.is_set():
                call.close()
                raise Unreachable("The house has closed.")
            asked = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return asked.result()
        except CancelledError:
            raise Unreachable("The house has closed.") from None

    def ask_to_stop(self) -> None:
        with self._door:
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
        self._handing = Handing(engine, blobs)
        self._worker_id = worker_id
        self._kinds: tuple[str, ...] = ()
        self._stopping = Event()
        self._desk = Desk()
        self._desk.start()

    # -- coming and going

    def register(self, kinds: Sequence[str], concurrency: int) -> Registered:
        """Come to work: a part of the house needs no token."""
        _ = concurrency
        return Registered(
            self._worker_id, "", list(kinds), approved=True, beat_seconds=_BEAT_SECONDS, wait_seconds_max=_WAIT_SECONDS
        )

    def deregister(self, reason: str) -> Gone:
        """Go: everything was given back before."""
        _ = reason
        return Gone(0)

    def stop(self) -> None:
        self._stopping.set()
        self._engine.hints.announce(self._kinds)

    def close(self) -> None:
        """Leave the engine to whoever opened it; a call that hangs in a storage is left behind."""
        self._desk.stop(_CLOSE_SECONDS)

    # -- work

    def claim(self, asked: Claim) -> Claimed:
        self._kinds = tuple(asked.kinds or ())
        command = commands.Claim(worker_id=self._worker_id, kinds=self._kinds, count=asked.count)

        def wanted() -> bool:
            return not self._stopping.is_set()

        tasks = _answered(lambda: self._engine.claim(command, asked.wait_seconds, wanted))
        return Claimed(self._run(self._handed(tasks)) if tasks else [], drain=False)

    async def _handed(self, tasks: Sequence[Leased]) -> list[Work]:
        try:
            return await self._handing.works(tasks)
        except BaseException:
            await give_back(self._engine, tasks, "the house could not hand it out")
            raise

    def heartbeat(self, beats: Sequence[Beat], within_seconds: float) -> Heartbeaten:
        _ = within_seconds
        many = [
            commands.Heartbeat(
                lease=beat.lease, lease_seconds=beat.lease_seconds, progress=beat.progress, message=beat.message,
                preview=beat.preview, log=tuple(beat.log),
            )
            for beat in beats
        ]  # fmt: skip
        answers = _answered(lambda: self._engine.execute_many(many))
        return Heartbeaten([_beaten(beat, answer) for beat, answer in zip(beats, answers, strict=True)], drain=False)

    def submitted(self, told: Submitted) -> Reported:
        return self._execute(commands.Submitting(lease=told.lease, provider=told.provider, ref=told.ref))

    def complete(self, told: Complete) -> Reported:
        if told.files:
            self._run(self._checked(told))
        return self._execute(
            commands.Complete(lease=told.lease, output=told.output, files=tuple(told.files), delivered=told.delivered)
        )

    async def _checked(self, told: Complete) -> None:
        task = await self._handing.live(self._worker_id, told.lease)
        if task is not None:  # if it has ended, the rules know whether this is the same report again
            await self._handing.check(task, told.files)

    def fail(self, told: Fail) -> Reported:
        return self._execute(
            commands.Fail(
                lease=told.lease, code=told.code, message=told.message, retryable=told.retryable, resume=told.resume
            )
        )

    def requeue(self, told: Requeue) -> Reported:
        return self._execute(commands.Requeue(lease=told.lease, reason=told.reason, cause=told.cause))

    def forget(self, work: Work) -> None:
        """Nothing is kept."""

    # -- files

    def given(self, work: Work, file_id: str) -> Given:
        return self._run(self._given(work.lease, file_id))

    async def _given(self, lease: Lease, file_id: str) -> Given:
        task = await self._handing.held(self._worker_id, lease)
        return (await self._handing.grants(task, Files(lease=lease, gets=[file_id]))).gets[0]

    def get(self, work: Work, file: Given, into: Path, check: Check) -> None:
        check()
        self.given(work, file.id)  # it must be the task's to read
        (row,) = _answered(lambda: self._engine.read.fetch("files_read", ids=[file.id]))
        with _stored(lambda: self._blobs.open(keys.of(File(*row)))) as blob, into.open("wb") as target:
            shutil.copyfileobj(blob, target)

    def put(self, work: Work, made: Made, body: bytes | Path, check: Check) -> None:
        check()
        task = self._held(work)
        key = keys.made(task.tenant, task.job_id, task.id, task.attempts, made.no)
        _stored(lambda: self._blobs.put(key, body))

    def put_preview(self, work: Work, picture: bytes, media_type: str) -> None:
        _ = media_type
        task = self._held(work)
        key = keys.preview(task.tenant, task.job_id, task.id, task.attempts)
        _stored(lambda: self._blobs.put(key, picture, over=True))

    def earlier(self, work: Work) -> list[Earlier]:
        return self._run(self._earlier(work.lease))

    async def _earlier(self, lease: Lease) -> list[Earlier]:
        task = await self._handing.held(self._worker_id, lease)
        page = await self._handing.earlier(task)
        told = page.tasks
        while page.next is not None:
            page = await self._handing.earlier(task, page.next)
            told += page.tasks
        return [replace(one, output=msgspec.json.decode(one.output)) for one in told]

    # -- inside

    def _execute(self, command: commands.Command) -> Reported:
        state: TaskState = _answered(lambda: self._engine.execute(command))
        return Reported(state.task_id, state.status, state.job_status, state.skipped, state.replay)

    def _held(self, work: Work) -> Task:
        return self._run(self._handing.held(self._worker_id, work.lease))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Ask the house as its edge does, and hear of a problem as over HTTP."""
        try:
            return _answered(lambda: self._desk.ask(call))
        except Problem as problem:
            kind = BadInput if problem.status == _UNPROCESSABLE else Refusal
            raise kind(problem.code, problem.message) from None


def _beaten(beat: Beat, answer: Any) -> Beaten:
    if isinstance(answer, Refusal):
        return Beaten(beat.lease.task_id, refused=Refused(answer.code, answer.message))
    if isinstance(answer, Exception):
        raise Unreachable(str(answer)) from answer
    return Beaten(beat.lease.task_id, answer.lease_seconds, answer.cancel)


def _answered(call: Callable[[], T]) -> T:
    """Say in the worker's words that there was no answer, or that a lease is not this worker's."""
    try:
        return call()
    except Unknown as refusal:
        raise LeaseLost(refusal.message) if refusal.code in GONE else refusal from None
    except (Unavailable, StoreError) as error:
        raise Unreachable(str(error)) from error


def _stored(call: Callable[[], T]) -> T:
    """The same, for the store of blobs."""
    try:
        return call()
    except (StorageAway, StorageFull) as error:
        raise Unreachable(str(error)) from error
