"""What can be asked of the engine, and what it answers. Every command is one struct, every answer another.

`id` is made before a command first runs and stays the same when it is tried again after a lost connection.
"""

from typing import Any, Literal

from msgspec import Struct

from callsheet.core.machine import Actor
from callsheet.core.recipe import Recipe, StageSpec

Json = Any


class Command(Struct, frozen=True, kw_only=True, gc=False):
    """Something to decide."""

    id: str = ""


class Lease(Struct, frozen=True, gc=False):
    """The right to work on a task: which one, under which epoch, and the secret that proves it."""

    job_id: str
    task_id: str
    attempt: int
    token: str


# -- set-up and money


class PutTenant(Command, frozen=True, kw_only=True, gc=False):
    """Make a tenant or change its share."""

    tenant: str
    weight: int = 1
    status: Literal["active", "suspended"] = "active"
    active_jobs_max: int = 0


class PutWorkflow(Command, frozen=True, kw_only=True, gc=False):
    """Store a recipe as the newest version of its workflow."""

    recipe: Recipe


class TopUp(Command, frozen=True, kw_only=True, gc=False):
    """Add bought credits; the same key adds them once."""

    tenant: str
    user: str
    amount: int
    key: str = ""
    reason: str = "top-up"
    actor: Actor = "system"


class Adjust(Command, frozen=True, kw_only=True, gc=False):
    """Correct a balance, with a reason."""

    tenant: str
    user: str
    amount: int
    reason: str
    key: str = ""
    actor: Actor = "admin"


class Balance(Struct, frozen=True, gc=False):
    """A wallet as it is now."""

    balance: int
    held: int
    replay: bool = False


# -- jobs


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


class Submitted(Struct, frozen=True, gc=False):
    """An accepted job, or the one that the same key had made before."""

    job_id: str
    status: str
    price: int
    run: int
    replay: bool = False


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


class Delete(JobCommand, frozen=True, kw_only=True, gc=False):
    """Remove a job from sight; its evidence and its money stay."""


class Change(JobCommand, frozen=True, kw_only=True, gc=False):
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


class Hold(JobCommand, frozen=True, kw_only=True, gc=False):
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

    job_id: str
    status: str
    run: int
    cancel_requested: bool = False
    changed: bool = True


class Added(Struct, frozen=True, gc=False):
    """What was appended: the stage and its number, the tasks and theirs."""

    stage_id: str
    stage_no: int
    task_ids: list[str]
    first_task_no: int


# -- workers


class Claim(Command, frozen=True, kw_only=True, gc=False):
    """Take up to `count` tasks of these kinds; the tokens are made by the engine beforehand."""

    worker_id: str
    kinds: tuple[str, ...]
    count: int = 1
    lease_seconds: int | None = None
    tokens: tuple[str, ...] = ()


class Leased(Struct, frozen=True, gc=False):
    """A task in hand."""

    lease: Lease
    tenant: str
    workflow: str
    kind: str
    stage: str
    stage_no: int
    task_no: int
    lease_seconds: int
    input: str
    """JSON text: the task's own input, else the job's."""
    trace: str | None = None


class Heartbeat(Command, frozen=True, kw_only=True, gc=False):
    """Prolong a lease, and say how far the work is."""

    lease: Lease
    lease_seconds: int | None = None
    progress: int | None = None
    message: str | None = None


class Beat(Struct, frozen=True, gc=False):
    """How long the lease lasts from now, and whether to stop."""

    lease_seconds: float
    cancel: bool


class Complete(Command, frozen=True, kw_only=True, gc=False):
    """Hand in a result; `delivered` percent of it is what the user asked for."""

    lease: Lease
    output: Json = None
    delivered: int = 100


class Fail(Command, frozen=True, kw_only=True, gc=False):
    """Report that a try went wrong."""

    lease: Lease
    code: str = "task_failed"
    message: str = ""
    retryable: bool | None = None


class Requeue(Command, frozen=True, kw_only=True, gc=False):
    """Give a task back without using up a try: the machine goes away, the work is sound."""

    lease: Lease
    reason: str


class TaskState(Struct, frozen=True, gc=False):
    """Where a task and its job are; `skipped` says why the report had no effect."""

    job_id: str
    task_id: str
    status: str
    job_status: str
    skipped: str | None = None
    replay: bool = False


# -- providers


class Intend(Command, frozen=True, kw_only=True, gc=False):
    """Write down that a provider is about to be called, before it is."""

    lease: Lease
    provider: str


class Intended(Struct, frozen=True, gc=False):
    """The call's id, to put into the callback address; `status` other than intended means: do not call again."""

    call_id: str
    status: str


class Hand(Command, frozen=True, kw_only=True, gc=False):
    """Hand a task over to the provider that accepted it: the lease ends, collecting begins."""

    lease: Lease
    ref: str


class Outcome(Struct, frozen=True, gc=False):
    """What a provider says about a call."""

    status: Literal["pending", "completed", "failed", "absent"]
    output: Json = None
    delivered: int = 100
    code: str = "provider_failed"
    message: str = ""
    retryable: bool | None = None
    again_in_seconds: float | None = None
    ref: str | None = None


class Collect(Command, frozen=True, kw_only=True, gc=False):
    """Take a due call for collecting, so that no other collector does."""

    call_id: str
    job_id: str
    hold_seconds: int = 60


class Collecting(Struct, frozen=True, gc=False):
    """A call to ask about; `ref` is None if its answer was lost. Not `due` means somebody else has it."""

    call_id: str
    provider: str
    ref: str | None
    cancel: bool
    due: bool


class Collected(Command, frozen=True, kw_only=True, gc=False):
    """Report what collecting gave."""

    call_id: str
    job_id: str
    outcome: Outcome


class Callback(Command, frozen=True, kw_only=True, gc=False):
    """A provider's webhook, already authenticated."""

    provider: str
    webhook_id: str
    outcome: Outcome
    ref: str | None = None
    call_id: str | None = None


# -- the clock, and readers of the event order


class TickJob(Command, frozen=True, kw_only=True, gc=False):
    """Look at a job whose moment has come: its schedule, its deadline, the end of its grace."""

    job_id: str


class TickTask(Command, frozen=True, kw_only=True, gc=False):
    """Look at a task whose moment has come: its lease, its backoff."""

    job_id: str
    task_id: str


class TakeCursor(Command, frozen=True, kw_only=True, gc=False):
    """Become the one reader of a named place in the event order, for a while."""

    name: str
    holder: str
    hold_seconds: int = 60


class MoveCursor(Command, frozen=True, kw_only=True, gc=False):
    """Say how far the reader has come, and let go."""

    name: str
    holder: str
    tx: int
    position: int


class Place(Struct, frozen=True, gc=False):
    """A place in the global event order."""

    tx: int
    position: int
    held: bool = True
