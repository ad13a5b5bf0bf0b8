"""`client.jobs`: submit jobs, read them, wait for them, change them."""

import builtins
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, cast
from uuid import uuid4

from msgspec.structs import replace

from callsheet.api.events import Event
from callsheet.api.explanation import JobExplanation
from callsheet.api.files import DeleteSummary
from callsheet.api.jobs import Job, JobInput, NewJob, Run
from callsheet.api.stages_and_tasks import AddedTasks, Attempt, Output, Stage, Task
from callsheet.api.wallets import Balance
from callsheet.client.batched_submit import submit_in_batches
from callsheet.client.deadline import deadline_after, seconds_left
from callsheet.client.errors import CallsheetError
from callsheet.client.event_stream import JobPosition, follow_events
from callsheet.client.method_binding import call, iterate
from callsheet.client.operation_effects import IterableOperation, Operation, Request
from callsheet.client.requests_and_pages import (
    get_request,
    json_request,
    paginate,
    parse_reply,
    path,
    raise_for_status,
    send,
    send_for_list,
    without_none,
)
from callsheet.client.resource import D, Resource
from callsheet.client.retry import is_temporary, send_with_retries
from callsheet.client.submit_results import BulkResult, SubmittedJob
from callsheet.core.model.plural import pluralize
from callsheet.core.model.workflow_definition import StageSpec

_POLL_SECONDS_MAX = 30.0
_FIRST_POLL_SECONDS = 1.0
"""The first poll may take this long even with a shorter timeout, so that TimeoutError can name the job's status."""
_RESPONSE_MARGIN_SECONDS = 0.25
"""A long poll ends this much before the deadline, to leave time for the response."""
_POLL_SECONDS_MIN = 0.05
"""With less time left than this, no further poll is sent."""


