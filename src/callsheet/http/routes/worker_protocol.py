"""The worker protocol: machines that come for work, hold leases, and hand in what they made."""

from typing import Any

from msgspec.structs import replace

from callsheet.api import worker_protocol
from callsheet.blobs.base import BlobError
from callsheet.core.decisions.claim import allowed_kinds
from callsheet.core.model import commands, rows
from callsheet.core.model.commands import TaskState
from callsheet.core.model.errors import Conflict, Refusal
from callsheet.dispatch.waiting_claims import requeue_undelivered
from callsheet.http.auth.authenticator import WORKER_PREFIX, hash_secret, new_secret
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.router import FLEET_KEYS, REGISTERED_WORKERS, Response, Route
from callsheet.http.server.storage_errors import problem_of_storage
from callsheet.http.state import AppState


async def register_worker(state: AppState, request: Request) -> Response:
    body: worker_protocol.Register = request.content
    await state.fleet.verify_worker(body, request.client_address)
    token = new_secret(WORKER_PREFIX)
    result: commands.WorkerState = await state.engine.aexecute(
        commands.Register(
            worker_id=body.worker, kinds=tuple(body.kinds), token_hash=hash_secret(token), concurrency=body.concurrency,
            capabilities=body.capabilities, labels=body.labels, approved=not state.settings.require_worker_approval,
            by=request.caller.id,
        )
    )  # fmt: skip
    state.authenticator.invalidate()
    settings = state.settings
    return Response(
        worker_protocol.Registration(
            result.worker_id, token, list(result.kinds), result.status == "approved", settings.worker_heartbeat_seconds,
            settings.wait_seconds_max,
        ),
        201,
    )  # fmt: skip


async def claim_tasks(state: AppState, request: Request) -> Response:
    body: worker_protocol.Claim = request.content
    worker = _calling_worker(state, request)
    if not 0 <= body.wait_seconds <= state.settings.wait_seconds_max:
        raise Problem(422, "out_of_range", f"wait_seconds must be from 0 to {state.settings.wait_seconds_max:g}.")
    if worker.draining_at is not None:
        return Response(worker_protocol.ClaimResult([], drain=True))
    allowed, requested = allowed_kinds(worker), None if body.kinds is None else set(body.kinds)
    kinds = allowed if requested is None else tuple(kind for kind in allowed if kind in requested)
    if not kinds:
        await request.until_disconnect(state.fleet.waiting_claims.wait_idle(body.wait_seconds))
        return Response(worker_protocol.ClaimResult([], drain=False))
    count = (
        body.count if body.count > state.engine.settings.limits.claim_tasks_max else min(body.count, worker.concurrency)
    )
    command = commands.Claim(
        worker_id=worker.id, kinds=kinds, count=count, session=worker.token_hash,
        held_task_ids=None if body.held_task_ids is None else tuple(body.held_task_ids),
    )  # fmt: skip
    try:
        tasks = await request.until_disconnect(state.fleet.claim(command, body.wait_seconds))
    except Conflict as refusal:
        if refusal.code != "worker_draining":
            raise
        return Response(worker_protocol.ClaimResult([], drain=True))
    if not tasks:
        request.caller = await request.api.authenticate(state, request)  # what was decided about it while it waited
        return Response(worker_protocol.ClaimResult([], _calling_worker(state, request).draining_at is not None))
    try:
        build_payloads = await state.payloads.build_payloads(tasks)
    except BaseException:
        await requeue_undelivered(state.engine, tasks, "the house could not hand it out")
        raise
    return Response(worker_protocol.ClaimResult(build_payloads, drain=False))


async def heartbeat(state: AppState, request: Request) -> Response:
    body: worker_protocol.Heartbeat = request.content
    worker = _calling_worker(state, request)
    state.fleet.heartbeat_limiter.acquire(worker.id, worker.concurrency, len(body.heartbeats))
    many = [
        commands.Heartbeat(
            lease=heartbeat.lease, lease_seconds=heartbeat.lease_seconds, progress=heartbeat.progress,
            message=heartbeat.message,
            preview=heartbeat.preview, log=tuple(heartbeat.log), worker_id=worker.id,
        )
        for heartbeat in body.heartbeats
    ]  # fmt: skip
    answers: list[Any] = await state.engine.aexecute_many(many)
    heartbeats = [await _heartbeat_result(state, worker, *pair) for pair in zip(body.heartbeats, answers, strict=True)]
    return Response(worker_protocol.HeartbeatResponse(heartbeats, worker.draining_at is not None))


