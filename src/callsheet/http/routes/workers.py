"""Workers as an operator sees them: list, approve, drain, assign, revoke, rotate."""

from callsheet.api.workers import Worker, WorkerBody, WorkerPage, WorkersQuery, WorkerToken
from callsheet.core.model import commands
from callsheet.http.auth.authenticator import WORKER_PREFIX, hash_secret, new_secret
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.pagination import parse_list_query
from callsheet.http.server.request import Request
from callsheet.http.server.router import OPERATORS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import workers
from callsheet.queries.workers import LISTED_LEASES_MAX


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
    """Execute a command about a worker, and end its waiting claim on this server so that it learns of it."""
    await state.engine.aexecute(command)
    state.authenticator.invalidate()
    state.fleet.waiting_claims.release_worker(name)


_ABSENT = "404 worker_not_found"
ROUTES = (
    Route("GET", "/v1/admin/workers", list_workers, OPERATORS,
          "List workers, their leases, and when they were last seen", WorkerPage, query=WorkersQuery,
          details=f"Of the tasks that a worker leases, the first {LISTED_LEASES_MAX} are listed; `leases_total` "
          "says how many there are. Get the worker to see all of them."),
    Route("GET", "/v1/admin/workers/{worker}", get_worker, OPERATORS, "Get a worker", Worker, problems=(_ABSENT,)),
    Route("PATCH", "/v1/admin/workers/{worker}", update_worker, OPERATORS, "Approve, drain or assign a worker", Worker,
          WorkerBody, problems=(_ABSENT, "409 kind_not_offered", "422 invalid_kind", *VALUES)),
    Route("POST", "/v1/admin/workers/{worker}/revoke", revoke_worker, OPERATORS, "Revoke a worker", Worker,
          problems=(_ABSENT, "422 invalid_text"),
          details="Its token stops working at once, and its tasks are requeued; these attempts do not count. It may "
          "register again once it is approved."),
    Route("POST", "/v1/admin/workers/{worker}/rotate", rotate_worker, OPERATORS, "Rotate a worker's token",
          WorkerToken, problems=(_ABSENT, "409 worker_ended", "422 invalid_text"),
          details="Its current token stops working at once. A worker that has the fleet key registers again."),
)  # fmt: skip
