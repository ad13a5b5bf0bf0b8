"""Why a job waits, and when it may start and finish."""

from datetime import datetime

from msgspec import Struct


class Constraint(Struct, frozen=True):
    """One thing that holds the job: a stable code, a sentence, and its numbers; what does not apply is null."""

    code: str
    message: str
    tasks: int
    """How many tasks it is about; 0 is the whole job."""
    active_since_at: datetime | None
    active_until_at: datetime | None
    of: str | None
    """What a limit is of, or who is missing: `workflow`, `kind`, `provider`."""
    name: str | None
    running: int | None
    running_max: int | None
    started: int | None
    """Tasks that count towards a rate: they started within its stretch of time."""
    started_in_window_max: int | None
    within_seconds: int | None
    ahead: int | None
    progress: int | None
    workers: int | None


class StartEstimate(Struct, frozen=True):
    """When the job, or its next task, may start: a guess from what tasks of its queue took; null without a basis."""

    estimate: bool
    estimated_start_at: datetime | None
    estimated_seconds: float | None
    duration_seconds_p50: float | None
    duration_seconds_p90: float | None
    samples: int
    reason: str


class ProgressEstimate(Struct, frozen=True):
    """How far the job may be, for kinds that report nothing: a guess from past durations; null without a basis."""

    estimate: bool
    percent: int | None
    remaining_seconds_p50: float | None
    remaining_seconds_p90: float | None
    samples: int
    reason: str


class JobExplanation(Struct, frozen=True):
    """What holds a job, its place in its queue, and when it may start and end."""

    job_id: str
    status: str
    progress: int
    stage_no: int | None
    stage: str | None
    constraints: list[Constraint]
    position: int | None
    start: StartEstimate
    remaining: ProgressEstimate
