"""Calls about jobs: submit, look, wait, move."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import uuid4

from msgspec.structs import replace

from callsheet.client.deadline import deadline_after, seconds_left
from callsheet.client.errors import CallsheetError
from callsheet.client.file_models import DeleteSummary
from callsheet.client.method_binding import call, iterate
from callsheet.client.models import (
    AddedTasks,
    Attempt,
    Balance,
    Job,
    JobExplanation,
    JobInput,
    NewJob,
    Output,
    Quote,
    Run,
    Stage,
    Task,
)
from callsheet.client.operations import IterableOperation, Operation, Request
from callsheet.client.resource import Resource, get, json_request, parse_reply, path, without_none
from callsheet.client.retry import is_temporary, send_with_retries
from callsheet.core.model.plural import counted

_POLL_SECONDS_MAX = 30.0
_FIRST_POLL_SECONDS = 1.0
"""So long the first look may take, also for those who have less time: else nobody is told anything."""
_ANSWER_MARGIN_SECONDS = 0.25
"""So much earlier than the end the server is to answer: the answer takes its time too."""
_POLL_SECONDS_MIN = 0.05
"""Too little for another look."""


class Jobs(Resource):
    """Submit jobs, look at them, move them."""

    @call
    def submit(  # noqa: PLR0913 - what a job is made of
        self, workflow: str, *, user: str, input: Any = None, idempotency_key: str | None = None,
        priority: int | None = None, start_in_seconds: float = 0, deadline_seconds: int | None = None,
        stages: list[dict[str, Any]] | None = None, labels: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None, trace: dict[str, str] | None = None, quote: str | None = None,
    ) -> Operation[Job]:  # fmt: skip
        """Reserve the price and queue the work. Without a key one is made, so that a lost answer is asked for again.

        With a key of yours `job.replay` says that it had made this job before.
        """
        body = NewJob(
            workflow=workflow, user=user, input=input, idempotency_key=idempotency_key or uuid4().hex,
            priority=priority, start_in_seconds=start_in_seconds, deadline_seconds=deadline_seconds, stages=stages,
            labels=labels, metadata=metadata, trace=trace, quote=quote,
        )  # fmt: skip
        reply = yield from send_with_retries(self, json_request("POST", path("jobs"), body, idempotent=True))
        idempotent = idempotency_key is not None and reply.headers.get("idempotent-replay") == "true"
        return replace(parse_reply(Job, reply), replay=idempotent)

    @call
    def quote(self, workflow: str, *, user: str, input: Any = None) -> Operation[Quote]:
        """Price a job before submitting it; the quote's text fixes the price for a while."""
        body = {"workflow": workflow, "user": user, "input": input}
        return (yield from self._request(Quote, json_request("POST", path("quotes"), body, idempotent=True)))

    @call
    def get(self, job_id: str) -> Operation[Job]:
        """Return a job as it is now."""
        return (yield from self._request(Job, get(path("jobs", job_id))))

    @call
    def wait(self, job_id: str, timeout: float | None = None) -> Operation[Job]:
        """Wait until a job has ended, well or badly; TimeoutError when `timeout` seconds are over before.

        A server that does not answer gets no more time than that, but a second for the first look: APIConnectionError.
        """
        deadline, job = deadline_after(timeout), None
        while job is None or seconds_left(deadline) > _POLL_SECONDS_MIN:
            try:
                job = yield from self._request(Job, _poll_request(job_id, deadline, first=job is None))
            except CallsheetError as error:
                if job is None or seconds_left(deadline) or not is_temporary(error):
                    raise
                text = f"The job {job_id} was {job.status} when it was last seen. {error.message}"
                raise TimeoutError(text) from error
            if job.ended:
                return job
        raise TimeoutError(f"The job {job_id} is {job.status} after {counted(float(timeout or 0), 'second')}.")

    @iterate
    def jobs(  # noqa: PLR0913 - filters
        self, *, status: str = "", phase: str = "", workflow: str = "", user: str = "", label: str = "",
        since: datetime | str = "", until: datetime | str = "", limit: int | None = None,
    ) -> IterableOperation[Job]:  # fmt: skip
        """Iterate over jobs, newest first; a label filter is `name=value`, a phase `approval`.

        With a `limit` it ends after so many jobs.
        """
        query = {
            "status": status, "phase": phase, "workflow": workflow, "user": user, "label": label,
            "since": _format_time(since), "until": _format_time(until),
        }  # fmt: skip
        yield from self._paginate(Job, "jobs", path("jobs"), "cursor", query, limit)

    @call
    def cancel(self, job_id: str, *, reason: str | None = None, grace_seconds: int | None = None) -> Operation[Job]:
        """Stop a job; what runs is asked to stop and gets some grace."""
        return (yield from self._transition(job_id, "cancel", {"reason": reason, "grace_seconds": grace_seconds}))

    @call
    def pause(self, job_id: str) -> Operation[Job]:
        """Hand out no further task of a job."""
        return (yield from self._transition(job_id, "pause", {}))

    @call
    def resume(self, job_id: str) -> Operation[Job]:
        """Go on with a paused job."""
        return (yield from self._transition(job_id, "resume", {}))

    @call
    def retry(
        self, job_id: str, retry_as: Literal["new_run", "new_job"] = "new_run", *, idempotency_key: str | None = None
    ) -> Operation[Job]:
        """Try a failed or expired job again. The same key does that once; without one a key is made."""
        body = {"retry_as": retry_as, "idempotency_key": idempotency_key or uuid4().hex}
        return (yield from self._transition(job_id, "retry", body))

    @call
    def refund(self, job_id: str, *, reason: str, run: int | None = None) -> Operation[Balance]:
        """Give back what a job's last run, or the one of that number, has consumed; once, however often it is said."""
        body = without_none({"reason": reason, "run": run})
        return (
            yield from self._request(
                Balance, json_request("POST", path("jobs", job_id, "refund"), body, idempotent=True)
            )
        )

    @call
    def update(
        self, job_id: str, *, priority: int | None = None, labels: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None, trace: dict[str, str] | None = None,
    ) -> Operation[Job]:  # fmt: skip
        """Change what may change while a job lives; what is None stays."""
        body = without_none({"priority": priority, "labels": labels, "metadata": metadata, "trace": trace})
        return (yield from self._request(Job, json_request("PATCH", path("jobs", job_id), body, idempotent=True)))

    @call
    def delete(self, job_id: str) -> Operation[DeleteSummary]:
        """Delete a job with its files; one that has not ended is stopped first."""
        return (yield from self._request(DeleteSummary, json_request("DELETE", path("jobs", job_id), idempotent=False)))

    @call
    def runs(self, job_id: str) -> Operation[list[Run]]:
        """Return a job's lives with their money, oldest first."""
        return (yield from self._request_list(Run, "runs", get(path("jobs", job_id, "runs"))))

    @call
    def stages(self, job_id: str) -> Operation[list[Stage]]:
        """Return a job's stages, in order."""
        return (yield from self._request_list(Stage, "stages", get(path("jobs", job_id, "stages"))))

    @iterate
    def tasks(self, job_id: str) -> IterableOperation[Task]:
        """Iterate over a job's tasks, stage by stage, in order."""
        yield from self._paginate(Task, "tasks", path("jobs", job_id, "tasks"), "cursor", {})

    @call
    def attempts(self, job_id: str, task_id: str) -> Operation[list[Attempt]]:
        """Return a task's tries, oldest first."""
        return (
            yield from self._request_list(Attempt, "attempts", get(path("jobs", job_id, "tasks", task_id, "attempts")))
        )

    @call
    def input(self, job_id: str) -> Operation[Any]:
        """Return what a job was asked to make, as it was submitted."""
        return (yield from self._request(JobInput, get(path("jobs", job_id, "input")))).input

    @iterate
    def outputs(self, job_id: str) -> IterableOperation[Output]:
        """Iterate over what completed tasks made, in order."""
        yield from self._paginate(Output, "outputs", path("jobs", job_id, "outputs"), "cursor", {})

    @call
    def why(self, job_id: str) -> Operation[JobExplanation]:
        """Return what holds a job, its place in its queue, and when it may start and end."""
        return (yield from self._request(JobExplanation, get(path("jobs", job_id, "why"))))

    @call
    def approve(self, job_id: str, stage: str | int, *, approver: str) -> Operation[Stage]:
        """Let a waiting stage go on, in the name of a person; a stage is its number or its name."""
        endpoint = path("jobs", job_id, "stages", stage, "approve")
        return (
            yield from self._request(Stage, json_request("POST", endpoint, {"approver": approver}, idempotent=True))
        )

    @call
    def add_tasks(self, job_id: str, stage: str | int, inputs: list[Any]) -> Operation[AddedTasks]:
        """Add one task per input to a stage that has not ended. Not repeated by itself."""
        endpoint = path("jobs", job_id, "stages", stage, "tasks")
        return (
            yield from self._request(AddedTasks, json_request("POST", endpoint, {"inputs": inputs}, idempotent=False))
        )

    @call
    def add_stage(self, job_id: str, stage: dict[str, Any]) -> Operation[AddedTasks]:
        """Add a stage behind the others. Not repeated by itself."""
        return (
            yield from self._request(
                AddedTasks, json_request("POST", path("jobs", job_id, "stages"), {"stage": stage}, idempotent=False)
            )
        )

    def _transition(self, job_id: str, action: str, body: Mapping[str, Any]) -> Operation[Job]:
        return (
            yield from self._request(
                Job, json_request("POST", path("jobs", job_id, action), without_none(body) or None, idempotent=True)
            )
        )


def _poll_request(job_id: str, deadline: float, *, first: bool) -> Request:
    """Ask for a job as soon as it has ended, or a little before the end."""
    remaining = seconds_left(deadline)
    wait_seconds = min(_POLL_SECONDS_MAX, max(remaining - _ANSWER_MARGIN_SECONDS, remaining / 2))
    until = max(deadline, deadline_after(_FIRST_POLL_SECONDS)) if first else deadline
    return get(path("jobs", job_id), wait=round(wait_seconds, 3))._replace(
        server_wait_seconds=wait_seconds, deadline=until
    )


def _format_time(at: datetime | str) -> str:
    return at if isinstance(at, str) else at.isoformat()
