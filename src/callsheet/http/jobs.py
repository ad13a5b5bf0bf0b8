"""Jobs: submit, look, and move them."""

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from callsheet.blobs import keys
from callsheet.core import commands, rows
from callsheet.core.errors import Refusal
from callsheet.core.recipe import StageSpec
from callsheet.http import views
from callsheet.http.auth import Who
from callsheet.http.codes import INPUT, NOTES, REFERENCES, STAGE, VALUES
from callsheet.http.conditions import matches
from callsheet.http.expected import Expected
from callsheet.http.faults import problem_from
from callsheet.http.freeing import Freed, freed
from callsheet.http.house import House
from callsheet.http.hub import JOB
from callsheet.http.problem import Problem, absent
from callsheet.http.quotes import quoted_price
from callsheet.http.request import Request
from callsheet.http.route import WATCHERS, WRITERS, Answer, Route


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


class BulkResult(Struct, frozen=True, omit_defaults=True):
    """What became of one job of a bulk: its status as if it had been sent alone."""

    status: int
    job_id: str | None = None
    replay: bool = False
    problem: dict[str, Any] | None = None


class Bulk(Struct, frozen=True):
    """Outcomes in the order of the request."""

    results: list[BulkResult]


class JobQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How to look at a job."""

    wait: Annotated[float, Meta(ge=0, le=86_400)] = 0
    """Seconds to hold the answer until there is news; more than `wait_seconds_max` counts as that."""


class CancelBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Why, and how long a worker may take to stop."""

    reason: str = "Canceled by request."
    grace_seconds: int | None = None


class RetryBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How to try again."""

    retry_as: Literal["new_run", "new_job"] = "new_run"
    idempotency_key: str | None = None


class ChangeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What may change while a job lives."""

    priority: int | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    trace: dict[str, str] | UnsetType = UNSET


# -- what others need too


def job_row(house: House, request: Request) -> Awaitable[rows.Job]:
    """Return the job that a path names, if the caller may see it."""
    return _read(house, request.who, request.params["job_id"])


async def shown(house: House, job: rows.Job, status: int = 200, *headers: tuple[str, str]) -> Answer:
    """Answer with a job and its tag."""
    expected = await house.expectations.of(job)
    return Answer(views.job_json(job, expected), status, (("etag", tag_of(job, expected)), *headers))


def tag_of(job: rows.Job, expected: Expected | None) -> str:
    """Name what is shown of a job: its row, and what is expected of it."""
    if expected is None:
        return f'{_row_tag(job)}"'
    return f'{_row_tag(job)}-{expected.seconds_p50}-{expected.seconds_p90}-{expected.samples}"'


def _row_tag(job: rows.Job) -> str:
    """Return how the tags of a job begin while its row is the same."""
    return f'"{job.run}-{job.seq}-{job.updated_at}'


# -- handlers


async def submit_job(house: House, request: Request) -> Answer:
    command = await _submit(house, request, request.content, request.idempotency_key(request.content.idempotency_key))
    done: commands.Submitted = await house.engine.aexecute(command)
    job = await _read(house, request.who, done.job_id)
    location = ("location", f"/v1/jobs/{job.id}")
    if done.replay:
        return await shown(house, job, 200, location, ("idempotent-replay", "true"))
    return await shown(house, job, 201, location)


async def submit_jobs(house: House, request: Request) -> Answer:
    body: BulkBody = request.content
    whole = request.idempotency_key(None)
    ready: list[Any] = []
    for no, one in enumerate(body.jobs):
        key = one.idempotency_key or (f"{whole}/{no}" if whole else None)
        try:
            ready.append(await _submit(house, request, one, key))
        except Problem as problem:
            ready.append(problem)
    places = [place for place, one in enumerate(ready) if not isinstance(one, Problem)]
    answers = await house.engine.aexecute_many([ready[place] for place in places])
    for place, answer in zip(places, answers, strict=True):
        ready[place] = answer
    faults = [one for one in ready if isinstance(one, Exception) and not isinstance(one, Problem | Refusal)]
    if faults and not any(isinstance(one, commands.Submitted) for one in ready):
        raise faults[0]  # nothing was accepted: all of it may be sent again
    return Answer(Bulk([_outcome(house, request, one) for one in ready]))


