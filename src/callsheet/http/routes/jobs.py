"""Jobs: submit, look, and move them."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from callsheet.api.files import DeleteSummary
from callsheet.api.jobs import (
    BulkBody,
    BulkItem,
    BulkResponse,
    CancelBody,
    DurationEstimate,
    Job,
    JobQuery,
    RetryBody,
    SubmitBody,
    UpdateBody,
)
from callsheet.core.model import commands, rows
from callsheet.core.model.errors import Refusal
from callsheet.http.auth.authenticator import Caller
from callsheet.http.broadcaster import JOB
from callsheet.http.openapi.error_codes import INPUT, NOTES, REFERENCES, STAGE, VALUES
from callsheet.http.server.conditional import etag_matches
from callsheet.http.server.exception_map import problem_from
from callsheet.http.server.problems import Problem, not_found
from callsheet.http.server.request import Request
from callsheet.http.server.router import READERS_AND_USERS, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import render
from callsheet.queries.quotes import quoted_price

# -- what others need too


def job_row(state: AppState, request: Request) -> Awaitable[rows.Job]:
    """Return the job that a path names, if the caller may see it."""
    return _find_job(state, request.caller, request.params["job_id"])


async def job_response(state: AppState, job: rows.Job, status: int = 200, *headers: tuple[str, str]) -> Response:
    """Answer with a job and its tag."""
    duration_estimate = await state.duration_estimates.estimate(job)
    return Response(
        render.job_json(job, duration_estimate), status, (("etag", job_etag(job, duration_estimate)), *headers)
    )


def job_etag(job: rows.Job, duration_estimate: DurationEstimate | None) -> str:
    """Name what is shown of a job: its row, and what is expected of it."""
    if duration_estimate is None:
        return f'{_row_etag(job)}"'
    return (
        f'{_row_etag(job)}-{duration_estimate.seconds_p50}-{duration_estimate.seconds_p90}-{duration_estimate.samples}"'
    )


def _row_etag(job: rows.Job) -> str:
    """Return how the tags of a job begin while its row is the same."""
    return f'"{job.run}-{job.seq}-{job.updated_at}'


# -- handlers


async def submit_job(state: AppState, request: Request) -> Response:
    command = await _submit_command(
        state, request, request.content, request.idempotency_key(request.content.idempotency_key)
    )
    done: commands.SubmitResult = await state.engine.aexecute(command)
    job = await _find_job(state, request.caller, done.job_id)
    location = ("location", f"/v1/jobs/{job.id}")
    if done.replay:
        return await job_response(state, job, 200, location, ("idempotent-replay", "true"))
    return await job_response(state, job, 201, location)


async def submit_jobs(state: AppState, request: Request) -> Response:
    body: BulkBody = request.content
    bulk_key = request.idempotency_key(None)
    ready: list[Any] = []
    for no, one in enumerate(body.jobs):
        key = one.idempotency_key or (f"{bulk_key}/{no}" if bulk_key else None)
        try:
            ready.append(await _submit_command(state, request, one, key))
        except Problem as problem:
            ready.append(problem)
    indexes = [index for index, one in enumerate(ready) if not isinstance(one, Problem)]
    answers = await state.engine.aexecute_many([ready[index] for index in indexes])
    for index, answer in zip(indexes, answers, strict=True):
        ready[index] = answer
    errors = [one for one in ready if isinstance(one, Exception) and not isinstance(one, Problem | Refusal)]
    if errors and not any(isinstance(one, commands.SubmitResult) for one in ready):
        raise errors[0]  # nothing was accepted: all of it may be sent again
    return Response(BulkResponse([_bulk_item(state, request, one) for one in ready]))


async def get_job(state: AppState, request: Request) -> Response:
    query = request.query(JobQuery) if request.scope["query_string"] else JobQuery()
    job = await job_row(state, request)
    known = request.header(b"if-none-match")
    if query.wait:
        job = await request.until_disconnect(_wait_for_news(state, request, job, known, query.wait))
    answer = await job_response(state, job)
    if known is not None and etag_matches(known, answer.headers[0][1]):
        return Response(None, 304, answer.headers)
    return answer


async def cancel_job(state: AppState, request: Request) -> Response:
    body: CancelBody = request.content
    return await _run_command(state, request, commands.Cancel, reason=body.reason, grace_seconds=body.grace_seconds)


async def pause_job(state: AppState, request: Request) -> Response:
    return await _run_command(state, request, commands.Pause)


async def resume_job(state: AppState, request: Request) -> Response:
    return await _run_command(state, request, commands.Resume)


async def retry_job(state: AppState, request: Request) -> Response:
    body: RetryBody = request.content
    key = request.idempotency_key(body.idempotency_key)
    return await _run_command(state, request, commands.Retry, retry_as=body.retry_as, idempotency_key=key)


async def update_job(state: AppState, request: Request) -> Response:
    body: UpdateBody = request.content
    changes = {
        name: value
        for name in ("priority", "labels", "metadata", "trace")
        if (value := getattr(body, name)) is not UNSET
    }
    return await _run_command(state, request, commands.Update, **changes)


async def delete_job(state: AppState, request: Request) -> Response:
    caller: Caller = request.caller
    command = commands.Delete(tenant=caller.tenant, job_id=request.params["job_id"], actor=caller.actor, by=caller.id)
    return Response(await state.file_deletion.delete_job(command, lambda error: state.report_error(request.id, error)))


# -- steps


async def _submit_command(state: AppState, request: Request, body: SubmitBody, key: str | None) -> commands.Submit:
    caller: Caller = request.caller
    command = commands.Submit(
        tenant=caller.tenant, user=body.user, workflow=body.workflow, input=body.input, idempotency_key=key,
        priority=body.priority, start_in_seconds=body.start_in_seconds, deadline_seconds=body.deadline_seconds,
        stages=body.stages, labels=body.labels, metadata=body.metadata, trace=body.trace, by=caller.id,
        actor=caller.actor,
    )  # fmt: skip
    return command if body.quote is None else replace(command, price=await quoted_price(state, command, body.quote))


def _bulk_item(state: AppState, request: Request, one: Any) -> BulkItem:
    if isinstance(one, commands.SubmitResult):
        return BulkItem(200 if one.replay else 201, one.job_id, one.replay)
    problem = problem_from(state, request.id, one)
    return BulkItem(problem.status, problem=problem.body(request.id))


async def _find_job(state: AppState, caller: Caller, job_id: str) -> rows.Job:
    """Return a caller's job; another's, and a deleted one, looks absent."""
    found = await state.reads.lookup_row("jobs_unlocked", job_id)
    job = rows.Job(*found) if found else None
    if (
        job is None
        or job.tenant != caller.tenant
        or job.deleted_at is not None
        or caller.user not in {None, job.user_id}
    ):
        raise not_found("job")
    return job


async def _run_command(state: AppState, request: Request, command: Any, **more: Any) -> Response:
    caller: Caller = request.caller
    job_id = request.params["job_id"]
    result = await state.engine.aexecute(
        command(tenant=caller.tenant, job_id=job_id, actor=caller.actor, by=caller.id, **more)
    )
    return await job_response(state, await _find_job(state, caller, result.job_id))


async def _wait_for_news(
    state: AppState, request: Request, job: rows.Job, known: str | None, seconds: float
) -> rows.Job:
    """Wait until a job has ended, or, for a client that knows a state of it, until it is another.

    A new estimate is no news: it is shown when there is some, or when the wait is over.
    """

    def has_news(now: rows.Job) -> bool:
        return now.finished_at is not None or (known not in {None, "*"} and _row_etag(now) not in str(known))

    if has_news(job):
        return job
    loop = asyncio.get_running_loop()
    end = loop.time() + min(max(seconds, 0), state.settings.wait_seconds_max)
    key, caller = (JOB, job.id), request.caller.stream_owner
    subscription = await state.broadcaster.subscribe(key, caller, browser=request.caller.user is not None)
    try:
        while True:
            job = await job_row(state, request)
            rest = end - loop.time()
            if has_news(job) or rest <= 0 or subscription.ended:
                return job
            await subscription.wait(rest)
            subscription.events.clear()
            subscription.clear_behind()
    finally:
        state.broadcaster.unsubscribe(key, caller, subscription)


_NOT_FOUND = "404 job_not_found"
_MOVE = (_NOT_FOUND, "409 illegal_transition")
_SHOWN = ("ETag",)
_KEYED = ("400 invalid_idempotency_key", "422 idempotency_key_conflict")
ROUTES = (
    Route(
        "POST", "/v1/jobs", submit_job, WRITERS, "Submit a job", Job, SubmitBody, status=201,
        other_statuses=(200,),
        problems=(
            *_KEYED, "402 insufficient_credits", "403 tenant_suspended", "403 *",
            "404 workflow_not_found", "404 tenant_not_found", *REFERENCES, "409 workflow_disabled", "409 job_deleted",
            "409 too_many_queues",
            "422 idempotency_key_reused", "422 invalid_user", "422 invalid_input",
            *INPUT, *NOTES, "422 stages_not_allowed", *STAGE, "422 invalid_quote", "422 quote_expired",
            "429 too_many_active_jobs",
        ),
        request_headers=("Idempotency-Key",), response_headers=("ETag", "Location", "Idempotent-Replay"),
        details="Reserves the price and queues the work in one step. With an idempotency key (in the body or the "
        "Idempotency-Key header) the same request is answered with the same job, status 200 and Idempotent-Replay.",
    ),
    Route(
        "POST", "/v1/jobs/bulk", submit_jobs, WRITERS, "Submit up to 1,000 jobs", BulkResponse, BulkBody,
        problems=("400 invalid_idempotency_key", "422 too_many_commands"), request_headers=("Idempotency-Key",),
        details="Each job has its own outcome, as if it had been sent alone, and best its own idempotency key; with an "
        "Idempotency-Key header, those without one get a key from it and their place. One with a `status` of 503 may "
        "be sent again.",
        body_max="bulk_body_bytes_max",
    ),
    Route(
        "GET", "/v1/jobs/{job_id}", get_job, READERS_AND_USERS, "Get a job", Job, query=JobQuery,
        other_statuses=(304,),
        problems=(_NOT_FOUND, "429 too_many_streams", "503 stopping"), request_headers=("If-None-Match",),
        response_headers=("ETag",),
        details="`wait` holds the answer until the job has ended, or, with If-None-Match, until it has changed.",
    ),
    Route("PATCH", "/v1/jobs/{job_id}", update_job, WRITERS, "Change a job's priority, labels, metadata or trace",
          Job, UpdateBody, problems=(_NOT_FOUND, "409 job_ended", *NOTES, *VALUES), response_headers=_SHOWN),
    Route("DELETE", "/v1/jobs/{job_id}", delete_job, WRITERS, "Delete a job", DeleteSummary,
          problems=(*_MOVE, "409 file_in_use"),
          details="One that lives is canceled first. Its texts and files go; ids, money and evidence stay."),
    Route("POST", "/v1/jobs/{job_id}/cancel", cancel_job, WRITERS, "Cancel a job", Job, CancelBody,
          problems=(*_MOVE, *VALUES), response_headers=_SHOWN),
    Route("POST", "/v1/jobs/{job_id}/pause", pause_job, WRITERS, "Pause a job: hand out no further task", Job,
          problems=(*_MOVE, "409 cancel_requested"), response_headers=_SHOWN),
    Route("POST", "/v1/jobs/{job_id}/resume", resume_job, WRITERS, "Resume a paused job", Job,
          problems=_MOVE, response_headers=_SHOWN),
    Route("POST", "/v1/jobs/{job_id}/retry", retry_job, WRITERS, "Retry a failed or expired job", Job,
          RetryBody, request_headers=("Idempotency-Key",), response_headers=_SHOWN,
          problems=(*_MOVE, *REFERENCES, *_KEYED, "402 insufficient_credits", "409 file_deleted", "409 job_deleted",
                    "409 workflow_disabled", "429 too_many_active_jobs"),
          details="The same idempotency key (in the body or the Idempotency-Key header) opens one run, or makes one "
          "job, however often it is sent."),
)  # fmt: skip
