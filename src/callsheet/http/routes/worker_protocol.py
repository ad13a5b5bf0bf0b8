"""The worker protocol: machines that come for work, hold leases, and hand in what they made."""

from callsheet.api import worker_protocol
from callsheet.core.decisions.claim import allowed_kinds
from callsheet.core.model import commands
from callsheet.core.model.errors import BadInput, Conflict
from callsheet.dispatch.fleet import RegisteredWorker
from callsheet.http.auth.authenticator import WORKER_PREFIX, hash_secret, new_secret
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.request import Request
from callsheet.http.server.router import FLEET_KEYS, REGISTERED_WORKERS, Response, Route
from callsheet.http.state import AppState


async def register_worker(state: AppState, request: Request) -> Response:
    body: worker_protocol.Register = request.content
    await state.fleet.verify_worker(body, request.client_address)
    token = new_secret(WORKER_PREFIX)
    result: commands.WorkerState = await state.engine.aexecute(
        commands.Register(
            worker_id=body.worker, kinds=tuple(body.kinds), token_hash=hash_secret(token), concurrency=body.concurrency,
            capabilities=body.capabilities, labels=body.labels, approved=not state.settings.require_worker_approval,
            requested_by=request.caller.id,
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
        raise BadInput("out_of_range", f"wait_seconds must be from 0 to {state.settings.wait_seconds_max:g}.")
    if worker.draining_at is not None:
        return Response(worker_protocol.ClaimResult([], drain=True))
    allowed, requested = allowed_kinds(worker), None if body.kinds is None else set(body.kinds)
    kinds = allowed if requested is None else tuple(kind for kind in allowed if kind in requested)
    if not kinds:
        await request.until_disconnect(state.fleet.waiting_claims.wait_idle(body.wait_seconds))
        return Response(worker_protocol.ClaimResult([], drain=False))
    command = commands.Claim(
        worker_id=worker.id, kinds=kinds, count=body.count, session=worker.token_hash,
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
    state.fleet.waiting_claims.release_worker(worker.id)  # or a claim of its own that still waits would take it again
    return Response(await state.reports.requeue(body, worker.id))


async def deregister_worker(state: AppState, request: Request) -> Response:
    body: worker_protocol.Deregister = request.content
    worker = _calling_worker(state, request)
    result: commands.WorkerState = await state.engine.aexecute(
        commands.Deregister(
            worker_id=worker.id, session=worker.token_hash or "", reason=body.reason, requested_by=request.caller.id
        )
    )
    state.authenticator.invalidate()
    return Response(worker_protocol.Deregistered(result.requeued))


def _calling_worker(state: AppState, request: Request) -> RegisteredWorker:
    """Return the worker that calls, and note that it was seen."""
    worker: RegisteredWorker = request.caller.worker
    state.fleet.mark_seen(worker.id)
    return worker


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
          "`error`, and the other leases are not affected. If signed URLs cannot be created, `grants_error` says why; "
          "that lease is extended all the same."),
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
