"""Routes of jobs: quote, submit, get, list, update, cancel, pause, resume, retry and delete them."""

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from callsheet.api.explanation import JobExplanation
from callsheet.api.files import DeleteSummary
from callsheet.api.jobs import (
    BulkBody,
    BulkItem,
    BulkResponse,
    CancelBody,
    Job,
    JobPage,
    JobQuery,
    JobsQuery,
    NewJob,
    RetryBody,
    UpdateBody,
)
from callsheet.api.quotes import Quote, QuoteBody
from callsheet.core.model import commands
from callsheet.core.model.errors import Refusal
from callsheet.http.auth.authenticator import Caller
from callsheet.http.broadcaster import JOB
from callsheet.http.openapi.error_codes import INPUT, NOTES, REFERENCES, STAGE, VALUES
from callsheet.http.server.conditional import etag_matches
from callsheet.http.server.exception_map import problem_from
from callsheet.http.server.pagination import parse_list_query
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.route import READERS_AND_USERS, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import jobs, quotes
from callsheet.queries.why import explain_job

# -- handlers


async def submit_job(state: AppState, request: Request) -> Response:
    command = await _submit_command(
        state, request, request.content, request.idempotency_key(request.content.idempotency_key)
    )
    done: commands.SubmitResult = await state.engine.aexecute(command)
    document = await jobs.render_job(state.queries, done.job)
    location = ("location", f"/v1/jobs/{done.job_id}")
    if done.replay:
        return _job_response(document, 200, location, ("idempotent-replay", "true"))
    return _job_response(document, 201, location)


async def submit_jobs(state: AppState, request: Request) -> Response:
    body: BulkBody = request.content
    bulk_key = request.idempotency_key(None)
    ready: list[Any] = []
    for no, one in enumerate(body.jobs):
        key = one.idempotency_key or (f"{bulk_key}/{no}" if bulk_key else None)
        try:
            ready.append(await _submit_command(state, request, one, key))
        except (Problem, Refusal) as refusal:
            ready.append(refusal)
    indexes = [index for index, one in enumerate(ready) if not isinstance(one, Exception)]
    answers = await state.engine.aexecute_many([ready[index] for index in indexes])
    for index, answer in zip(indexes, answers, strict=True):
        ready[index] = answer
    errors = [one for one in ready if isinstance(one, Exception) and not isinstance(one, Problem | Refusal)]
    if errors and not any(isinstance(one, commands.SubmitResult) for one in ready):
        raise errors[0]  # nothing was accepted: the client may send all of it again
    return Response(BulkResponse([_bulk_item(state, request, one) for one in ready]))


async def list_jobs(state: AppState, request: Request) -> Response:
    return Response(await jobs.list_jobs(state.queries, request.caller, parse_list_query(state, request, JobsQuery)))


async def get_job(state: AppState, request: Request) -> Response:
    query = request.query(JobQuery) if request.scope["query_string"] else JobQuery()
    known = request.header(b"if-none-match")
    if query.wait_seconds:
        document = await request.until_disconnect(_wait_for_news(state, request, known, query.wait_seconds))
    else:
        document = await jobs.get_job(state.queries, request.caller, request.params["job_id"])
    if known is not None and etag_matches(known, document.etag):
        return Response(None, 304, (("etag", document.etag),))
    return _job_response(document)


async def get_why(state: AppState, request: Request) -> Response:
    return Response(await explain_job(state.queries, request.caller, request.params["job_id"]))


async def create_quote(state: AppState, request: Request) -> Response:
    return Response(await quotes.create_quote(state.queries, request.caller, request.content))


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
    command = commands.Delete(
        tenant=caller.tenant, job_id=request.params["job_id"], actor=caller.actor, requested_by=caller.id
    )
    return Response(await state.file_deletion.delete_job(command, lambda error: state.report_error(request.id, error)))


# -- steps


def _job_response(document: jobs.JobDocument, status: int = 200, *headers: tuple[str, str]) -> Response:
    return Response(document.body, status, (("etag", document.etag), *headers))


async def _submit_command(state: AppState, request: Request, body: NewJob, key: str | None) -> commands.Submit:
    caller: Caller = request.caller
    command = commands.Submit(
        tenant=caller.tenant, user=body.user, workflow=body.workflow, input=body.input, idempotency_key=key,
        priority=body.priority, start_in_seconds=body.start_in_seconds, deadline_seconds=body.deadline_seconds,
        stages=body.stages, labels=body.labels, metadata=body.metadata, trace=body.trace, requested_by=caller.id,
        actor=caller.actor,
    )  # fmt: skip
    return (
        command
        if body.quote is None
        else replace(command, price=await quotes.quoted_price(state.queries, command, body.quote))
    )


def _bulk_item(state: AppState, request: Request, one: Any) -> BulkItem:
    if isinstance(one, commands.SubmitResult):
        return BulkItem(200 if one.replay else 201, one.job_id, one.replay)
    problem = problem_from(state, request.id, one)
    return BulkItem(problem.status, problem=problem.body(request.id))


async def _run_command(state: AppState, request: Request, command: Any, **more: Any) -> Response:
    caller: Caller = request.caller
    job_id = request.params["job_id"]
    result = await state.engine.aexecute(
        command(tenant=caller.tenant, job_id=job_id, actor=caller.actor, requested_by=caller.id, **more)
    )
    return _job_response(await jobs.render_job(state.queries, result.job))


async def _wait_for_news(state: AppState, request: Request, known_etag: str | None, seconds: float) -> jobs.JobDocument:
    caller: Caller = request.caller
    job = await jobs.find_job(state.queries, caller, request.params["job_id"])
    if jobs.has_news(job, known_etag):
        return await jobs.render_job(state.queries, job)
    key = (JOB, job.id)
    subscription = await state.broadcaster.subscribe(key, caller.stream_owner, browser=caller.user is not None)
    try:
        return await jobs.wait_for_news(state.queries, caller, job.id, known_etag, subscription, seconds)
    finally:
        state.broadcaster.unsubscribe(key, caller.stream_owner, subscription)


