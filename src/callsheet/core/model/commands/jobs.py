"""Commands for jobs: submit, cancel, pause, resume, retry, refund, update, approve, delete."""

from typing import Literal

from msgspec import Struct

from callsheet.core.model.commands.base import Command, Json
from callsheet.core.model.rows import Job
from callsheet.core.model.state_machines import Actor
from callsheet.core.model.workflow_definition import StageSpec


class Verdict(Struct, frozen=True, gc=False):
    """The verdict of a gate: refuse the request, or record it as a blocked job."""

    code: str
    message: str
    block: bool = False


class Submit(Command, frozen=True, kw_only=True, gc=False):
    """Submit a job."""

    tenant: str
    user: str
    workflow: str
    input: Json = None
    idempotency_key: str | None = None
    priority: int | None = None
    start_in_seconds: float = 0
    deadline_seconds: int | None = None
    stages: list[StageSpec] | None = None
    labels: dict[str, str] | None = None
    metadata: dict[str, Json] | None = None
    trace: dict[str, str] | None = None
    actor: Actor = "user"
    verdict: Verdict | None = None
    price: int | None = None
    """The price of a quote; None for the workflow's current price."""


class JobResult(Struct, frozen=True, gc=False):
    """The job after a command. It is the row that the command stored, so that the caller need not read it again."""

    job: Job

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def status(self) -> str:
        return self.job.status

    @property
    def run(self) -> int:
        return self.job.run


class SubmitResult(JobResult, frozen=True, gc=False):
    """A new job, or (`replay`) the job that was created with the same idempotency key."""

    replay: bool = False

    @property
    def price(self) -> int:
        return self.job.price


class JobCommand(Command, frozen=True, kw_only=True, gc=False):
    """The base class of commands about one job of a tenant."""

    tenant: str
    job_id: str
    actor: Actor = "user"


class Cancel(JobCommand, frozen=True, kw_only=True, gc=False):
    """Cancel a job: at once if no task runs, else when its workers stop or the grace period ends."""

    reason: str = "Canceled by request."
    grace_seconds: int | None = None


class Pause(JobCommand, frozen=True, kw_only=True, gc=False):
    """Pause a job: no further task is claimed."""


class Resume(JobCommand, frozen=True, kw_only=True, gc=False):
    """Resume a paused job."""


class Retry(JobCommand, frozen=True, kw_only=True, gc=False):
    """Retry a failed or expired job: as another run of it, or as a new job."""

    retry_as: Literal["new_run", "new_job"] = "new_run"
    idempotency_key: str | None = None
    """Retries of a job with the same key have one effect."""


class Refund(JobCommand, frozen=True, kw_only=True, gc=False):
    """Refund what a run consumed: the last run, or the run with the given number."""

    reason: str
    run: int | None = None


class Delete(JobCommand, frozen=True, kw_only=True, gc=False):
    """Delete a job; its attempts, events and ledger entries stay."""


class Update(JobCommand, frozen=True, kw_only=True, gc=False):
    """Change the priority or annotations of a job, or with `stage_id` or `task_id` of that part."""

    stage_id: str | None = None
    task_id: str | None = None
    priority: int | None = None
    labels: dict[str, str] | None = None
    metadata: dict[str, Json] | None = None
    trace: dict[str, str] | None = None


class Approve(JobCommand, frozen=True, kw_only=True, gc=False):
    """Approve a waiting stage."""

    stage_id: str
    approver: str = ""


class RequireApproval(JobCommand, frozen=True, kw_only=True, gc=False):
    """Make a stage wait for approval."""

    stage_id: str
    actor: Actor = "admin"


class AddStage(JobCommand, frozen=True, kw_only=True, gc=False):
    """Append a stage to a job that has not ended."""

    stage: StageSpec


class AddTasks(JobCommand, frozen=True, kw_only=True, gc=False):
    """Append tasks to a stage that has not ended."""

    stage_id: str
    inputs: list[Json]


class JobState(JobResult, frozen=True, gc=False):
    """A job's state after a command; `changed` is false if the command had no effect."""

    changed: bool = True

    @property
    def cancel_requested(self) -> bool:
        return self.job.cancel_requested_at is not None


class AddedTasks(Struct, frozen=True, gc=False):
    """The stage and the tasks that were appended, with their numbers."""

    stage_id: str
    stage_no: int
    task_ids: list[str]
    first_task_no: int
