"""What is asked about jobs."""

from typing import Literal

from msgspec import Struct

from callsheet.core.model.commands.base import Command, Json
from callsheet.core.model.rows import Job
from callsheet.core.model.state_machines import Actor
from callsheet.core.model.workflow_definition import StageSpec


class Verdict(Struct, frozen=True, gc=False):
    """What a gate said: refuse the request, or record it as a blocked job."""

    code: str
    message: str
    block: bool = False


class Submit(Command, frozen=True, kw_only=True, gc=False):
    """Ask for a job."""

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
    """Fixed by a quote; else the workflow's price of the moment counts."""


class SubmitResult(Struct, frozen=True, gc=False):
    """An accepted job, or the one that the same key had made before."""

    job: Job
    """The row as it was stored with this command, so that nobody has to read it again."""
    replay: bool = False

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def status(self) -> str:
        return self.job.status

    @property
    def price(self) -> int:
        return self.job.price

    @property
    def run(self) -> int:
        return self.job.run


class JobCommand(Command, frozen=True, kw_only=True, gc=False):
    """Something about one job of one tenant."""

    tenant: str
    job_id: str
    actor: Actor = "user"


class Cancel(JobCommand, frozen=True, kw_only=True, gc=False):
    """Stop a job: at once if nothing runs, else when the worker has heard or the grace is over."""

    reason: str = "Canceled by request."
    grace_seconds: int | None = None


class Pause(JobCommand, frozen=True, kw_only=True, gc=False):
    """Hand out no further task of a job."""


class Resume(JobCommand, frozen=True, kw_only=True, gc=False):
    """Go on with a paused job."""


class Retry(JobCommand, frozen=True, kw_only=True, gc=False):
    """Open another run of a failed or expired job, or a new job like it."""

    retry_as: Literal["new_run", "new_job"] = "new_run"
    idempotency_key: str | None = None
    """The same key opens one run of a job, or makes one job like it, however often it is said."""


class Refund(JobCommand, frozen=True, kw_only=True, gc=False):
    """Give back by hand what a run has consumed: the last one, or one by its number."""

    reason: str
    run: int | None = None


class Delete(JobCommand, frozen=True, kw_only=True, gc=False):
    """Remove a job from sight; its evidence and its money stay."""


class Update(JobCommand, frozen=True, kw_only=True, gc=False):
    """Change what may change while a job lives; `stage_id` or `task_id` turns it to that part."""

    stage_id: str | None = None
    task_id: str | None = None
    priority: int | None = None
    labels: dict[str, str] | None = None
    metadata: dict[str, Json] | None = None
    trace: dict[str, str] | None = None


class Approve(JobCommand, frozen=True, kw_only=True, gc=False):
    """Let a waiting stage go on."""

    stage_id: str
    approver: str = ""


class RequireApproval(JobCommand, frozen=True, kw_only=True, gc=False):
    """Make a stage wait for approval."""

    stage_id: str
    actor: Actor = "admin"


class AddStage(JobCommand, frozen=True, kw_only=True, gc=False):
    """Append a stage to an unfinished job."""

    stage: StageSpec


class AddTasks(JobCommand, frozen=True, kw_only=True, gc=False):
    """Append tasks to a stage that has not ended."""

    stage_id: str
    inputs: list[Json]


class JobState(Struct, frozen=True, gc=False):
    """Where a job is after a command; `changed` is false if it was there already."""

    job: Job
    changed: bool = True

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def status(self) -> str:
        return self.job.status

    @property
    def run(self) -> int:
        return self.job.run

    @property
    def cancel_requested(self) -> bool:
        return self.job.cancel_requested_at is not None


class AddedTasks(Struct, frozen=True, gc=False):
    """What was appended: the stage and its number, the tasks and theirs."""

    stage_id: str
    stage_no: int
    task_ids: list[str]
    first_task_no: int