class Jobs(Resource[D]):
    """Submit jobs, read them, wait for them, change them."""

    @call
    def submit(  # noqa: PLR0913 - one per field of a job
        self, workflow: str, *, user: str, input: Any = None, idempotency_key: str | None = None,
        priority: int | None = None, start_in_seconds: float = 0, deadline_seconds: int | None = None,
        stages: builtins.list[dict[str, Any]] | None = None, labels: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None, trace: dict[str, str] | None = None, quote: str | None = None,
    ) -> Operation[SubmittedJob]:  # fmt: skip
        """Submit a job: reserve its price and queue it.

        The same `idempotency_key` returns the same job, with `job.replay` true. An idempotency key belongs to one user
        of one tenant: another user can use the same key for another job. Without a key the client generates one, so
        that a lost response is retried safely.
        """
        body = NewJob(
            workflow=workflow, user=user, input=input, idempotency_key=idempotency_key or uuid4().hex,
            priority=priority, start_in_seconds=start_in_seconds, deadline_seconds=deadline_seconds,
            stages=cast("builtins.list[StageSpec] | None", stages),  # the server validates them
            labels=labels, metadata=metadata, trace=trace, quote=quote,
        )  # fmt: skip
        reply = yield from send_with_retries(self, json_request("POST", path("jobs"), body, idempotent=True))
        replayed = idempotency_key is not None and reply.headers.get("idempotent-replay") == "true"
        return replace(parse_reply(SubmittedJob, reply), replay=replayed)

    @call
    def submit_many(self, jobs: Iterable[NewJob]) -> Operation[builtins.list[BulkResult]]:
        """Submit any number of jobs, in requests of at most 1000 jobs or 8 MiB. Returns one result per job, in order.

        It raises only if the first request fails. Later failures become the results of the jobs they concern; if the
        server is unavailable, the remaining jobs are not sent.

        Every job has an idempotency key, yours or a generated one, and its result has the same key, so that you can
        submit the job again safely. An idempotency key belongs to one user of one tenant.
        """
        return submit_in_batches(self, jobs)

    @call
    def get(self, job_id: str) -> Operation[Job]:
        """Return a job."""
        return send(self, Job, get_request(path("jobs", job_id)))

    @iterate
    def list(  # noqa: PLR0913 - one per filter
        self, *, status: str | None = None, phase: str | None = None, workflow: str | None = None,
        user: str | None = None, label: str | None = None, since: datetime | str | None = None,
        until: datetime | str | None = None, limit: int | None = None,
    ) -> IterableOperation[Job]:  # fmt: skip
        """Iterate over jobs, newest first. `label` is `name=value`. The phase `approval` finds jobs to approve."""
        query = {
            "status": status, "phase": phase, "workflow": workflow, "user": user, "label": label,
            "since": _format_time(since), "until": _format_time(until),
        }  # fmt: skip
        return paginate(self, Job, "jobs", path("jobs"), query, limit=limit)

    @call
    def wait(self, job_id: str, timeout: float | None = None) -> Operation[Job]:
        """Wait until a job has ended, and return it. Raises TimeoutError after `timeout` seconds.

        If the server does not respond within the timeout (at least one second), it raises APIConnectionError.
        """
        deadline, job = deadline_after(timeout), None
        while job is None or seconds_left(deadline) > _POLL_SECONDS_MIN:
            try:
                job = yield from send(self, Job, _poll_request(job_id, deadline, first=job is None))
            except CallsheetError as error:
                if job is None or seconds_left(deadline) or not is_temporary(error):
                    raise
                text = f"Job {job_id} was {job.status} when it was last read. {error.message}"
                raise TimeoutError(text) from error
            if job.ended:
                return job
        raise TimeoutError(f"Job {job_id} is still {job.status} after {pluralize(float(timeout or 0), 'second')}.")

    @call
    def cancel(self, job_id: str, *, reason: str | None = None, grace_seconds: int | None = None) -> Operation[Job]:
        """Cancel a job. Workers of its running tasks get `grace_seconds` to stop."""
        return self._act(job_id, "cancel", {"reason": reason, "grace_seconds": grace_seconds})

    @call
    def pause(self, job_id: str) -> Operation[Job]:
        """Pause a job: no further task of it starts."""
        return self._act(job_id, "pause", {})

    @call
    def resume(self, job_id: str) -> Operation[Job]:
        """Resume a paused job."""
        return self._act(job_id, "resume", {})

    @call
    def retry(
        self, job_id: str, retry_as: Literal["new_run", "new_job"] = "new_run", *, idempotency_key: str | None = None
    ) -> Operation[Job]:
        """Retry a failed or expired job.

        The same `idempotency_key` retries the job once. An idempotency key belongs to one user of one tenant, and for
        retries to one job. Without a key the client generates one.
        """
        body = {"retry_as": retry_as, "idempotency_key": idempotency_key or uuid4().hex}
        return self._act(job_id, "retry", body)

    @call
    def refund(self, job_id: str, *, reason: str, run: int | None = None) -> Operation[Balance]:
        """Refund what a job's last run, or the run of this number, has consumed. A run is refunded once."""
        body = without_none({"reason": reason, "run": run})
        return send(self, Balance, json_request("POST", path("jobs", job_id, "refund"), body, idempotent=True))

    @call
    def update(
        self, job_id: str, *, priority: int | None = None, labels: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None, trace: dict[str, str] | None = None,
    ) -> Operation[Job]:  # fmt: skip
        """Update the priority, labels, metadata or trace of a job. Arguments that are None stay unchanged."""
        body = without_none({"priority": priority, "labels": labels, "metadata": metadata, "trace": trace})
        return send(self, Job, json_request("PATCH", path("jobs", job_id), body, idempotent=True))

    @call
    def delete(self, job_id: str) -> Operation[DeleteSummary]:
        """Delete a job with its files. A job that has not ended is canceled first."""
        return send(self, DeleteSummary, json_request("DELETE", path("jobs", job_id), idempotent=False))

    @call
    def explain(self, job_id: str) -> Operation[JobExplanation]:
        """Return what blocks a job, its position in the queue, and when it should start and end."""
        return send(self, JobExplanation, get_request(path("jobs", job_id, "why")))

    @iterate
    def events(self, job_id: str, *, cursor: int = 0, follow: bool = False) -> IterableOperation[Event]:
        """Stream a job's events, past and new, until it has ended. With `follow`, continue after the end, for retries.

        The stream reconnects by itself, without gaps or duplicates.
        """
        request = get_request(path("jobs", job_id, "events"), follow="true" if follow else None)
        return follow_events(self, request, JobPosition(str(cursor)))

    @call
    def get_input(self, job_id: str) -> Operation[Any]:
        """Return a job's input, as it was submitted."""
        return (yield from send(self, JobInput, get_request(path("jobs", job_id, "input")))).input

    @iterate
    def outputs(self, job_id: str) -> IterableOperation[Output]:
        """Iterate over the outputs of completed tasks, in order."""
        return paginate(self, Output, "outputs", path("jobs", job_id, "outputs"), {})

    @call
    def runs(self, job_id: str) -> Operation[builtins.list[Run]]:
        """Return a job's runs with their credits, oldest first."""
        return send_for_list(self, Run, "runs", get_request(path("jobs", job_id, "runs")))

    @call
    def stages(self, job_id: str) -> Operation[builtins.list[Stage]]:
        """Return a job's stages, in order."""
        return send_for_list(self, Stage, "stages", get_request(path("jobs", job_id, "stages")))

    @iterate
    def tasks(self, job_id: str) -> IterableOperation[Task]:
        """Iterate over a job's tasks, stage by stage."""
        return paginate(self, Task, "tasks", path("jobs", job_id, "tasks"), {})

    @call
    def attempts(self, job_id: str, task_id: str) -> Operation[builtins.list[Attempt]]:
        """Return a task's attempts, oldest first."""
        endpoint = path("jobs", job_id, "tasks", task_id, "attempts")
        return send_for_list(self, Attempt, "attempts", get_request(endpoint))

    @call
    def get_preview(self, job_id: str, task_id: str) -> Operation[bytes]:
        """Return the latest preview image (PNG) of a running task."""
        reply = yield from send_with_retries(self, get_request(path("jobs", job_id, "tasks", task_id, "preview")))
        raise_for_status(reply)
        return reply.body

    @call
    def approve(self, job_id: str, stage: str | int, *, approver: str) -> Operation[Stage]:
        """Approve a stage that needs approval, by its number or name. `approver` is recorded."""
        endpoint = path("jobs", job_id, "stages", stage, "approve")
        return send(self, Stage, json_request("POST", endpoint, {"approver": approver}, idempotent=True))

    @call
    def add_tasks(self, job_id: str, stage: str | int, inputs: builtins.list[Any]) -> Operation[AddedTasks]:
        """Add one task per input to a stage that has not ended. Not retried automatically."""
        endpoint = path("jobs", job_id, "stages", stage, "tasks")
        return send(self, AddedTasks, json_request("POST", endpoint, {"inputs": inputs}, idempotent=False))

    @call
    def add_stage(self, job_id: str, stage: dict[str, Any]) -> Operation[AddedTasks]:
        """Add a stage after the existing ones. Not retried automatically."""
        request = json_request("POST", path("jobs", job_id, "stages"), {"stage": stage}, idempotent=False)
        return send(self, AddedTasks, request)

    def _act(self, job_id: str, action: str, body: Mapping[str, Any]) -> Operation[Job]:
        request = json_request("POST", path("jobs", job_id, action), without_none(body) or None, idempotent=True)
        return send(self, Job, request)


def _poll_request(job_id: str, deadline: float, *, first: bool) -> Request:
    """Build a long poll that the server answers when the job has ended, or shortly before the deadline."""
    remaining = seconds_left(deadline)
    wait_seconds = min(_POLL_SECONDS_MAX, max(remaining - _RESPONSE_MARGIN_SECONDS, remaining / 2))
    request_deadline = max(deadline, deadline_after(_FIRST_POLL_SECONDS)) if first else deadline
    return get_request(path("jobs", job_id), wait_seconds=round(wait_seconds, 3))._replace(
        server_wait_seconds=wait_seconds, deadline=request_deadline
    )


def _format_time(at: datetime | str | None) -> str | None:
    return at.isoformat() if isinstance(at, datetime) else at