async def get_job(house: House, request: Request) -> Answer:
    query = request.query(JobQuery) if request.scope["query_string"] else JobQuery()
    job = await job_row(house, request)
    known = request.header(b"if-none-match")
    if query.wait:
        job = await request.unless_gone(_awaited(house, request, job, known, query.wait))
    answer = await shown(house, job)
    if known is not None and matches(known, answer.headers[0][1]):
        return Answer(None, 304, answer.headers)
    return answer


async def cancel_job(house: House, request: Request) -> Answer:
    body: CancelBody = request.content
    return await _moved(house, request, commands.Cancel, reason=body.reason, grace_seconds=body.grace_seconds)


async def pause_job(house: House, request: Request) -> Answer:
    return await _moved(house, request, commands.Pause)


async def resume_job(house: House, request: Request) -> Answer:
    return await _moved(house, request, commands.Resume)


async def retry_job(house: House, request: Request) -> Answer:
    body: RetryBody = request.content
    key = request.idempotency_key(body.idempotency_key)
    return await _moved(house, request, commands.Retry, retry_as=body.retry_as, idempotency_key=key)


async def change_job(house: House, request: Request) -> Answer:
    body: ChangeBody = request.content
    changes = {
        name: value
        for name in ("priority", "labels", "metadata", "trace")
        if (value := getattr(body, name)) is not UNSET
    }
    return await _moved(house, request, commands.Change, **changes)


async def delete_job(house: House, request: Request) -> Answer:
    who: Who = request.who
    job_id = request.params["job_id"]
    await house.engine.aexecute(commands.Delete(tenant=who.tenant, job_id=job_id, actor=who.actor, by=who.id))
    prefix = keys.job_prefix(who.tenant, job_id)
    return Answer(await freed(house, request, lambda: house.blobs.delete_prefix(prefix)))


# -- steps


async def _submit(house: House, request: Request, body: SubmitBody, key: str | None) -> commands.Submit:
    who: Who = request.who
    command = commands.Submit(
        tenant=who.tenant, user=body.user, workflow=body.workflow, input=body.input, idempotency_key=key,
        priority=body.priority, start_in_seconds=body.start_in_seconds, deadline_seconds=body.deadline_seconds,
        stages=body.stages, labels=body.labels, metadata=body.metadata, trace=body.trace, by=who.id, actor=who.actor,
    )  # fmt: skip
    return command if body.quote is None else replace(command, price=await quoted_price(house, command, body.quote))


def _outcome(house: House, request: Request, one: Any) -> BulkResult:
    if isinstance(one, commands.Submitted):
        return BulkResult(200 if one.replay else 201, one.job_id, one.replay)
    problem = problem_from(house, request.id, one)
    return BulkResult(problem.status, problem=problem.body(request.id))


async def _read(house: House, who: Who, job_id: str) -> rows.Job:
    """Return a caller's job; another's, and a deleted one, looks absent."""
    found = await house.reads.row("jobs_unlocked", job_id)
    job = rows.Job(*found) if found else None
    if job is None or job.tenant != who.tenant or job.deleted_at is not None or who.user not in {None, job.user_id}:
        raise absent("job")
    return job


async def _moved(house: House, request: Request, command: Any, **more: Any) -> Answer:
    who: Who = request.who
    job_id = request.params["job_id"]
    state = await house.engine.aexecute(command(tenant=who.tenant, job_id=job_id, actor=who.actor, by=who.id, **more))
    return await shown(house, await _read(house, who, state.job_id))


async def _awaited(house: House, request: Request, job: rows.Job, known: str | None, seconds: float) -> rows.Job:
    """Wait until a job has ended, or, for a client that knows a state of it, until it is another.

    A new estimate is no news: it is shown when there is some, or when the wait is over.
    """

    def news(now: rows.Job) -> bool:
        return now.finished_at is not None or (known not in {None, "*"} and _row_tag(now) not in str(known))

    if news(job):
        return job
    loop = asyncio.get_running_loop()
    end = loop.time() + min(max(seconds, 0), house.settings.wait_seconds_max)
    key, who = (JOB, job.id), request.who.caller
    watch = await house.hub.join(key, who, browser=request.who.user is not None)
    try:
        while True:
            job = await job_row(house, request)
            rest = end - loop.time()
            if news(job) or rest <= 0 or watch.ended:
                return job
            await watch.wait(rest)
            watch.events.clear()
            watch.caught_up()
    finally:
        house.hub.leave(key, who, watch)


