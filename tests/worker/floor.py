"""A floor where work is done: an engine on a place, a folder for files, and links whose way to the house may fail."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from callsheet.blobs.local import LocalBlobs, Place
from callsheet.config import Settings
from callsheet.core import commands
from callsheet.core.commands import Beat, Leased, Made, TaskState
from callsheet.core.recipe import Backoff, Recipe, Retry, StageSpec
from callsheet.core.rows import File, Job, Task
from callsheet.embedded import EngineLink
from callsheet.engine import Engine
from callsheet.engine.loops import Pulse, Sweeper
from callsheet.store.verify import Violation, check
from callsheet.worker import Said, Shift, Unreachable, Worker
from tests.support.waiting import wait_until

TENANT, USER = "acme", "ada"
AT_ONCE = Backoff(base_seconds=0)
SECONDS = 20.0


class Watched(EngineLink):
    """A link that remembers what went over it, and fails when it is told to."""

    def __init__(self, engine: Engine, blobs: LocalBlobs, worker_id: str) -> None:
        super().__init__(engine, blobs, worker_id)
        self.asked: list[int] = []
        """How many tasks each claim asked for."""
        self.claimed: list[Leased] = []
        self.beats: list[Said] = []
        self.reports: list[str] = []
        self.deaf = False
        """Heartbeats are not answered."""
        self.reports_lost = 0
        """How many reports get through while their answers do not come back."""

    def claim(self, kinds: Sequence[str], count: int, wait_seconds: float) -> list[Leased]:
        self.asked.append(count)
        tasks = super().claim(kinds, count, wait_seconds)
        self.claimed.extend(tasks)
        return tasks

    def heartbeat(self, beats: Sequence[tuple[Leased, Said]]) -> list[Beat | Exception]:
        if self.deaf:
            raise Unreachable("nobody there")
        answers = super().heartbeat(beats)
        self.beats.extend(said for _, said in beats)
        return answers

    def complete(self, task: Leased, output: Any, files: Sequence[Made], delivered: int) -> TaskState:
        self.reports.append("complete")
        state = super().complete(task, output, files, delivered)
        if self.reports_lost:
            self.reports_lost -= 1
            raise Unreachable("the answer was lost")
        return state


class Floor:
    """An engine with its sweeper, a user with credits, and shifts that are over when the floor closes."""

    def __init__(self, place: str, folder: Path) -> None:
        self.engine = Engine.open(place, Settings(patience_seconds=5))
        self.blobs = LocalBlobs(folder)
        self.over = threading.Event()
        """Set at the end, so that a handler that waits for ever ends with its test."""
        self.faults: list[str] = []
        self._shifts: list[Shift] = []
        self._sweeper = Pulse(Sweeper(self.engine), self.engine.read.now, 0.05, lambda *_: None)
        self._sweeper.start()
        self.engine.execute(commands.PutTenant(tenant=TENANT))
        self.engine.execute(commands.TopUp(tenant=TENANT, user=USER, amount=100))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for shift in self._shifts:
            shift.stop()
        self._sweeper.stop()
        broken = self.broken()
        self.engine.close()
        assert broken == []

    def link(self, name: str = "w1") -> Watched:
        return Watched(self.engine, self.blobs, name)

    def start(self, worker: Worker, link: Watched | None = None, concurrency: int = 1) -> Shift:
        shift = worker.start(
            link or self.link(), concurrency, fault=lambda what, error: self.faults.append(f"{what}: {error}")
        )
        self._shifts.append(shift)
        return shift

    def submit(self, *stages: StageSpec, input: Any = None, **recipe: Any) -> str:
        """Submit a job of its own workflow: one task of kind draw for 10 credits, unless it says otherwise."""
        recipe.setdefault("lease_seconds", 30)
        recipe.setdefault("retry", Retry(backoff=AT_ONCE))
        made = Recipe(name="work", price=10, stages=list(stages) or [StageSpec(name="draw", kind="draw")], **recipe)
        self.engine.execute(commands.PutWorkflow(recipe=made))
        submit = commands.Submit(tenant=TENANT, user=USER, workflow="work", input=input)
        job: commands.Submitted = self.engine.execute(submit)
        return job.job_id

    def cancel(self, job_id: str) -> None:
        self.engine.execute(commands.Cancel(tenant=TENANT, job_id=job_id, grace_seconds=600))

    def job(self, job_id: str) -> Job:
        return self.engine.read.job(TENANT, job_id)

    def ended(self, job_id: str) -> Job:
        """Wait for a job's end."""
        wait_until(lambda: self.job(job_id).finished_at, SECONDS)
        return self.job(job_id)

    def task(self, job_id: str, no: int = 1) -> Task:
        return self.engine.read.tasks(job_id)[no - 1]

    def outcomes(self, job_id: str) -> list[str | None]:
        return [attempt.outcome for attempt in self.engine.read.attempts(self.task(job_id).id)]

    def outputs(self, job_id: str) -> list[str]:
        found = self.engine.read.documents(job_id)
        return [document.body for document in found if document.name.startswith("output:")]

    def files(self, job_id: str) -> list[File]:
        return [File(*row) for row in self.engine.read.fetch("files_of", id=job_id)]

    def bytes_of(self, file: File) -> bytes:
        place = Place(file.tenant, file.job_id, file.task_id, file.attempt, str(file.no))
        with self.blobs.open(place) as blob:
            return blob.read()

    def broken(self) -> list[Violation]:
        connection = self.engine.database.connect(reading=True)
        try:
            return check(connection)
        finally:
            connection.close()
