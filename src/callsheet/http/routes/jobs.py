"""Routes for jobs: quote, submit, get, list, update, cancel, pause, resume, retry and delete them."""

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
from callsheet.http.auth.key_recheck import while_authenticated
from callsheet.http.openapi.error_codes import INPUT, NOTES, REFERENCES, STAGE, VALUES
from callsheet.http.server.etag_and_range import etag_matches
from callsheet.http.server.exception_map import problem_from
from callsheet.http.server.list_query import parse_list_query
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.route import READERS_AND_USERS, WRITERS, Response, Route
from callsheet.http.state import AppState
from callsheet.http.streams.broadcaster import JOB
from callsheet.queries import jobs, signed_quotes
from callsheet.queries.why import explain_job

# -- handlers


async def submit_job(state: AppState, request: Request) -> Response:
    command = await _submit_command(
        state, request, request.content, request.idempotency_key(request.content.idempotency_key)
    )
    result: commands.SubmitResult = await state.engine.aexecute(command)
    document = await jobs.render_job(state.queries, result.job)
    location = ("location", f"/v1/jobs/{result.job_id}")
    if result.replay:
        return _job_response(document, 200, location, ("idempotent-replay", "true"))
    return _job_response(document, 201, location)


async def submit_jobs(state: AppState, request: Request) -> Response:
    body: BulkBody = request.content
    bulk_key = request.idempotency_key(None)
    results: list[Any] = []  # at first the command of each job, or its error; then the result of the command
    for no, job in enumerate(body.jobs):
        key = job.idempotency_key or (f"{bulk_key}/{no}" if bulk_key else None)
        try:
            results.append(await _submit_command(state, request, job, key))
        except (Problem, Refusal) as refusal:
            results.append(refusal)
    indexes = [index for index, command in enumerate(results) if not isinstance(command, Exception)]
    executed = await state.engine.aexecute_many([results[index] for index in indexes])
    for index, result in zip(indexes, executed, strict=True):
        results[index] = result
    errors = [item for item in results if isinstance(item, Exception) and not isinstance(item, Problem | Refusal)]
    if errors and not any(isinstance(item, commands.SubmitResult) for item in results):
        raise errors[0]  # no job was accepted: the client can repeat the whole request
    return Response(BulkResponse([_bulk_item(state, request, item) for item in results]))


async def list_jobs(state: AppState, request: Request) -> Response:
    return Response(await jobs.list_jobs(state.queries, request.caller, parse_list_query(state, request, JobsQuery)))


async def get_job(state: AppState, request: Request) -> Response:
    query = request.query(JobQuery) if request.scope["query_string"] else JobQuery()
    known_etag = request.header(b"if-none-match")
    if query.wait_seconds:
        change = _wait_for_change(state, request, known_etag, query.wait_seconds)
        document = await while_authenticated(state, request, change)
    else:
        document = await jobs.get_job(state.queries, request.caller, request.params["job_id"])
    if known_etag is not None and etag_matches(known_etag, document.etag):
        return Response(None, 304, (("etag", document.etag),))
    return _job_response(document)


async def get_why(state: AppState, request: Request) -> Response:
    return Response(await explain_job(state.queries, request.caller, request.params["job_id"]))


async def create_quote(state: AppState, request: Request) -> Response:
    return Response(await signed_quotes.create_quote(state.queries, request.caller, request.content))


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


# -- helpers


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
        else replace(command, price=await signed_quotes.quoted_price(state.queries, command, body.quote))
    )


def _bulk_item(state: AppState, request: Request, result: Any) -> BulkItem:
    if isinstance(result, commands.SubmitResult):
        return BulkItem(200 if result.replay else 201, result.job_id, result.replay)
    problem = problem_from(state, request.id, result)
    return BulkItem(problem.status, problem=problem.body(request.id))


async def _run_command(state: AppState, request: Request, command: Any, **fields: Any) -> Response:
    caller: Caller = request.caller
    job_id = request.params["job_id"]
    result = await state.engine.aexecute(
        command(tenant=caller.tenant, job_id=job_id, actor=caller.actor, requested_by=caller.id, **fields)
    )
    return _job_response(await jobs.render_job(state.queries, result.job))


async def _wait_for_change(
    state: AppState, request: Request, known_etag: str | None, seconds: float
) -> jobs.JobDocument:
    caller: Caller = request.caller
    job = await jobs.find_job(state.queries, caller, request.params["job_id"])
    if jobs.has_changed(job, known_etag):
        return await jobs.render_job(state.queries, job)
    key = (JOB, job.id)
    subscription = await state.broadcaster.subscribe(key, caller.stream_owner, browser=caller.user is not None)
    try:
        document = await jobs.wait_for_change(state.queries, caller, job.id, known_etag, subscription, seconds)
    finally:
        state.broadcaster.unsubscribe(key, caller.stream_owner, subscription)
    await request.api.authenticate(state, request)  # the key may have been revoked in the meantime
    return document