async def _heartbeat_result(
    state: AppState,
    worker: rows.Worker,
    heartbeat: worker_protocol.TaskHeartbeat,
    answer: commands.HeartbeatResult | Exception,
) -> worker_protocol.HeartbeatResult:
    if isinstance(answer, Refusal):
        return worker_protocol.HeartbeatResult(
            heartbeat.lease.task_id, error=worker_protocol.RefusalInfo(answer.code, answer.message)
        )
    if isinstance(answer, Exception):
        raise answer
    result_struct = worker_protocol.HeartbeatResult(heartbeat.lease.task_id, answer.lease_seconds, answer.cancel)
    if not (heartbeat.downloads or heartbeat.uploads):
        return result_struct
    try:
        grants = await state.payloads.create_grants(
            await state.payloads.get_leased_task(worker.id, heartbeat.lease), heartbeat
        )
    except (Refusal, Problem, BlobError) as error:  # the lease is prolonged, and the others stand
        why = problem_of_storage(error) if isinstance(error, BlobError) else error
        return replace(result_struct, grants_error=worker_protocol.RefusalInfo(why.code, why.message))
    return replace(result_struct, grants=grants)


async def grant_files(state: AppState, request: Request) -> Response:
    body: worker_protocol.FileGrantsRequest = request.content
    worker = _calling_worker(state, request)
    return Response(
        await state.payloads.create_grants(await state.payloads.get_leased_task(worker.id, body.lease), body)
    )


async def list_previous_outputs(state: AppState, request: Request) -> Response:
    body: worker_protocol.PreviousOutputsRequest = request.content
    worker = _calling_worker(state, request)
    task = await state.payloads.get_leased_task(worker.id, body.lease)
    return Response(await state.payloads.previous_outputs(task, body.after))


async def record_submission(state: AppState, request: Request) -> Response:
    body: worker_protocol.ProviderSubmission = request.content
    worker = _calling_worker(state, request)
    return await _report(
        state, commands.RecordSubmission(lease=body.lease, provider=body.provider, ref=body.ref, worker_id=worker.id)
    )


async def complete_task(state: AppState, request: Request) -> Response:
    body: worker_protocol.Complete = request.content
    worker = _calling_worker(state, request)
    task = await state.payloads.find_leased_task(worker.id, body.lease) if body.files else None
    if task is not None:  # if it has ended, the rules know whether this is the same report again
        await state.payloads.verify_files(task, body.files)
    return await _report(
        state,
        commands.Complete(
            lease=body.lease, output=body.output, files=tuple(body.files), delivered=body.delivered,
            worker_id=worker.id,
        ),
    )  # fmt: skip


async def fail_task(state: AppState, request: Request) -> Response:
    body: worker_protocol.Fail = request.content
    worker = _calling_worker(state, request)
    return await _report(
        state,
        commands.Fail(
            lease=body.lease, code=body.code, message=body.message, retryable=body.retryable, resume=body.resume,
            worker_id=worker.id,
        ),
    )  # fmt: skip


async def requeue_task(state: AppState, request: Request) -> Response:
    body: worker_protocol.Requeue = request.content
    worker = _calling_worker(state, request)
    state.fleet.waiting_claims.release_worker(worker.id)  # or a claim of its own that still waits would take it again
    return await _report(
        state,
        commands.Requeue(lease=body.lease, reason=body.reason, cause=body.cause, worker_id=worker.id),
    )


async def deregister_worker(state: AppState, request: Request) -> Response:
    body: worker_protocol.Deregister = request.content
    worker = _calling_worker(state, request)
    result: commands.WorkerState = await state.engine.aexecute(
        commands.Deregister(
            worker_id=worker.id, session=worker.token_hash or "", reason=body.reason, by=request.caller.id
        )
    )
    state.authenticator.invalidate()
    return Response(worker_protocol.Deregistered(result.requeued))


def _calling_worker(state: AppState, request: Request) -> rows.Worker:
    """Return who calls, and note that it was heard of."""
    worker: rows.Worker = request.caller.worker
    state.fleet.mark_seen(worker.id)
    return worker


