"""Why a job waits, and when it may start and finish."""

from typing import Annotated

from msgspec import Struct

from callsheet.api.base import Example, Time, doc
from callsheet.core.model.state_machines import JOB

_BASIS = "From the newest 20 tasks of its queue."


class Constraint(Struct, frozen=True):
    """One reason why a job or its tasks are not running. Numbers that do not apply are null."""

    code: Annotated[str, doc("Stable code of the reason.", "queued")]
    message: Annotated[str, doc("Explanation for a person.", "3 tasks are ahead of it.")]
    tasks: Annotated[int, doc("Number of tasks affected. 0 means the whole job.", 1)]
    active_since_at: Annotated[Time | None, doc("Time since which the reason applies.", Example.AT)]
    active_until_at: Annotated[Time | None, doc("Time until which the reason applies, if known.", None)]
    limit_scope: Annotated[str | None, doc("What a limit applies to: `workflow`, `kind` or `provider`.", None)]
    name: Annotated[str | None, doc("Name of that workflow, kind or provider.", None)]
    running: Annotated[int | None, doc("Running tasks that count towards the limit.", None)]
    running_max: Annotated[int | None, doc("Maximum number of running tasks.", None)]
    started: Annotated[int | None, doc("Tasks that started within the window of a rate limit.", None)]
    started_in_window_max: Annotated[int | None, doc("Maximum number of tasks that may start in the window.", None)]
    window_seconds: Annotated[int | None, doc("Length of the window of a rate limit, in seconds.", None)]
    tasks_ahead: Annotated[int | None, doc("Number of tasks ahead in the queue.", 3)]
    progress: Annotated[int | None, doc("Progress in percent, for a running job.", None)]
    workers: Annotated[int | None, doc("Number of workers that take this kind of task.", 2)]


class StartEstimate(Struct, frozen=True):
    """When the job or its next task may start, estimated from recent tasks of its queue."""

    estimated_start_at: Annotated[Time | None, doc("Estimated start. Null without enough data.", Example.LATER)]
    estimated_seconds: Annotated[float | None, doc("Seconds until the estimated start.", 34.2)]
    duration_seconds_p50: Annotated[float | None, doc("Median duration of recent tasks, in seconds.", 11.4)]
    duration_seconds_p90: Annotated[
        float | None, doc("90th percentile of the duration of recent tasks, in seconds.", 19.8)
    ]
    samples: Annotated[int, doc("Number of past tasks that the estimate is based on.", 20)]
    reason: Annotated[str, doc("What the estimate is based on, or why there is none.", _BASIS)]


class ProgressEstimate(Struct, frozen=True):
    """How far the job may be, estimated from past durations, for kinds that report no progress."""

    percent: Annotated[int | None, doc("Estimated progress in percent. Null without enough data.", 0)]
    remaining_seconds_p50: Annotated[float | None, doc("Median of the remaining time, in seconds.", 45.6)]
    remaining_seconds_p90: Annotated[float | None, doc("90th percentile of the remaining time, in seconds.", 60.1)]
    samples: Annotated[int, doc("Number of past tasks that the estimate is based on.", 20)]
    reason: Annotated[str, doc("What the estimate is based on, or why there is none.", _BASIS)]


class JobExplanation(Struct, frozen=True):
    """Why a job is not running, its position in the queue, and when it may start and finish."""

    job_id: Annotated[str, doc("Id of the job.", Example.JOB_ID)]
    status: Annotated[str, doc("Status of the job.", "queued", enum=list(JOB.statuses))]
    progress: Annotated[int, doc("Reported progress in percent.", 0)]
    stage_no: Annotated[int | None, doc("Number of the current stage.", 1)]
    stage: Annotated[str | None, doc("Name of the current stage.", "sketch")]
    constraints: Annotated[list[Constraint], doc("Reasons why the job or its tasks are not running.")]
    position: Annotated[int | None, doc("Position in the queue of its kind and workflow, from 1.", 4)]
    start: Annotated[StartEstimate, doc("Estimated start.")]
    remaining: Annotated[ProgressEstimate, doc("Estimated progress and remaining time.")]
