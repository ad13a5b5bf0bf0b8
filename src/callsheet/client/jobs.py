"""Calls about jobs: submit, look, wait, move."""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Literal
from uuid import uuid4

from msgspec.structs import replace

from callsheet.client.binding import call, iterate
from callsheet.client.models import (
    Added,
    Asked,
    Attempt,
    Balance,
    Job,
    NewJob,
    Outcome,
    Output,
    Quote,
    Run,
    Stage,
    Task,
    Why,
)
from callsheet.client.speaking import Speaking, get, given, path, send
from callsheet.client.stored import Freed
from callsheet.client.talk import Items, Nap, Talk
from callsheet.core.counting import counted

_AWAY = 503
_BULK = 1_000
_HOLD_SECONDS = 30.0
_MARGIN_SECONDS = 0.001


class Jobs(Speaking):
    """Submit jobs, look at them, move them."""

    @call
    def submit(  # noqa: PLR0913 - what a job is made of
        self, workflow: str, *, user: str, input: Any = None, idempotency_key: str | None = None,
        priority: int | None = None, start_in_seconds: float = 0, deadline_seconds: int | None = None,
        stages: list[dict[str, Any]] | None = None, labels: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None, trace: dict[str, str] | None = None, quote: str | None = None,
    ) -> Talk[Job]:  # fmt: skip
        """Reserve the price and queue the work. Without a key one is made, so that a lost answer is asked for again."""
        body = NewJob(
            workflow=workflow, user=user, input=input, idempotency_key=idempotency_key or _key(), priority=priority,
            start_in_seconds=start_in_seconds, deadline_seconds=deadline_seconds, stages=stages, labels=labels,
            metadata=metadata, trace=trace, quote=quote,
        )  # fmt: skip
        return (yield from self._ask(Job, send("POST", path("jobs"), body, again=True)))

    @call
    def submit_many(self, jobs: Iterable[NewJob]) -> Talk[list[Outcome]]:
        """Submit any number of jobs; each has its own outcome, in order. Sent by the thousand."""
        rest = iter(jobs)
        outcomes: list[Outcome] = []
        while some := [_keyed(job) for job in islice(rest, _BULK)]:
            outcomes += yield from self._submitted(some)
        return outcomes

    def _submitted(self, jobs: list[NewJob]) -> Talk[list[Outcome]]:
        """Submit jobs in one request; those for which there was no answer are sent again, by their keys."""
        outcomes: list[Outcome] = yield from self._sent(jobs)
        for failures in range(1, self.patience.retries_max + 1):
            rest = [place for place, outcome in enumerate(outcomes) if outcome.status == _AWAY]
            if not rest:
                break
            yield Nap(self.patience.seconds(failures))
            for place, outcome in zip(rest, (yield from self._sent([jobs[place] for place in rest])), strict=True):
                outcomes[place] = outcome
        return outcomes

    def _sent(self, jobs: list[NewJob]) -> Talk[list[Outcome]]:
        return (
            yield from self._list(Outcome, "results", send("POST", path("jobs", "bulk"), {"jobs": jobs}, again=True))
        )

    @call
    def quote(self, workflow: str, *, user: str, input: Any = None) -> Talk[Quote]:
        """Price a job before submitting it; the quote's text fixes the price for a while."""
        body = {"workflow": workflow, "user": user, "input": input}
        return (yield from self._ask(Quote, send("POST", path("quotes"), body, again=True)))

    @call
    def get(self, job_id: str) -> Talk[Job]:
        return (yield from self._ask(Job, get(path("jobs", job_id))))

    @call
    def wait(self, job_id: str, timeout: float | None = None) -> Talk[Job]:
        """Wait until a job has ended, well or badly; TimeoutError when `timeout` seconds are over before."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            hold = _HOLD_SECONDS if end is None else min(_HOLD_SECONDS, max(end - time.monotonic(), 0))
            job = yield from self._ask(Job, get(path("jobs", job_id), wait=round(hold, 3))._replace(hold_seconds=hold))
            if job.ended:
                return job
            if end is not None and time.monotonic() >= end - _MARGIN_SECONDS:
                raise TimeoutError(f"The job {job_id} is {job.status} after {counted(float(timeout or 0), 'second')}.")

    @iterate
    def jobs(
        self, *, status: str = "", phase: str = "", workflow: str = "", user: str = "", label: str = "",
        since: datetime | str = "", until: datetime | str = "",
    ) -> Items[Job]:  # fmt: skip
        """Iterate over jobs, newest first; a label filter is `name=value`, a phase `approval`."""
        query = {
            "status": status, "phase": phase, "workflow": workflow, "user": user, "label": label,
            "since": _time(since), "until": _time(until),
        }  # fmt: skip
        yield from self._pages(Job, "jobs", path("jobs"), "cursor", query)

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
    def retry(self, job_id: str, retry_as: Literal["new_run", "new_job"] = "new_run") -> Talk[Job]:
        """Try a failed or expired job again. Not repeated by itself: it costs credits."""
        return (yield from self._moved(job_id, "retry", {"retry_as": retry_as}, again=False))

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
        return (yield from self._list(Stage, "stages", get(path("jobs", job_id, "stages"))))

    @call
    def tasks(self, job_id: str) -> Talk[list[Task]]:
        return (yield from self._list(Task, "tasks", get(path("jobs", job_id, "tasks"))))

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

    def _moved(self, job_id: str, move: str, body: Mapping[str, Any], *, again: bool = True) -> Talk[Job]:
        return (yield from self._ask(Job, send("POST", path("jobs", job_id, move), given(body) or None, again=again)))


def _key() -> str:
    return uuid4().hex


def _keyed(job: NewJob) -> NewJob:
    return job if job.idempotency_key else replace(job, idempotency_key=_key())


def _time(at: datetime | str) -> str:
    return at if isinstance(at, str) else at.isoformat()