async def _report(state: AppState, command: commands.Command) -> Response:
    result: TaskState = await state.engine.aexecute(command)
    return Response(
        worker_protocol.ReportResult(result.task_id, result.status, result.job_status, result.skipped, result.replay)
    )


_LEASE = ("404 task_not_found", "404 lease_not_found", "409 lease_lost", *VALUES)
_NAMES = ("422 invalid_worker", "422 invalid_kind", "422 invalid_label", "422 too_many_labels",
          "422 capabilities_too_large", "422 capabilities_too_deep")  # fmt: skip
_FILE = ("404 file_not_found", "422 invalid_file")
ROUTES = (
    Route("POST", "/v1/worker/register", register_worker, FLEET_KEYS, "Register a worker", worker_protocol.Registration,
          worker_protocol.Register, status=201, limit_failed_auth=True,
          problems=("403 worker_revoked", "403 worker_rejected", "409 fleet_full", "429 too_many_failed_auth",
                    "503 worker_verification_unavailable", *_NAMES, *VALUES),
          details="The key is the fleet's secret: a key of the role worker. The same name again is a restart: the old "
          "token is good no longer, and what the worker held is given back without using up a try."),
    Route("POST", "/v1/worker/claim", claim_tasks, REGISTERED_WORKERS,
        "Claim tasks, and wait for some if there are none",
          worker_protocol.ClaimResult, worker_protocol.Claim,
          problems=("401 invalid_worker_token", "403 worker_not_approved", "409 worker_full", "409 kind_not_assigned",
                    "503 stopping", *VALUES)),
    Route("POST", "/v1/worker/heartbeat", heartbeat, REGISTERED_WORKERS,
        "Heartbeat: prolong leases, say how far the work is",
          worker_protocol.HeartbeatResponse, worker_protocol.Heartbeat,
          problems=("429 too_many_heartbeats", "422 too_many_commands", *VALUES),
          details="Each lease has its own answer, in the order of the question: one that is refused says so in "
          "`refused`, and the others stand. Addresses that cannot be given are said in `grants_error`; that lease is "
          "prolonged all the same."),
    Route("POST", "/v1/worker/files", grant_files, REGISTERED_WORKERS, "Get addresses to read and to put files",
        worker_protocol.FileGrants,
          worker_protocol.FileGrantsRequest, problems=(*_LEASE, *_FILE)),
    Route("POST", "/v1/worker/previous-outputs", list_previous_outputs, REGISTERED_WORKERS,
        "What earlier stages made", worker_protocol.PreviousOutputs,
          worker_protocol.PreviousOutputsRequest, problems=_LEASE,
          details="In the order of stages and tasks, page by page: ask again with `after` as `next` says, until it is "
          "null."),
    Route("POST", "/v1/worker/submitted", record_submission, REGISTERED_WORKERS,
        "Write down where the work lies elsewhere",
          worker_protocol.ReportResult, worker_protocol.ProviderSubmission, problems=("422 invalid_provider",
          "422 invalid_ref", *_LEASE),
          details="The reference is shown to nobody. If this try is cut short, the next one gets it with the task, and "
          "looks there before it does the work again."),
    Route("POST", "/v1/worker/complete", complete_task, REGISTERED_WORKERS, "Complete a task",
        worker_protocol.ReportResult,
          worker_protocol.Complete, extra_body_limit="output_bytes_max",
          problems=("422 file_not_uploaded", "422 size_mismatch", "422 digest_mismatch", "422 output_too_large",
                    "422 output_too_deep", "422 invalid_file", *_LEASE)),
    Route("POST", "/v1/worker/fail", fail_task, REGISTERED_WORKERS, "Fail a try", worker_protocol.ReportResult,
          worker_protocol.Fail, problems=_LEASE),
    Route("POST", "/v1/worker/requeue", requeue_task, REGISTERED_WORKERS, "Requeue a task without using up a try",
          worker_protocol.ReportResult, worker_protocol.Requeue, problems=("422 reason_required", *_LEASE)),
    Route("POST", "/v1/worker/deregister", deregister_worker, REGISTERED_WORKERS, "Deregister a worker",
        worker_protocol.Deregistered,
          worker_protocol.Deregister, problems=("401 invalid_worker_token", *VALUES)),
)  # fmt: skip