_NOT_FOUND = "404 job_not_found"
_MOVE = (_NOT_FOUND, "409 illegal_transition")
_SHOWN = ("ETag",)
_KEYED = ("400 invalid_idempotency_key", "422 two_idempotency_keys")
ROUTES = (
    Route(
        "POST", "/v1/jobs", submit_job, WRITERS, "Submit a job", views.Job, SubmitBody, status=201, also=(200,),
        problems=(
            *_KEYED, "402 insufficient_credits", "403 tenant_suspended", "403 *",
            "404 workflow_not_found", "404 tenant_not_found", *REFERENCES, "409 workflow_disabled", "409 job_deleted",
            "409 too_many_queues",
            "422 idempotency_key_reused", "422 invalid_user", "422 invalid_input",
            *INPUT, *NOTES, "422 inline_stages", *STAGE, "422 invalid_quote", "422 quote_expired",
            "429 too_many_active_jobs",
        ),
        reads=("Idempotency-Key",), sets=("ETag", "Location", "Idempotent-Replay"),
        details="Reserves the price and queues the work in one step. With an idempotency key (in the body or the "
        "Idempotency-Key header) the same request is answered with the same job, status 200 and Idempotent-Replay.",
    ),
    Route(
        "POST", "/v1/jobs/bulk", submit_jobs, WRITERS, "Submit up to 1,000 jobs", Bulk, BulkBody,
        problems=("400 invalid_idempotency_key", "422 too_many_commands"), reads=("Idempotency-Key",),
        details="Each job has its own outcome, as if it had been sent alone, and best its own idempotency key; with an "
        "Idempotency-Key header, those without one get a key from it and their place. One with a `status` of 503 may "
        "be sent again.",
        body_max="bulk_bytes_max",
    ),
    Route(
        "GET", "/v1/jobs/{job_id}", get_job, WATCHERS, "Get a job", views.Job, query=JobQuery, also=(304,),
        problems=(_NOT_FOUND, "429 too_many_streams", "503 stopping"), reads=("If-None-Match",), sets=("ETag",),
        details="`wait` holds the answer until the job has ended, or, with If-None-Match, until it has changed.",
    ),
    Route("PATCH", "/v1/jobs/{job_id}", change_job, WRITERS, "Change a job's priority, labels, metadata or trace",
          views.Job, ChangeBody, problems=(_NOT_FOUND, "409 job_ended", *NOTES, *VALUES), sets=_SHOWN),
    Route("DELETE", "/v1/jobs/{job_id}", delete_job, WRITERS, "Delete a job", Freed,
          problems=(*_MOVE, "409 file_in_use"),
          details="One that lives is canceled first. Its texts and files go; ids, money and evidence stay."),
    Route("POST", "/v1/jobs/{job_id}/cancel", cancel_job, WRITERS, "Cancel a job", views.Job, CancelBody,
          problems=(*_MOVE, *VALUES), sets=_SHOWN),
    Route("POST", "/v1/jobs/{job_id}/pause", pause_job, WRITERS, "Pause a job: hand out no further task", views.Job,
          problems=(*_MOVE, "409 cancel_requested"), sets=_SHOWN),
    Route("POST", "/v1/jobs/{job_id}/resume", resume_job, WRITERS, "Resume a paused job", views.Job,
          problems=_MOVE, sets=_SHOWN),
    Route("POST", "/v1/jobs/{job_id}/retry", retry_job, WRITERS, "Retry a failed or expired job", views.Job,
          RetryBody, reads=("Idempotency-Key",), sets=_SHOWN,
          problems=(*_MOVE, *REFERENCES, *_KEYED, "402 insufficient_credits", "409 file_dropped", "409 job_deleted",
                    "409 workflow_disabled", "429 too_many_active_jobs"),
          details="The same idempotency key (in the body or the Idempotency-Key header) opens one run, or makes one "
          "job, however often it is sent."),
)  # fmt: skip
