"""Routes for the worker protocol: register, claim tasks, send heartbeats, get signed URLs and report results."""

from callsheet.api import worker_protocol
from callsheet.core.decisions.claim import allowed_kinds
from callsheet.core.model import commands
from callsheet.core.model.errors import BadInput, Conflict
from callsheet.core.policy.admission import WorkClass
from callsheet.dispatch.fleet import RegisteredWorker
from callsheet.http.auth.authenticator import WORKER_PREFIX, hash_secret, new_secret
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.request import Request
from callsheet.http.server.route import FLEET_KEYS, REGISTERED_WORKERS, Response, Route
from callsheet.http.state import AppState


async def register_worker(state: AppState, request: Request) -> Response:
    body: worker_protocol.Register = request.content
    await state.fleet.verify_worker(body, request.client_address)
    token = new_secret(WORKER_PREFIX)
    result: commands.WorkerState = await state.engine.aexecute(
        commands.Register(
            worker_id=body.worker, kinds=tuple(body.kinds), token_hash=hash_secret(token), concurrency=body.concurrency,
            capabilities=body.capabilities, labels=body.labels, approved=not state.settings.require_worker_approval,
            requested_by=request.caller.id, held_task_ids=tuple(body.held_task_ids),
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
        raise BadInput(
            "out_of_range",
            f"wait_seconds must be from 0 to {state.settings.wait_seconds_max:g}, not {body.wait_seconds:g}.",
        )
    if worker.draining_at is not None:
        return Response(worker_protocol.ClaimResult([], drain=True))
    allowed, requested = allowed_kinds(worker), None if body.kinds is None else set(body.kinds)
    kinds = allowed if requested is None else tuple(kind for kind in allowed if kind in requested)
    if not kinds:
        await request.until_disconnect(state.fleet.waiting_claims.wait_idle(body.wait_seconds))
        return Response(worker_protocol.ClaimResult([], drain=False))
    command = commands.Claim(
        worker_id=worker.id, kinds=kinds, count=body.count, token_hash=worker.token_hash,
        held_task_ids=None if body.held_task_ids is None else tuple(body.held_task_ids),
    )  # fmt: skip
    try:
        tasks = await request.until_disconnect(state.fleet.claim(command, body.wait_seconds))
    except Conflict as refusal:
        if refusal.code != "worker_draining":
            raise
        return Response(worker_protocol.ClaimResult([], drain=True))
    if not tasks:
        # The worker may have been drained or revoked while it waited.
        request.caller = await request.api.authenticate(state, request)
        return Response(worker_protocol.ClaimResult([], _calling_worker(state, request).draining_at is not None))
    return Response(worker_protocol.ClaimResult(await state.reports.deliver(tasks), drain=False))


async def heartbeat(state: AppState, request: Request) -> Response:
    body: worker_protocol.Heartbeat = request.content
    worker = _calling_worker(state, request)
    state.fleet.heartbeat_limiter.acquire(worker.id, worker.concurrency, len(body.heartbeats))
    results = await state.reports.heartbeat(body.heartbeats, worker.id)
    return Response(worker_protocol.HeartbeatResponse(results, worker.draining_at is not None))


async def grant_files(state: AppState, request: Request) -> Response:
    return Response(await state.reports.grant_files(_calling_worker(state, request).id, request.content))


async def list_previous_outputs(state: AppState, request: Request) -> Response:
    return Response(await state.reports.previous_outputs(_calling_worker(state, request).id, request.content))


async def record_submission(state: AppState, request: Request) -> Response:
    return Response(await state.reports.record_submission(request.content, _calling_worker(state, request).id))


async def complete_task(state: AppState, request: Request) -> Response:
    return Response(await state.reports.complete(request.content, _calling_worker(state, request).id))


async def fail_task(state: AppState, request: Request) -> Response:
    return Response(await state.reports.fail(request.content, _calling_worker(state, request).id))


async def requeue_task(state: AppState, request: Request) -> Response:
    body: worker_protocol.Requeue = request.content
    worker = _calling_worker(state, request)
    state.fleet.waiting_claims.release_worker(worker.id)  # otherwise its own waiting claim could take the task again
    return Response(await state.reports.requeue(body, worker.id))


async def deregister_worker(state: AppState, request: Request) -> Response:
    body: worker_protocol.Deregister = request.content
    worker = _calling_worker(state, request)
    result: commands.WorkerState = await state.engine.aexecute(
        commands.Deregister(
            worker_id=worker.id,
            token_hash=worker.token_hash or "",
            reason=body.reason,
            requested_by=request.caller.id,
        )
    )
    state.authenticator.invalidate()
    return Response(worker_protocol.Deregistered(result.requeued))


def _calling_worker(state: AppState, request: Request) -> RegisteredWorker:
    """Return the worker that sent the request, and record that it was seen."""
    worker: RegisteredWorker = request.caller.worker
    state.fleet.mark_seen(worker.id)
    return worker


_LEASE = ("404 task_not_found", "404 lease_not_found", "409 lease_lost", *VALUES)
_NAMES = ("422 invalid_worker", "422 invalid_kind", "422 invalid_label", "422 too_many_labels",
          "422 capabilities_too_large", "422 capabilities_too_deep")  # fmt: skip
_FILE = ("404 file_not_found", "422 invalid_file")
_ROUTES = (
    Route("POST", "/v1/worker/register", register_worker, FLEET_KEYS, "Register a worker", worker_protocol.Registration,
          worker_protocol.Register, status=201,
          problems=("403 worker_revoked", "403 worker_rejected", "409 fleet_full",
                    "503 worker_verification_unavailable", *_NAMES, *VALUES),
          details="Send the fleet secret, a key with the role `worker`. The response contains a token for the other "
          "worker routes. Registering the same name again is a restart: the old token is revoked, and the worker's "
          "tasks are requeued without counting an attempt. Tasks in `held_task_ids` keep their leases."),
    Route("POST", "/v1/worker/claim", claim_tasks, REGISTERED_WORKERS,
        "Claim tasks", worker_protocol.ClaimResult, worker_protocol.Claim,
          problems=("403 worker_not_approved", "409 worker_full", "409 kind_not_assigned",
                    "503 stopping", *VALUES),
          details="Long polling: if no task is available, the server waits up to `wait_seconds`. Each returned task "
          "is leased to the worker. Send heartbeats to keep the lease. `drain` tells the worker to stop claiming."),
    Route("POST", "/v1/worker/heartbeat", heartbeat, REGISTERED_WORKERS,
        "Send heartbeats", worker_protocol.HeartbeatResponse, worker_protocol.Heartbeat,
          problems=("429 too_many_heartbeats", "422 too_many_commands", *VALUES),
          details="Extends leases and reports progress. Each heartbeat has its own result, in the order of the "
          "request. A refused one has an `error`; the others are not affected. If signed URLs cannot be created, "
          "the lease is extended and `grants_error` contains the reason."),
    Route("POST", "/v1/worker/files", grant_files, REGISTERED_WORKERS, "Get signed URLs",
          worker_protocol.FileGrants, worker_protocol.FileGrantsRequest,
          problems=(*_LEASE, *_FILE, "409 storage_quota_exceeded", "429 too_many_pending_bytes"),
          details="Returns download URLs for input files, and upload URLs for output files and the preview image of "
          "a leased task. Their sizes count towards the storage quotas of the tenant until the attempt ends."),
    Route("POST", "/v1/worker/previous-outputs", list_previous_outputs, REGISTERED_WORKERS,
        "List outputs of previous stages", worker_protocol.PreviousOutputs,
          worker_protocol.PreviousOutputsRequest, problems=_LEASE,
          details="Returns the outputs and files of the completed tasks of earlier stages, in the order of stages "
          "and tasks. Pass `next` as `cursor` to get the next page."),
    Route("POST", "/v1/worker/submitted", record_submission, REGISTERED_WORKERS,
        "Record a provider submission",
          worker_protocol.ReportResult, worker_protocol.ProviderSubmission, problems=("422 invalid_provider",
          "422 invalid_ref", *_LEASE),
          details="Records the provider's job id of a task. If this attempt is interrupted, the next one gets the id "
          "and can collect the result instead of submitting again. The id is not part of any other response."),
    Route("POST", "/v1/worker/complete", complete_task, REGISTERED_WORKERS, "Complete a task",
        worker_protocol.ReportResult,
          worker_protocol.Complete, extra_body_limit="output_bytes_max",
          problems=("422 file_not_uploaded", "422 size_mismatch", "422 digest_mismatch", "422 output_too_large",
                    "422 output_too_deep", "422 invalid_file", "409 storage_quota_exceeded",
                    *_LEASE),
          details="Upload the output files first: the server verifies their size and SHA-256. Repeating the request "
          "has no effect."),
    Route("POST", "/v1/worker/fail", fail_task, REGISTERED_WORKERS, "Fail a task", worker_protocol.ReportResult,
          worker_protocol.Fail, problems=_LEASE,
          details="Ends the attempt. The workflow's retry policy and `retryable` decide whether the task is retried."),
    Route("POST", "/v1/worker/requeue", requeue_task, REGISTERED_WORKERS, "Requeue a task",
          worker_protocol.ReportResult, worker_protocol.Requeue, problems=("422 reason_required", *_LEASE),
          details="Returns the task to its queue. This does not count as an attempt."),
    Route("POST", "/v1/worker/deregister", deregister_worker, REGISTERED_WORKERS, "Deregister a worker",
        worker_protocol.Deregistered,
          worker_protocol.Deregister, problems=VALUES,
          details="Requeues the worker's tasks and revokes its token. Call it when the worker shuts down."),
)  # fmt: skip
_NEW_WORK = {claim_tasks, register_worker}
ROUTES = tuple(
    route._replace(work_class=WorkClass.CLAIM if route.handler in _NEW_WORK else WorkClass.ESSENTIAL)
    for route in _ROUTES
)
"""Reports are essential: the work that they report is done. Only what brings new work is refused under overload."""
