"""Why a job waits, and when it may start and finish."""

from typing import Annotated

from msgspec import Struct

from callsheet.api.shared_fields import Example, Time, doc
from callsheet.core.model.state_machines import JOB

_BASIS = "From the newest 20 tasks of its queue."


class Constraint(Struct, frozen=True):
    """One reason why a job or its tasks wait, or what they are doing. Fields that do not apply are null."""

    code: Annotated[
        str,
        doc("Stable code: `ended`, `canceling`, `paused`, `scheduled`, `no_stages` or `no_tasks` (add some), "
            "`approval`, `running_limit`, `rate_limit`, `no_worker`, `queued`, `backoff` (a failed task waits for its "
            "next attempt), `provider` (an external service runs the task) or `running`.", "queued"),
    ]  # fmt: skip
    message: Annotated[str, doc("Explanation for a person.", "It is queued after 3 other tasks.")]
    tasks: Annotated[int, doc("Number of tasks concerned. 0 means the whole job.", 1)]
    active_since_at: Annotated[Time | None, doc("Time since which the reason applies.", Example.AT)]
    active_until_at: Annotated[Time | None, doc("Time until which the reason applies, if known.", None)]
    limit_scope: Annotated[
        str | None, doc("What `name` is, if it is not a stage: `workflow`, `kind` or `provider`.", None)
    ]
    name: Annotated[str | None, doc("Name of the workflow, kind, provider or stage that the reason is about.", None)]
    running: Annotated[
        int | None,
        doc("Running tasks: those that count towards the limit (`running_limit`), of the queue (`queued`), or of the "
            "job (`canceling`).", None),
    ]  # fmt: skip
    running_is_capped: Annotated[bool, doc("Whether more tasks run than `running` says.", False)]
    running_max: Annotated[int | None, doc("Maximum number of running tasks, with `running_limit`.", None)]
    started: Annotated[int | None, doc("Tasks that started within the window, with `rate_limit`.", None)]
    started_in_window_max: Annotated[int | None, doc("Maximum number of tasks that may start in the window.", None)]
    window_seconds: Annotated[int | None, doc("Length of the window, in seconds.", None)]
    tasks_ahead: Annotated[int | None, doc("Number of tasks ahead in the queue, with `queued`.", 3)]
    tasks_ahead_is_capped: Annotated[bool, doc("Whether more tasks are ahead than `tasks_ahead` says.", False)]
    progress: Annotated[int | None, doc("Mean progress of the running tasks in percent, with `running`.", None)]
    workers: Annotated[int | None, doc("Workers that run the tasks, with `running`. 0 with `no_worker`.", None)]


class StartEstimate(Struct, frozen=True):
    """When the job or its next task may start, estimated from recent tasks of its queue."""

    estimated_start_at: Annotated[Time | None, doc("Estimated start. Null without enough data.", Example.LATER)]
    estimated_seconds: Annotated[
        float | None, doc("Seconds until the estimated start. Null without enough data.", 34.2)
    ]
    duration_seconds_p50: Annotated[float | None, doc("Median duration of recent tasks, in seconds.", 11.4)]
    duration_seconds_p90: Annotated[
        float | None, doc("90th percentile of the duration of recent tasks, in seconds.", 19.8)
    ]
    samples: Annotated[int, doc("Number of completed tasks that the estimate is based on.", 20)]
    reason: Annotated[str, doc("What the estimate is based on, or why there is none.", _BASIS)]


class ProgressEstimate(Struct, frozen=True):
    """How far the job may be and when it may end, estimated from past durations if its tasks report no progress."""

    percent: Annotated[int | None, doc("Estimated progress in percent. Null without enough data.", 0)]
    remaining_seconds_p50: Annotated[float | None, doc("Median of the remaining time, in seconds.", 45.6)]
    remaining_seconds_p90: Annotated[float | None, doc("90th percentile of the remaining time, in seconds.", 60.1)]
    samples: Annotated[int, doc("Number of completed tasks that the estimate is based on.", 20)]
    reason: Annotated[str, doc("What the estimate is based on, or why there is none.", _BASIS)]


class JobExplanation(Struct, frozen=True):
    """Why a job is not running, its position in the queue, and when it may start and finish."""

    job_id: Annotated[str, doc("Id of the job.", Example.JOB_ID)]
    status: Annotated[str, doc("Where the job is in its life cycle.", "queued", enum=list(JOB.statuses))]
    progress: Annotated[int, doc("Reported progress in percent.", 0)]
    stage_no: Annotated[int | None, doc("Number of the current stage. Null after the last one.", 1)]
    stage: Annotated[str | None, doc("Name of the current stage. Null after the last one.", "sketch")]
    constraints: Annotated[list[Constraint], doc("What the job and its open tasks wait for or are doing.")]
    position: Annotated[
        int | None, doc("Position in the queue of its kind and workflow, from 1. Null if it is in no queue.", 4)
    ]
    position_is_capped: Annotated[bool, doc("Whether the job is further back than `position` says.", False)]
    start: Annotated[StartEstimate, doc("Estimated start.")]
    remaining: Annotated[ProgressEstimate, doc("Estimated progress and remaining time.")]
