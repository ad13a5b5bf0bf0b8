"""Routes for operators to manage workers: list, approve, drain, assign kinds, revoke, and rotate tokens."""

from callsheet.api.workers import Worker, WorkerBody, WorkerPage, WorkersQuery, WorkerToken
from callsheet.core.model import commands
from callsheet.http.auth.authenticator import WORKER_PREFIX, hash_secret, new_secret
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.list_query import parse_list_query
from callsheet.http.server.request import Request
from callsheet.http.server.route import OPERATORS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries.fleet import workers
from callsheet.queries.fleet.workers import LISTED_LEASES_MAX


async def list_workers(state: AppState, request: Request) -> Response:
    return Response(await workers.list_workers(state.queries, parse_list_query(state, request, WorkersQuery)))


async def get_worker(state: AppState, request: Request) -> Response:
    return Response(await workers.get_worker(state.queries, request.params["worker"]))


async def update_worker(state: AppState, request: Request) -> Response:
    body: WorkerBody = request.content
    name = request.params["worker"]
    kinds = None if body.kinds is None else tuple(body.kinds)
    await _apply(
        state,
        name,
        commands.UpdateWorker(
            worker_id=name, approved=body.approved, draining=body.draining, kinds=kinds, requested_by=request.caller.id
        ),
    )
    return Response(await workers.get_worker(state.queries, name))


async def revoke_worker(state: AppState, request: Request) -> Response:
    name = request.params["worker"]
    await _apply(state, name, commands.RevokeWorker(worker_id=name, requested_by=request.caller.id))
    return Response(await workers.get_worker(state.queries, name))


async def rotate_worker(state: AppState, request: Request) -> Response:
    name, token = request.params["worker"], new_secret(WORKER_PREFIX)
    await _apply(
        state,
        name,
        commands.RotateWorker(worker_id=name, token_hash=hash_secret(token), requested_by=request.caller.id),
    )
    return Response(WorkerToken(name, token))


async def _apply(state: AppState, name: str, command: commands.Command) -> None:
    """Execute a command about a worker, and end its waiting claim on this server so that the change applies now."""
    await state.engine.aexecute(command)
    state.authenticator.invalidate()
    state.fleet.waiting_claims.release_worker(name)


_NOT_FOUND = "404 worker_not_found"
ROUTES = (
    Route("GET", "/v1/admin/workers", list_workers, OPERATORS,
          "List workers", WorkerPage, query=WorkersQuery,
          details="Sorted by name. Each worker has its first "
          f"{LISTED_LEASES_MAX} leases; `leases_total` is the number of all. Get a worker to see all its leases."),
    Route("GET", "/v1/admin/workers/{worker}", get_worker, OPERATORS, "Get a worker", Worker, problems=(_NOT_FOUND,),
          details="Returns the worker with all its leases."),
    Route("PATCH", "/v1/admin/workers/{worker}", update_worker, OPERATORS, "Update a worker", Worker,
          WorkerBody, problems=(_NOT_FOUND, "409 kind_not_offered", "422 invalid_kind", *VALUES),
          details="Approves a worker (`approved`), drains it (`draining`) or assigns kinds (`kinds`). A draining "
          "worker finishes its tasks and gets no new ones. Fields that you leave out keep their value."),
    Route("POST", "/v1/admin/workers/{worker}/revoke", revoke_worker, OPERATORS, "Revoke a worker", Worker,
          problems=(_NOT_FOUND, "422 invalid_text"),
          details="Revokes the worker's token and requeues its tasks without counting an attempt. The worker can "
          "register again after you approve it."),
    Route("POST", "/v1/admin/workers/{worker}/rotate", rotate_worker, OPERATORS, "Rotate a worker's token",
          WorkerToken, problems=(_NOT_FOUND, "409 worker_ended", "422 invalid_text"),
          details="Returns a new token and revokes the current one. The worker keeps its leases. A worker with "
          "the SDK and the fleet secret registers again automatically and continues its tasks."),
)  # fmt: skip