_NOT_FOUND = "404 job_not_found"
_TRANSITION = (_NOT_FOUND, "409 illegal_transition")
_ETAG = ("ETag",)
_IDEMPOTENCY = ("400 invalid_idempotency_key", "422 idempotency_key_conflict")
ROUTES = (
    Route(
        "POST", "/v1/jobs", submit_job, WRITERS, "Submit a job", Job, NewJob, status=201,
        other_statuses=(200,),
        problems=(
            *_IDEMPOTENCY, "402 insufficient_credits", "403 tenant_suspended", "403 *",
            "404 workflow_not_found", "404 tenant_not_found", *REFERENCES, "409 workflow_disabled", "409 job_deleted",
            "409 too_many_queues",
            "422 idempotency_key_reused", "422 invalid_user", "422 invalid_input",
            *INPUT, *NOTES, "422 stages_not_allowed", *STAGE, "422 invalid_quote", "422 quote_expired",
            "429 too_many_active_jobs",
        ),
        request_headers=("Idempotency-Key",), response_headers=("ETag", "Location", "Idempotent-Replay"),
        details="Reserves the price in the user's wallet and queues the job, in one transaction. Send an "
        "idempotency key (in the body or as `Idempotency-Key`) to retry safely: the same request returns the same "
        "job, with status 200 and `Idempotent-Replay: true`. Keys are unique per user of a tenant: two users can "
        "use the same key.",
    ),
    Route(
        "POST", "/v1/jobs/bulk", submit_jobs, WRITERS, "Submit jobs in bulk", BulkResponse, BulkBody,
        problems=("400 invalid_idempotency_key", "422 too_many_commands"), request_headers=("Idempotency-Key",),
        details="Each job succeeds or fails on its own, as if you had submitted it alone. The results are in the "
        "order of the request. Give each job its own `idempotency_key`. With an `Idempotency-Key` header, a job "
        "without a key gets one made of the header and its position. If a result has the status 503, submit that "
        "job again with the same key.",
        body_max="bulk_body_bytes_max",
    ),
    Route("GET", "/v1/jobs", list_jobs, READERS_AND_USERS, "List jobs", JobPage, query=JobsQuery,
          problems=("422 invalid_cursor",), details="Newest first. A user token lists only the jobs of its user."),
    Route(
        "GET", "/v1/jobs/{job_id}", get_job, READERS_AND_USERS, "Get a job", Job, query=JobQuery,
        other_statuses=(304,),
        problems=(_NOT_FOUND, "429 too_many_streams", "503 stopping"), request_headers=("If-None-Match",),
        response_headers=_ETAG,
        details="For long polling, send `wait_seconds`: the server responds when the job has ended or the time is "
        "over. With `If-None-Match` as well, it responds as soon as the job has changed, or with 304 when the time "
        "is over.",
    ),
    Route("PATCH", "/v1/jobs/{job_id}", update_job, WRITERS, "Update a job", Job, UpdateBody,
          problems=(_NOT_FOUND, "409 job_ended", *NOTES, *VALUES), response_headers=_ETAG,
          details="Changes the priority, labels, metadata or trace context. Fields that you leave out keep their "
          "value. The priority can change only until the job has ended."),
    Route("DELETE", "/v1/jobs/{job_id}", delete_job, WRITERS, "Delete a job", DeleteSummary,
          problems=(*_TRANSITION, "409 file_in_use"),
          details="Cancels the job if it has not ended, then deletes its input, outputs, files, labels and "
          "metadata. The ledger entries, attempts and events remain."),
    Route("POST", "/v1/jobs/{job_id}/cancel", cancel_job, WRITERS, "Cancel a job", Job, CancelBody,
          problems=(*_TRANSITION, *VALUES), response_headers=_ETAG,
          details="Cancels waiting tasks immediately. Workers learn of it from the response to their next "
          "heartbeat, and lose their leases after `grace_seconds`. The workflow's refund policy decides how much is "
          "refunded."),
    Route("POST", "/v1/jobs/{job_id}/pause", pause_job, WRITERS, "Pause a job", Job,
          problems=(*_TRANSITION, "409 cancel_requested"), response_headers=_ETAG,
          details="Workers get no further tasks of the job. Running tasks finish. The deadline does not stop."),
    Route("POST", "/v1/jobs/{job_id}/resume", resume_job, WRITERS, "Resume a job", Job,
          problems=_TRANSITION, response_headers=_ETAG,
          details="Workers get tasks of the job again. Resuming a job that waits or runs has no effect."),
    Route("POST", "/v1/jobs/{job_id}/retry", retry_job, WRITERS, "Retry a job", Job,
          RetryBody, request_headers=("Idempotency-Key",), response_headers=_ETAG,
          problems=(*_TRANSITION, *REFERENCES, *_IDEMPOTENCY, "402 insufficient_credits", "409 file_deleted",
                    "409 job_deleted", "409 workflow_disabled", "429 too_many_active_jobs"),
          details="Starts a new run of a failed or expired job, or creates a new job with the same input "
          "(`retry_as`). The price is reserved again. With an idempotency key (in the body or as "
          "`Idempotency-Key`), the job is retried once, however often you send the request. The key is valid for "
          "this job only."),
    Route(
        "GET", "/v1/jobs/{job_id}/why", get_why, READERS_AND_USERS, "Explain why a job waits", JobExplanation,
        problems=("404 job_not_found",),
        details="Returns what the job and its open tasks wait for, its position in the queue of its kind and "
        "workflow, and estimates of its start and end from recently completed tasks of that queue. Other tenants "
        "appear only as counts.",
    ),
    Route("POST", "/v1/quotes", create_quote, WRITERS, "Create a quote", Quote, QuoteBody,
          problems=("404 workflow_not_found", "409 workflow_disabled", "422 invalid_user", "422 invalid_input", *INPUT),
          details="Returns the price of a job before you submit it. Pass `quote` when you submit: until "
          "`expires_at`, the job costs this price. A quote fails if submitting the same job would fail validation. "
          "Files, gates and the balance are checked only when you submit."),
)  # fmt: skip
