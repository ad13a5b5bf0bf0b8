"""Calls about jobs: submit, look, wait, move."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import uuid4

from msgspec.structs import replace

from callsheet.client.binding import call, iterate
from callsheet.client.errors import CallsheetError
from callsheet.client.lasting import end_after, left
from callsheet.client.models import (
    Added,
    Asked,
    Attempt,
    Balance,
    Job,
    NewJob,
    Output,
    Quote,
    Run,
    Stage,
    Task,
    Why,
)
from callsheet.client.patience import away, patiently
from callsheet.client.speaking import Speaking, get, given, path, read, send
from callsheet.client.stored import Freed
from callsheet.client.talk import Items, Request, Talk
from callsheet.core.counting import counted

_HOLD_SECONDS = 30.0
_LOOK_SECONDS = 1.0
"""So long the first look may take, also for those who have less time: else nobody is told anything."""
_SPARE_SECONDS = 0.25
"""So much earlier than the end the server is to answer: the answer takes its time too."""
_LITTLE_SECONDS = 0.05
"""Too little for another look."""


class Jobs(Speaking):
    """Submit jobs, look at them, move them."""

    @call
    def submit(  # noqa: PLR0913 - what a job is made of
        self, workflow: str, *, user: str, input: Any = None, idempotency_key: str | None = None,
        priority: int | None = None, start_in_seconds: float = 0, deadline_seconds: int | None = None,
        stages: list[dict[str, Any]] | None = None, labels: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None, trace: dict[str, str] | None = None, quote: str | None = None,
    ) -> Talk[Job]:  # fmt: skip
        """Reserve the price and queue the work. Without a key one is made, so that a lost answer is asked for again.

        With a key of yours `job.replay` says that it had made this job before.
        """
        body = NewJob(
            workflow=workflow, user=user, input=input, idempotency_key=idempotency_key or uuid4().hex,
            priority=priority, start_in_seconds=start_in_seconds, deadline_seconds=deadline_seconds, stages=stages,
            labels=labels, metadata=metadata, trace=trace, quote=quote,
        )  # fmt: skip
        reply = yield from patiently(self, send("POST", path("jobs"), body, again=True))
        again = idempotency_key is not None and reply.headers.get("idempotent-replay") == "true"
        return replace(read(Job, reply), replay=again)

    @call
    def quote(self, workflow: str, *, user: str, input: Any = None) -> Talk[Quote]:
        """Price a job before submitting it; the quote's text fixes the price for a while."""
        body = {"workflow": workflow, "user": user, "input": input}
        return (yield from self._ask(Quote, send("POST", path("quotes"), body, again=True)))

    @call
    def get(self, job_id: str) -> Talk[Job]:
        """Return a job as it is now."""
        return (yield from self._ask(Job, get(path("jobs", job_id))))

    @call
    def wait(self, job_id: str, timeout: float | None = None) -> Talk[Job]:
        """Wait until a job has ended, well or badly; TimeoutError when `timeout` seconds are over before.

        A server that does not answer gets no more time than that, but a second for the first look: NotReachable.
        """
        end, job = end_after(timeout), None
        while job is None or left(end) > _LITTLE_SECONDS:
            try:
                job = yield from self._ask(Job, _look(job_id, end, first=job is None))
            except CallsheetError as error:
                if job is None or left(end) or not away(error):
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
    ) -> Items[Job]:  # fmt: skip
        """Iterate over jobs, newest first; a label filter is `name=value`, a phase `approval`.

        With a `limit` it ends after so many jobs.
        """
        query = {
            "status": status, "phase": phase, "workflow": workflow, "user": user, "label": label,
            "since": _time(since), "until": _time(until),
        }  # fmt: skip
        yield from self._pages(Job, "jobs", path("jobs"), "cursor", query, limit)

    @call
    def cancel(self, job_id: str, *, reason: str | None = None, grace_seconds: int | None = None) -> Talk[Job]:
        """Stop a job; what runs is asked to stop and gets some grace."""
        return (yield from self._moved(job_id, "cancel", {"reason": reason, "grace_seconds": grace_seconds}))

    @call
    def pause(self, job_id: str) -> Talk[Job]:
        """Hand out no further task of a job."""
        return (yield from self._moved(job_id, "pause", {}))

    @call
    def resume(self, job_id: str) -> Talk[Job]:
        """Go on with a paused job."""
        return (yield from self._moved(job_id, "resume", {}))

    @call
    def retry(
        self, job_id: str, retry_as: Literal["new_run", "new_job"] = "new_run", *, idempotency_key: str | None = None
    ) -> Talk[Job]:
        """Try a failed or expired job again. The same key does that once; without one a key is made."""
        body = {"retry_as": retry_as, "idempotency_key": idempotency_key or uuid4().hex}
        return (yield from self._moved(job_id, "retry", body))

    @call
    def refund(self, job_id: str, *, reason: str, run: int | None = None) -> Talk[Balance]:
        """Give back what a job's last run, or the one of that number, has consumed; once, however often it is said."""
        body = given({"reason": reason, "run": run})
        return (yield from self._ask(Balance, send("POST", path("jobs", job_id, "refund"), body, again=True)))

    @call
    def change(
        self, job_id: str, *, priority: int | None = None, labels: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None, trace: dict[str, str] | None = None,
    ) -> Talk[Job]:  # fmt: skip
        """Change what may change while a job lives; what is None stays."""
        body = given({"priority": priority, "labels": labels, "metadata": metadata, "trace": trace})
        return (yield from self._ask(Job, send("PATCH", path("jobs", job_id), body, again=True)))

    @call
    def delete(self, job_id: str) -> Talk[Freed]:
        """Delete a job with its files; one that has not ended is stopped first."""
        return (yield from self._ask(Freed, send("DELETE", path("jobs", job_id), again=False)))

    @call
    def runs(self, job_id: str) -> Talk[list[Run]]:
        """Return a job's lives with their money, oldest first."""
        return (yield from self._list(Run, "runs", get(path("jobs", job_id, "runs"))))

    @call
    def stages(self, job_id: str) -> Talk[list[Stage]]:
        """Return a job's stages, in order."""
        return (yield from self._list(Stage, "stages", get(path("jobs", job_id, "stages"))))

    @iterate
    def tasks(self, job_id: str) -> Items[Task]:
        """Iterate over a job's tasks, stage by stage, in order."""
        yield from self._pages(Task, "tasks", path("jobs", job_id, "tasks"), "cursor", {})

    @call
    def attempts(self, job_id: str, task_id: str) -> Talk[list[Attempt]]:
        """Return a task's tries, oldest first."""
        return (yield from self._list(Attempt, "attempts", get(path("jobs", job_id, "tasks", task_id, "attempts"))))

    @call
    def input(self, job_id: str) -> Talk[Any]:
        """Return what a job was asked to make, as it was submitted."""
        return (yield from self._ask(Asked, get(path("jobs", job_id, "input")))).input

    @iterate
    def outputs(self, job_id: str) -> Items[Output]:
        """Iterate over what completed tasks made, in order."""
        yield from self._pages(Output, "outputs", path("jobs", job_id, "outputs"), "cursor", {})

    @call
    def why(self, job_id: str) -> Talk[Why]:
        """Return what holds a job, its place in its queue, and when it may start and end."""
        return (yield from self._ask(Why, get(path("jobs", job_id, "why"))))

    @call
    def approve(self, job_id: str, stage: str | int, *, approver: str) -> Talk[Stage]:
        """Let a waiting stage go on, in the name of a person; a stage is its number or its name."""
        where = path("jobs", job_id, "stages", stage, "approve")
        return (yield from self._ask(Stage, send("POST", where, {"approver": approver}, again=True)))

    @call
    def add_tasks(self, job_id: str, stage: str | int, inputs: list[Any]) -> Talk[Added]:
        """Add one task per input to a stage that has not ended. Not repeated by itself."""
        where = path("jobs", job_id, "stages", stage, "tasks")
        return (yield from self._ask(Added, send("POST", where, {"inputs": inputs}, again=False)))

    @call
    def add_stage(self, job_id: str, stage: dict[str, Any]) -> Talk[Added]:
        """Add a stage behind the others. Not repeated by itself."""
        return (
            yield from self._ask(Added, send("POST", path("jobs", job_id, "stages"), {"stage": stage}, again=False))
        )

    def _moved(self, job_id: str, move: str, body: Mapping[str, Any]) -> Talk[Job]:
        return (yield from self._ask(Job, send("POST", path("jobs", job_id, move), given(body) or None, again=True)))


def _look(job_id: str, end: float, *, first: bool) -> Request:
    """Ask for a job as soon as it has ended, or a little before the end."""
    rest = left(end)
    hold = min(_HOLD_SECONDS, max(rest - _SPARE_SECONDS, rest / 2))
    until = max(end, end_after(_LOOK_SECONDS)) if first else end
    return get(path("jobs", job_id), wait=round(hold, 3))._replace(hold_seconds=hold, end=until)


def _time(at: datetime | str) -> str:
    return at if isinstance(at, str) else at.isoformat()
