"""A floor where work is done: a whole house behind a socket, and links to it whose way may fail."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from callsheet.blobs import keys
from callsheet.blobs.base import Blobs
from callsheet.config import BlobSettings, HttpSettings, Settings
from callsheet.core import commands
from callsheet.core.commands import Made
from callsheet.core.recipe import Backoff, Recipe, Retry, StageSpec
from callsheet.core.rows import File, Job, Task
from callsheet.core.rows import Worker as WorkerRow
from callsheet.embedded import EngineLink
from callsheet.protocol import Beat, Claim, Claimed, Complete, Fail, Gone, Heartbeaten, Reported, Work
from callsheet.store.verify import Violation, check
from callsheet.worker import Cache, HttpLink, Kit, Link, Protection, Scratch, Shift, Unreachable, Worker
from callsheet.worker.facts import Ended, Fact, Trouble, Waiting
from callsheet.worker.link import Check
from tests.support.served import Served
from tests.support.waiting import wait_until

TENANT, USER = "acme", "ada"
AT_ONCE = Backoff(base_seconds=0)
SECONDS = 20.0


class Watched:
    """A link that remembers what went over it, and fails when it is told to."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.asked: list[int] = []
        """How many tasks each claim asked for."""
        self.claimed: list[Work] = []
        self.beats: list[Beat] = []
        self.reports: list[str] = []
        self.deaf = False
        """With work in hand, the house is not reached: no heartbeat, no claim, no goodbye."""
        self.unheard = 0
        """Heartbeats that were lost so."""
        self.mute = False
        """That a try failed cannot be said."""
        self.tamper = False
        """Files on disk change before they are put."""
        self.reports_lost = 0
        """How many reports get through while their answers do not come back."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def claim(self, asked: Claim) -> Claimed:
        if self.deaf and self.claimed:
            raise Unreachable("nobody there")
        self.asked.append(asked.count)
        claimed = self._link.claim(asked)
        self.claimed.extend(claimed.tasks)
        return claimed

    def heartbeat(self, beats: Sequence[Beat], within_seconds: float) -> Heartbeaten:
        if self.deaf:
            self.unheard += 1
            raise Unreachable("nobody there")
        answers = self._link.heartbeat(beats, within_seconds)
        self.beats.extend(beats)
        return answers

    def deregister(self, reason: str) -> Gone:
        if self.deaf:
            raise Unreachable("nobody there")
        return self._link.deregister(reason)

    def complete(self, told: Complete) -> Reported:
        self.reports.append("complete")
        state = self._link.complete(told)
        if self.reports_lost:
            self.reports_lost -= 1
            raise Unreachable("the answer was lost")
        return state

    def put(self, work: Work, made: Made, body: bytes | Path, check: Check) -> None:
        if self.tamper and isinstance(body, Path):
            body.write_bytes(b"other")
        self._link.put(work, made, body, check)

    def fail(self, told: Fail) -> Reported:
        if self.mute:
            raise Unreachable("nobody there")
        return self._link.fail(told)


class Floor:
    """A house with a user who has credits, and shifts that are over when the floor closes.

    Workers reach it over HTTP, or, `embedded`, in its own process.
    """

    def __init__(
        self, place: str, data: Path, *, embedded: bool = False, http: HttpSettings | None = None,
        blobs: BlobSettings | None = None,
    ) -> None:  # fmt: skip
        settings = Settings(patience_seconds=5, blobs=blobs or BlobSettings())
        self.served = Served(place, data, http, settings, machine=False)
        self.engine = self.served.engine
        self.embedded = embedded
        self.over = threading.Event()
        """Set at the end, so that a handler that waits for ever ends with its test."""
        self.facts: list[Fact] = []
        self.scratch = data / "scratch"
        self.cache: Cache | None = None
        self.protection: Protection | None = None
        self._shifts: list[Shift] = []

    def __enter__(self) -> Self:
        self.served.__enter__()
        self.engine.execute(commands.PutTenant(tenant=TENANT))
        self.engine.execute(commands.TopUp(tenant=TENANT, user=USER, amount=100))
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for shift in self._shifts:
            shift.stop()
        broken = self.broken()
        self.served.__exit__(None, None, None)
        assert broken == []
        assert list(self.scratch.glob("*")) == []

    @property
    def blobs(self) -> Blobs:
        return self.served.callsheet.house.blobs

    @property
    def operator(self) -> httpx.Client:
        return self.served.client("operator")

    def link(self, name: str = "w1", url: str | None = None) -> Watched:
        if self.embedded:
            return Watched(EngineLink(self.engine, self.blobs, name))
        return Watched(HttpLink(url or self.served.url, lambda: self.served.keys["worker"], name))

    def start(self, worker: Worker, link: Watched | None = None, concurrency: int = 1) -> Shift:
        kit = Kit(
            scratch=Scratch(self.scratch), cache=self.cache, protection=self.protection, tell=self.facts.append
        )  # fmt: skip
        way: Any = link or self.link()
        shift = worker.start(way, concurrency, kit=kit)
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

    def worker(self, name: str = "w1") -> WorkerRow:
        """A worker as the house knows it."""
        found = [WorkerRow(*row) for row in self.engine.read.fetch("workers_after", after="", gone=1, count=100)]
        return next(one for one in found if one.id == name)

    def outcomes(self, job_id: str) -> list[str | None]:
        return [attempt.outcome for attempt in self.engine.read.attempts(self.task(job_id).id)]

    def outputs(self, job_id: str) -> list[str]:
        found = self.engine.read.documents(job_id)
        return [document.body for document in found if document.name.startswith("output:")]

    def files(self, job_id: str) -> list[File]:
        return [File(*row) for row in self.engine.read.fetch("files_of", id=job_id)]

    def bytes_of(self, file: File) -> bytes:
        with self.blobs.open(keys.of(file)) as blob:
            return blob.read()

    @property
    def faults(self) -> list[str]:
        """What went wrong, in words."""
        return [f"{fact.what}: {fact.error}" for fact in list(self.facts) if isinstance(fact, Trouble)]

    @property
    def waits(self) -> list[str]:
        """Why there was no work."""
        return [fact.why for fact in list(self.facts) if isinstance(fact, Waiting)]

    @property
    def endings(self) -> list[str]:
        """How tries ended."""
        return [fact.how for fact in list(self.facts) if isinstance(fact, Ended)]

    def broken(self) -> list[Violation]:
        connection = self.engine.database.connect(reading=True)
        try:
            return check(connection)
        finally:
            connection.close()
