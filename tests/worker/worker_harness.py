"""A complete server with workers, and links to it that record calls and inject faults."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from callsheet.api.worker_protocol import (
    Claim,
    ClaimResult,
    Complete,
    Deregistered,
    Fail,
    HeartbeatResponse,
    ReportResult,
    TaskHeartbeat,
    TaskPayload,
)
from callsheet.blobs import object_keys
from callsheet.blobs.base import Blobs
from callsheet.core.model import commands
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.rows import File, Job, Task
from callsheet.core.model.rows import Worker as WorkerRow
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from callsheet.embedded_link import EngineLink
from callsheet.settings import BlobSettings, HttpSettings, Settings
from callsheet.store.verify import Violation, check
from callsheet.worker import (
    Cache,
    HttpLink,
    Link,
    ScaleInProtection,
    Scratch,
    UnreachableError,
    Worker,
    WorkerOptions,
    WorkerRun,
)
from callsheet.worker.link.base import Check
from callsheet.worker.runtime.worker_events import TaskEnded, WorkerError, WorkerEvent, WorkerWaiting
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

TENANT, USER = "acme", "ada"
NO_BACKOFF = Backoff(base_seconds=0)
SECONDS = 20.0


class RecordingLink:
    """A link that records its calls and fails on demand."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.claim_counts: list[int] = []
        """The number of tasks that each claim requested."""
        self.claimed: list[TaskPayload] = []
        self.heartbeats: list[TaskHeartbeat] = []
        self.reports: list[str] = []
        self.unreachable = False
        """Once a task was claimed, heartbeats, claims and deregistration fail."""
        self.lost_heartbeats = 0
        """The number of heartbeats that failed for this reason."""
        self.fail_unreachable = False
        """Reports of failed attempts fail."""
        self.tamper_with_files = False
        """Files on disk change before they are uploaded."""
        self.reports_lost = 0
        """How many completions succeed with a lost response."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def claim(self, request: Claim) -> ClaimResult:
        if self.unreachable and self.claimed:
            raise UnreachableError("no response")
        self.claim_counts.append(request.count)
        claimed = self._link.claim(request)
        self.claimed.extend(claimed.tasks)
        return claimed

    def heartbeat(self, heartbeats: Sequence[TaskHeartbeat], timeout_seconds: float) -> HeartbeatResponse:
        if self.unreachable:
            self.lost_heartbeats += 1
            raise UnreachableError("no response")
        answers = self._link.heartbeat(heartbeats, timeout_seconds)
        self.heartbeats.extend(heartbeats)
        return answers

    def deregister(self, reason: str) -> Deregistered:
        if self.unreachable:
            raise UnreachableError("no response")
        return self._link.deregister(reason)

    def complete(self, report: Complete) -> ReportResult:
        self.reports.append("complete")
        state = self._link.complete(report)
        if self.reports_lost:
            self.reports_lost -= 1
            raise UnreachableError("the response was lost")
        return state

    def upload(self, work: TaskPayload, output_file: OutputFile, body: bytes | Path, check: Check) -> None:
        if self.tamper_with_files and isinstance(body, Path):
            body.write_bytes(b"other")
        self._link.upload(work, output_file, body, check)

    def fail(self, report: Fail) -> ReportResult:
        if self.fail_unreachable:
            raise UnreachableError("no response")
        return self._link.fail(report)


class WorkerHarness:
    """A server with a user who has credits. Its worker runs are stopped when the harness closes.

    Workers reach it over HTTP, or, `embedded`, in its own process.
    """

    def __init__(
        self, database_url: str, data: Path, *, embedded: bool = False, http: HttpSettings | None = None,
        blobs: BlobSettings | None = None,
    ) -> None:  # fmt: skip
        settings = Settings(database_retry_seconds=5, blobs=blobs or BlobSettings())
        self.live_server = LiveServer(database_url, data, http, settings, register_worker=False)
        self.engine = self.live_server.engine
        self.embedded = embedded
        self.closing = threading.Event()
        """Set when the harness closes, so that a handler that waits forever ends with its test."""
        self.events: list[WorkerEvent] = []
        self.scratch = data / "scratch"
        self.cache: Cache | None = None
        self.protection: ScaleInProtection | None = None
        self._runs: list[WorkerRun] = []

    def __enter__(self) -> Self:
        self.live_server.__enter__()
        self.engine.execute(commands.PutTenant(tenant=TENANT))
        self.engine.execute(commands.TopUp(tenant=TENANT, user=USER, amount=100))
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for worker_run in self._runs:
            worker_run.stop()
        violations = self.violations()
        self.live_server.__exit__(None, None, None)
        assert violations == []
        assert list(self.scratch.glob("*")) == []

    @property
    def blobs(self) -> Blobs:
        return self.live_server.callsheet.state.blobs

    @property
    def operator(self) -> httpx.Client:
        return self.live_server.client("operator")

    def link(self, name: str = "w1", url: str | None = None) -> RecordingLink:
        if self.embedded:
            return RecordingLink(EngineLink(self.engine, self.blobs, name))
        return RecordingLink(HttpLink(url or self.live_server.url, lambda: self.live_server.keys["worker"], name))

    def start(self, worker: Worker, link: RecordingLink | None = None, concurrency: int = 1) -> WorkerRun:
        worker_options = WorkerOptions(
            scratch=Scratch(self.scratch), cache=self.cache, protection=self.protection, on_event=self.events.append
        )  # fmt: skip
        used_link: Any = link or self.link()
        worker_run = worker.start(used_link, concurrency, worker_options=worker_options)
        self._runs.append(worker_run)
        return worker_run

    def submit(self, *stages: StageSpec, input: Any = None, **definition: Any) -> str:
        """Store a workflow and submit a job: by default one task of kind draw for 10 credits."""
        definition.setdefault("lease_seconds", 30)
        definition.setdefault("retry", RetryPolicy(backoff=NO_BACKOFF))
        made = WorkflowDefinition(
            name="work", price=10, stages=list(stages) or [StageSpec(name="draw", kind="draw")], **definition
        )
        self.engine.execute(commands.PutWorkflow(definition=made))
        submit = commands.Submit(tenant=TENANT, user=USER, workflow="work", input=input)
        job: commands.SubmitResult = self.engine.execute(submit)
        return job.job_id

    def cancel(self, job_id: str) -> None:
        self.engine.execute(commands.Cancel(tenant=TENANT, job_id=job_id, grace_seconds=600))

    def job(self, job_id: str) -> Job:
        return self.engine.reads.job(TENANT, job_id)

    def wait_for_end(self, job_id: str) -> Job:
        """Wait for a job's end."""
        wait_until(lambda: self.job(job_id).finished_at, SECONDS)
        return self.job(job_id)

    def task(self, job_id: str, no: int = 1) -> Task:
        return self.engine.reads.tasks(job_id)[no - 1]

    def worker(self, name: str = "w1") -> WorkerRow:
        """Return the row of a worker."""
        found = [WorkerRow(*row) for row in self.engine.reads.fetch("all_workers_after", after="", count=100)]
        return next(one for one in found if one.id == name)

    def outcomes(self, job_id: str) -> list[str | None]:
        return [attempt.outcome for attempt in self.engine.reads.attempts(self.task(job_id).id)]

    def outputs(self, job_id: str) -> list[str]:
        found = self.engine.reads.documents(job_id)
        return [document.body for document in found if document.name.startswith("output:")]

    def files(self, job_id: str) -> list[File]:
        return [File(*row) for row in self.engine.reads.fetch("files_of", id=job_id)]

    def bytes_of(self, file: File) -> bytes:
        with self.blobs.open(object_keys.file_key(file)) as blob:
            return blob.read()

    @property
    def faults(self) -> list[str]:
        """The errors that the worker reported."""
        return [f"{event.message}: {event.error}" for event in list(self.events) if isinstance(event, WorkerError)]

    @property
    def wait_reasons(self) -> list[str]:
        """The reasons of waiting events."""
        return [event.reason for event in list(self.events) if isinstance(event, WorkerWaiting)]

    @property
    def attempt_endings(self) -> list[str]:
        """The outcomes of attempts."""
        return [event.outcome for event in list(self.events) if isinstance(event, TaskEnded)]

    def violations(self) -> list[Violation]:
        connection = self.engine.database.connect(reading=True)
        try:
            return check(connection)
        finally:
            connection.close()