_NOT_FOUND = "404 job_not_found"
_MOVE = (_NOT_FOUND, "409 illegal_transition")
_SHOWN = ("ETag",)
_KEYED = ("400 invalid_idempotency_key", "422 idempotency_key_conflict")
ROUTES = (
    Route(
        "POST", "/v1/jobs", submit_job, WRITERS, "Submit a job", Job, NewJob, status=201,
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
        details="Reserves the price in the user's wallet and queues the job, in one transaction. Send an idempotency "
        "key (in the body or as `Idempotency-Key`) to retry safely: the same request returns the same job, with status "
        "200 and `Idempotent-Replay: true`. Keys are unique per user of a tenant: two users can use the same key.",
    ),
    Route(
        "POST", "/v1/jobs/bulk", submit_jobs, WRITERS, "Submit jobs in bulk", BulkResponse, BulkBody,
        problems=("400 invalid_idempotency_key", "422 too_many_commands"), request_headers=("Idempotency-Key",),
        details="Each job succeeds or fails on its own, as if you had submitted it alone. The items are in the order "
        "of the request. Give each job its own idempotency key. With an `Idempotency-Key` header, jobs without a key "
        "get one from the header and their position. Keys are unique per user of a tenant. Retry items with status "
        "503.",
        body_max="bulk_body_bytes_max",
    ),
    Route("GET", "/v1/jobs", list_jobs, READERS_AND_USERS, "List jobs", JobPage, query=JobsQuery,
          problems=("422 invalid_cursor",), details="Newest first. A user token lists its user's jobs."),
    Route(
        "GET", "/v1/jobs/{job_id}", get_job, READERS_AND_USERS, "Get a job", Job, query=JobQuery,
        other_statuses=(304,),
        problems=(_NOT_FOUND, "429 too_many_streams", "503 stopping"), request_headers=("If-None-Match",),
        response_headers=("ETag",),
        details="Long polling: with `wait_seconds`, the server responds when the job has ended or the time is over. "
        "With `If-None-Match`, it responds as soon as the job has changed, or with 304.",
    ),
    Route("PATCH", "/v1/jobs/{job_id}", update_job, WRITERS, "Update a job", Job, UpdateBody,
          problems=(_NOT_FOUND, "409 job_ended", *NOTES, *VALUES), response_headers=_SHOWN,
          details="Changes the priority, labels, metadata or trace context of an unfinished job. Fields that you leave "
          "out keep their value."),
    Route("DELETE", "/v1/jobs/{job_id}", delete_job, WRITERS, "Delete a job", DeleteSummary,
          problems=(*_MOVE, "409 file_in_use"),
          details="Cancels the job if it has not ended, then deletes its input, outputs, texts and files. Ids, ledger "
          "entries, attempts and events remain."),
    Route("POST", "/v1/jobs/{job_id}/cancel", cancel_job, WRITERS, "Cancel a job", Job, CancelBody,
          problems=(*_MOVE, *VALUES), response_headers=_SHOWN,
          details="Cancels waiting tasks at once. Workers get the request to stop with their next heartbeat, and lose "
          "their leases after `grace_seconds`."),
    Route("POST", "/v1/jobs/{job_id}/pause", pause_job, WRITERS, "Pause a job", Job,
          problems=(*_MOVE, "409 cancel_requested"), response_headers=_SHOWN,
          details="Workers get no further tasks of the job. Running tasks finish."),
    Route("POST", "/v1/jobs/{job_id}/resume", resume_job, WRITERS, "Resume a job", Job,
          problems=_MOVE, response_headers=_SHOWN),
    Route("POST", "/v1/jobs/{job_id}/retry", retry_job, WRITERS, "Retry a job", Job,
          RetryBody, request_headers=("Idempotency-Key",), response_headers=_SHOWN,
          problems=(*_MOVE, *REFERENCES, *_KEYED, "402 insufficient_credits", "409 file_deleted", "409 job_deleted",
                    "409 workflow_disabled", "429 too_many_active_jobs"),
          details="Starts a new run of a failed or expired job, or creates a new job with the same input (`retry_as`). "
          "With an idempotency key (in the body or as `Idempotency-Key`), the job is retried once, however often you "
          "send the request. Keys are unique per user of a tenant, and for retries per job."),
    Route(
        "GET", "/v1/jobs/{job_id}/why", get_why, READERS_AND_USERS, "Explain why a job waits", JobExplanation,
        problems=("404 job_not_found",),
        details="Lists every constraint on the job or its open tasks: `ended`, `canceling`, `paused`, "
        "`scheduled`, `no_stages`, `no_tasks`, `approval`, `running_limit`, `rate_limit`, `no_worker`, `queued`, "
        "`backoff`, `provider`, `running`. `position` is the job's position in the queue of its kind and workflow. "
        "`start` and `remaining` are estimates from recently completed tasks of that queue. The limit of active jobs "
        "per user is not listed: it rejects the submission. Other tenants appear only as counts.",
    ),
    Route("POST", "/v1/quotes", create_quote, WRITERS, "Create a quote", Quote, QuoteBody,
          problems=("404 workflow_not_found", "409 workflow_disabled", "422 invalid_user", "422 invalid_input", *INPUT),
          details="Returns the price of a job before you submit it. Pass `quote` when you submit: the job then costs "
          "this price until `expires_at`. A quote fails if the same job would fail validation. Files, gates and the "
          "balance are checked when you submit."),
)  # fmt: skip
