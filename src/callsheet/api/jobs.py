"""Jobs and their runs."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from callsheet.api.errors import Error
from callsheet.api.shared_fields import Example, Time, doc
from callsheet.core.model.state_machines import JOB
from callsheet.core.model.workflow_definition import StageSpec

_LABELS = {"campaign": "spring"}


class DurationEstimate(Struct, frozen=True):
    """How long recent jobs of the same workflow took from start to finish. An estimate, not a promise."""

    seconds_p50: Annotated[float, doc("Median duration in seconds.", 11.4)]
    seconds_p90: Annotated[float, doc("90th percentile of the duration in seconds.", 19.8)]
    samples: Annotated[int, doc("Number of past jobs that the estimate is based on.", 20)]


class Job(Struct, frozen=True):
    """A job: one execution of a workflow, paid by a user."""

    id: Annotated[str, doc("Id of the job.", Example.JOB_ID)]
    workflow: Annotated[str, doc("Name of the workflow.", "sketch")]
    workflow_version: Annotated[int, doc("Version of the workflow at submission.", 1)]
    user: Annotated[str, doc("Your id for the user who pays for the job.", "ann")]
    status: Annotated[str, doc("Where the job is in its life cycle.", "queued", enum=list(JOB.statuses))]
    phase: Annotated[
        str | None,
        doc("Detail of the status: `scheduled` until its start time, `canceling` until its workers have stopped, "
            "`approval` while a stage waits for approval. Null otherwise.", None),
    ]  # fmt: skip
    run: Annotated[int, doc("Number of the current run. A retry starts a new run.", 1)]
    priority: Annotated[int, doc("Priority. Jobs with a higher priority start first.", 50)]
    price: Annotated[int, doc("Price in credits, fixed at submission.", 3)]
    progress: Annotated[int, doc("Progress in percent, from 0 to 100.", 0)]
    stages_total: Annotated[int, doc("Number of stages.", 1)]
    stages_completed: Annotated[int, doc("Number of completed stages.", 0)]
    last_event_seq: Annotated[int, doc("Number of the job's newest event. Events are numbered from 1.", 2)]
    cancel_requested: Annotated[bool, doc("Whether cancellation was requested.", False)]
    created_at: Annotated[Time, doc("Time of submission.", Example.AT)]
    updated_at: Annotated[Time, doc("Time of the last change.", Example.AT)]
    start_at: Annotated[Time | None, doc("Earliest start, if the job is scheduled.", None)]
    deadline_at: Annotated[
        Time | None, doc("Time at which the job expires unless it has ended.", "2026-03-21T09:26:53.589Z")
    ]
    started_at: Annotated[Time | None, doc("Time at which the first task of the run started.", None)]
    finished_at: Annotated[Time | None, doc("Time at which the run ended.", None)]
    error: Annotated[Error | None, doc("Why the job did not complete. Null if it did, or has not ended.", None)]
    retry_of: Annotated[str | None, doc("Id of the job that this job retries, with `retry_as: new_job`.", None)]
    labels: Annotated[dict[str, str] | None, doc("Your labels. You can filter lists of jobs by them.", _LABELS)]
    metadata: Annotated[dict[str, Any] | None, doc("Your own JSON. Callsheet stores and returns it.", {"order": 4711})]
    duration_estimate: Annotated[
        DurationEstimate | None,
        doc("Expected duration, for progress bars. Null after the end, and without enough past jobs.", None),
    ] = None

    @property
    def ended(self) -> bool:
        """Whether the current run has ended, in whatever status."""
        return self.finished_at is not None

    @property
    def completed(self) -> bool:
        """Whether the job completed."""
        return self.status == "completed"


class NewJob(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job to submit."""

    workflow: Annotated[str, doc("Name of the workflow.", "sketch")]
    user: Annotated[str, doc("Your id for the user. The job is charged to this user's wallet.", "ann")]
    input: Annotated[Any, doc("Input, valid against the workflow's `input_schema`.", Example.INPUT)] = None
    idempotency_key: Annotated[
        str | None,
        doc(
            "Makes the submission idempotent: the same key returns the same job. Unique per user of a tenant.",
            "order-4711",
        ),
    ] = None
    priority: Annotated[int | None, doc("Priority, from 0 to `priority_max`. Default: that of the workflow.")] = None
    start_in_seconds: Annotated[float, doc("Delay before the job may start, in seconds.")] = 0
    deadline_seconds: Annotated[
        int | None,
        doc(
            "Time from submission, or from the scheduled start, after which the job expires. Default: that of the "
            "workflow."
        ),
    ] = None
    stages: Annotated[
        list[StageSpec] | None,
        doc("Stages of the job. Only for workflows with `inline = true`."),
    ] = None
    labels: Annotated[dict[str, str] | None, doc("Your labels. You can filter lists of jobs by them.", _LABELS)] = None
    metadata: Annotated[dict[str, Any] | None, doc("Your own JSON. Callsheet stores and returns it.")] = None
    trace: Annotated[dict[str, str] | None, doc("W3C trace context, passed to the handlers of the tasks.")] = None
    quote: Annotated[str | None, doc("`quote` of a quote for this user and input. The job costs its price.")] = None


class BulkBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to submit in one request. Each succeeds or fails on its own."""

    jobs: Annotated[
        list[NewJob],
        doc(
            "Jobs to submit, at most `bulk_items_max`.",
            [{"workflow": "sketch", "user": "ann", "input": {"prompt": "dunes"}}],
        ),
    ]


class BulkItem(Struct, frozen=True, omit_defaults=True):
    """Result of one job of a bulk submission."""

    status: Annotated[int, doc("HTTP status that a single submission would have returned.", 201)]
    job_id: Annotated[str | None, doc("Id of the job. Absent if it was refused.", Example.JOB_ID)] = None
    replay: Annotated[bool, doc("Whether the idempotency key had created this job before. Absent if not.")] = False
    problem: Annotated[
        dict[str, Any] | None, doc("Error that a single submission would have returned. Absent on success.")
    ] = None


class BulkResponse(Struct, frozen=True):
    """Results of a bulk submission."""

    results: Annotated[list[BulkItem], doc("One result per job, in the order of the request.")]


class JobQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Long polling."""

    wait_seconds: Annotated[
        float,
        doc("Hold the response until the job has ended or, with If-None-Match, has changed. The server waits at most "
            "`wait_seconds_max` seconds.", 30.0),
        Meta(ge=0, le=86_400),
    ] = 0  # fmt: skip


class JobsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Filters and pagination of a list of jobs. The newest job is first."""

    status: Annotated[str, doc("Return only jobs in this status.", "running", enum=list(JOB.statuses))] = ""
    phase: Annotated[str, doc("`approval` returns only jobs that wait for approval.", "approval")] = ""
    workflow: Annotated[str, doc("Return only jobs of this workflow.", "sketch")] = ""
    user: Annotated[str, doc("Return only jobs of this user.", "ann")] = ""
    label: Annotated[str, doc("Return only jobs with this label, as `name=value`.", "campaign=spring")] = ""
    since: Annotated[
        str, doc("Return only jobs created at or after this time.", "2026-01-31T12:00:00Z", format="date-time")
    ] = ""
    until: Annotated[
        str, doc("Return only jobs created before this time.", "2026-02-01T00:00:00Z", format="date-time")
    ] = ""
    limit: Annotated[int, doc("Maximum number of jobs to return.", 50)] = 50
    cursor: Annotated[str, doc("`next` of the previous page.", Example.CURSOR)] = ""


class JobPage(Struct, frozen=True):
    """One page of jobs, newest first."""

    jobs: Annotated[list[Job], doc("Jobs of this page.")]
    next: Annotated[
        str | None,
        doc("Cursor of the next page. Null on the last page. A page of a filtered list can have fewer jobs than "
            "`limit` and still have a next page: it ends after `scan_rows_max` jobs.", None),
    ]  # fmt: skip


class CancelBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a job is canceled, and how long its workers have to stop."""

    reason: Annotated[str, doc("Reason, recorded with the job.", "The customer changed their mind.")] = (
        "Canceled by request."
    )
    grace_seconds: Annotated[
        int | None,
        doc("Time for workers to stop, in seconds. 0 ends the leases immediately. Default: that of the workflow."),
    ] = None


class RetryBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How to retry a job."""

    retry_as: Annotated[
        Literal["new_run", "new_job"],
        doc("`new_run` starts a new run of this job. `new_job` submits a copy of it as a new job.", "new_run"),
    ] = "new_run"
    idempotency_key: Annotated[
        str | None,
        doc("Makes the retry idempotent: the same key retries this job once.", "again-4711"),
    ] = None


class UpdateBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to a job. Fields that you leave out keep their value."""

    priority: Annotated[int | UnsetType, doc("New priority, from 0 to `priority_max`.", 80)] = UNSET
    labels: Annotated[
        dict[str, str] | UnsetType, doc("New labels. They replace all existing labels.", {"campaign": "summer"})
    ] = UNSET
    metadata: Annotated[dict[str, Any] | UnsetType, doc("New metadata. It replaces all existing metadata.")] = UNSET
    trace: Annotated[dict[str, str] | UnsetType, doc("New W3C trace context.")] = UNSET


class JobInput(Struct, frozen=True):
    """Input of a job."""

    input: Annotated[Any, doc("Input as it was submitted.", Example.INPUT)]


class Run(Struct, frozen=True):
    """One run of a job, from submission or retry to its end, with its credits."""

    no: Annotated[int, doc("Number of the run, from 1.", 1)]
    status: Annotated[str, doc("`open`, or the status of the job when the run ended.", "open")]
    price: Annotated[int, doc("Credits reserved for the run.", 3)]
    consumed: Annotated[int, doc("Credits that the run consumed. 0 while it is open.", 0)]
    refunded: Annotated[int, doc("Credits refunded when the run ended. Later refunds are in the ledger only.", 0)]
    opened_at: Annotated[Time, doc("Time at which the run was opened.", Example.AT)]
    started_at: Annotated[Time | None, doc("Time at which the first task started.", None)]
    finished_at: Annotated[Time | None, doc("Time at which the run ended.", None)]
    error: Annotated[Error | None, doc("Why the run did not complete.", None)]


class RunList(Struct, frozen=True):
    """Runs of a job."""

    runs: Annotated[list[Run], doc("Runs, oldest first. Only the newest, if there are more than `page_size_max`.")]
