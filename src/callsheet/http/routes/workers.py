"""Workers, as an operator sees them: who is here, what they hold; approve, drain, assign, revoke, rotate."""

from typing import Any, NamedTuple

import msgspec

from callsheet.api.workers import Worker, WorkerBody, WorkerLease, WorkerPage, WorkersQuery, WorkerToken
from callsheet.core.decisions.claim import allowed_kinds
from callsheet.core.model import commands, rows
from callsheet.http.auth.authenticator import WORKER_PREFIX, hash_secret, new_secret
from callsheet.http.openapi.error_codes import VALUES
from callsheet.http.server.pagination import parse_list_query, row_count, split_page
from callsheet.http.server.problems import not_found
from callsheet.http.server.request import Request
from callsheet.http.server.router import OPERATORS, Response, Route
from callsheet.http.state import AppState
from callsheet.queries import render

_EMBEDDED = "embedded"
_LISTED_MAX = 10
"""Leases of each worker in a list: a page has hundreds of workers, and one may hold a thousand."""


async def list_workers(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, WorkersQuery)
    found, live = await state.reads.scan_many([
        (
            "workers_after",
            {
                "after": query.after,
                "gone": int(query.include_deregistered),
                "count": row_count(state, query.limit),
            },
        ),
        ("leases_by_worker", {}),
    ])  # fmt: skip
    page, more = split_page(found, query.limit)
    workers = [rows.Worker(*row) for row in page]
    known = {row[0] for row in await state.reads.scan("worker_ids", ids=sorted({row[0] for row in live}))}
    embedded_names = sorted({row[0] for row in live} - known) if not query.after else []
    leases_by_worker = await _fetch_leases(state, [*(worker.id for worker in workers), *embedded_names], _LISTED_MAX)
    shown = [_view(worker, leases_by_worker.get(worker.id, _EMPTY)) for worker in workers]
    shown += [
        _embedded(name, sorted(row[1] for row in live if row[0] == name), leases_by_worker.get(name, _EMPTY))
        for name in embedded_names
    ]
    return Response(WorkerPage(shown, workers[-1].id if more else None))


async def get_worker(state: AppState, request: Request) -> Response:
    return Response(await _worker_view(state, request.params["worker"]))


async def update_worker(state: AppState, request: Request) -> Response:
    body: WorkerBody = request.content
    name = request.params["worker"]
    kinds = None if body.kinds is None else tuple(body.kinds)
    await _apply(
        state,
        name,
        commands.UpdateWorker(
            worker_id=name, approved=body.approved, draining=body.draining, kinds=kinds, by=request.caller.id
        ),
    )
    return Response(await _worker_view(state, name))


async def revoke_worker(state: AppState, request: Request) -> Response:
    name = request.params["worker"]
    await _apply(state, name, commands.RevokeWorker(worker_id=name, by=request.caller.id))
    return Response(await _worker_view(state, name))


async def rotate_worker(state: AppState, request: Request) -> Response:
    name, token = request.params["worker"], new_secret(WORKER_PREFIX)
    await _apply(
        state, name, commands.RotateWorker(worker_id=name, token_hash=hash_secret(token), by=request.caller.id)
    )
    return Response(WorkerToken(name, token))


async def _apply(state: AppState, name: str, command: commands.Command) -> None:
    """Carry out what an operator decided; a claim that waits here hears of it at once, one elsewhere at its end."""
    await state.engine.aexecute(command)
    state.authenticator.invalidate()
    state.fleet.waiting_claims.release_worker(name)


async def _worker_view(state: AppState, name: str) -> Worker:
    found = await state.reads.lookup("worker_of", id=name)
    if not found:
        raise not_found("worker")
    leases_by_worker = await _fetch_leases(state, [name], state.engine.settings.limits.worker_concurrency_max)
    return _view(rows.Worker(*found[0]), leases_by_worker.get(name, _EMPTY))


class WorkerLeases(NamedTuple):
    """What a worker has in hand: how many tasks, and the first of them."""

    leases_total: int
    leases: list[WorkerLease]


_EMPTY = WorkerLeases(0, [])


async def _fetch_leases(state: AppState, names: list[str], most: int) -> dict[str, WorkerLeases]:
    found: dict[str, WorkerLeases] = {}
    for *row, leases_total in await state.reads.scan("leases_of_workers", ids=names, most=most) if names else []:
        task = rows.Task(*row)
        lease = WorkerLease(
            task.job_id, task.id, task.kind, task.attempts, task.progress, render.to_datetime(task.started_at),
            render.to_datetime(task.lease_expires_at),
        )  # fmt: skip
        found.setdefault(task.worker_id or "", WorkerLeases(leases_total, [])).leases.append(lease)
    return found


def _view(worker: rows.Worker, leases_by_worker: WorkerLeases) -> Worker:
    def decoded(text: str | None) -> Any:
        return None if text is None else msgspec.json.decode(text)

    return Worker(
        worker.id, worker.status, list(allowed_kinds(worker)), decoded(worker.offered), worker.concurrency,
        worker.draining_at is not None, leases_by_worker.leases_total, leases_by_worker.leases, worker.starts,
        render.to_datetime(worker.created_at),
        render.to_datetime(worker.started_at), render.to_datetime(worker.last_seen_at),
        render.to_datetime(worker.ended_at),
        decoded(worker.labels), decoded(worker.capabilities),
    )  # fmt: skip


def _embedded(name: str, kinds: list[str], leases_by_worker: WorkerLeases) -> Worker:
    return Worker(
        name, _EMBEDDED, kinds, kinds, None, draining=False, leases_total=leases_by_worker.leases_total,
        leases=leases_by_worker.leases, starts=0,
        registered_at=None, started_at=None, last_seen_at=None, ended_at=None, labels=None, capabilities=None,
    )  # fmt: skip


_ABSENT = "404 worker_not_found"
ROUTES = (
    Route("GET", "/v1/admin/workers", list_workers, OPERATORS, "List workers, what they hold, when they were heard of",
          WorkerPage, query=WorkersQuery,
          details=f"Of the tasks that a worker holds the first {_LISTED_MAX} are listed; `held` says how many there "
          "are, and the worker's own address has them all."),
    Route("GET", "/v1/admin/workers/{worker}", get_worker, OPERATORS, "Get a worker", Worker, problems=(_ABSENT,)),
    Route("PATCH", "/v1/admin/workers/{worker}", update_worker, OPERATORS, "Approve, drain or assign a worker", Worker,
          WorkerBody, problems=(_ABSENT, "409 kind_not_offered", "422 invalid_kind", *VALUES)),
    Route("POST", "/v1/admin/workers/{worker}/revoke", revoke_worker, OPERATORS, "Revoke a worker", Worker,
          problems=(_ABSENT, "422 invalid_text"),
          details="Its token fails at once, and what it held is given back without using up a try. It may come again "
          "once it is approved."),
    Route("POST", "/v1/admin/workers/{worker}/rotate", rotate_worker, OPERATORS, "Rotate a worker's token",
          WorkerToken, problems=(_ABSENT, "409 worker_ended", "422 invalid_text"),
          details="The token it has fails at once. A worker that knows the fleet's secret registers again by itself."),
)  # fmt: skip
