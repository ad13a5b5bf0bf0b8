"""Jobs and their runs."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from callsheet.api.errors import Error
from callsheet.core.model.workflow_definition import StageSpec


class DurationEstimate(Struct, frozen=True):
    """How long such jobs took from their start to their end: a guess, not a promise."""

    estimate: bool
    seconds_p50: float
    seconds_p90: float
    samples: int


class Job(Struct, frozen=True):
    """A job."""

    id: str
    workflow: str
    workflow_version: int
    user: str
    status: str
    phase: str | None
    run: int
    priority: int
    price: int
    progress: int
    stages_total: int
    stages_completed: int
    events: int
    cancel_requested: bool
    created_at: datetime
    updated_at: datetime
    start_at: datetime | None
    deadline_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    error: Error | None
    retry_of: str | None
    labels: dict[str, str] | None
    metadata: dict[str, Any] | None
    duration_estimate: DurationEstimate | None


class SubmitBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What a job is made of."""

    workflow: str
    user: str
    input: Any = None
    idempotency_key: str | None = None
    priority: int | None = None
    start_in_seconds: float = 0
    deadline_seconds: int | None = None
    stages: list[StageSpec] | None = None
    labels: dict[str, str] | None = None
    metadata: dict[str, Any] | None = None
    trace: dict[str, str] | None = None
    quote: str | None = None


class BulkBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Up to 1,000 jobs, each with its own outcome."""

    jobs: list[SubmitBody]


class BulkItem(Struct, frozen=True, omit_defaults=True):
    """What became of one job of a bulk: its status as if it had been sent alone."""

    status: int
    job_id: str | None = None
    replay: bool = False
    problem: dict[str, Any] | None = None


class BulkResponse(Struct, frozen=True):
    """Outcomes in the order of the request."""

    results: list[BulkItem]


class JobQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How to look at a job."""

    wait: Annotated[float, Meta(ge=0, le=86_400)] = 0
    """Seconds to hold the answer until there is news; more than `wait_seconds_max` counts as that."""


class ListQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs to list; newest first."""

    status: str = ""
    phase: str = ""
    workflow: str = ""
    user: str = ""
    label: str = ""
    since: str = ""
    until: str = ""
    limit: int = 50
    cursor: str = ""


class JobPage(Struct, frozen=True):
    """Jobs, newest first, and where to go on."""

    jobs: list[Job]
    next: str | None


class CancelBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why, and how long a worker may take to stop."""

    reason: str = "Canceled by request."
    grace_seconds: int | None = None


class RetryBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How to try again."""

    retry_as: Literal["new_run", "new_job"] = "new_run"
    idempotency_key: str | None = None


class UpdateBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What may change while a job lives."""

    priority: int | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    trace: dict[str, str] | UnsetType = UNSET


class JobInput(Struct, frozen=True):
    """What a job was asked to make."""

    input: Any


class Run(Struct, frozen=True):
    """One life of a job, with its money."""

    no: int
    status: str
    price: int
    consumed: int
    refunded: int
    opened_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: Error | None


class RunList(Struct, frozen=True):
    """A job's runs, oldest first."""

    runs: list[Run]
