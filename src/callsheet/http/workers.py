"""Workers, as an operator sees them: who is here, what they hold; approve, drain, assign, revoke, rotate."""

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from callsheet.core import commands, rows
from callsheet.core.claim import kinds_of
from callsheet.http import views
from callsheet.http.auth import WORKER_PREFIX, hashed, new_secret
from callsheet.http.codes import VALUES
from callsheet.http.house import House
from callsheet.http.paging import limited, listed, paged
from callsheet.http.problem import absent
from callsheet.http.request import Request
from callsheet.http.route import HOUSE, Answer, Route

_EMBEDDED = "embedded"
_LISTED_MAX = 10
"""Leases of each worker in a list: a page has hundreds of workers, and one may hold a thousand."""


class WorkersQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to go on, and whether those that have gone are shown."""

    after: str = ""
    limit: int = 100
    gone: bool = False


class WorkerLease(Struct, frozen=True):
    """A task in a worker's hand."""

    job_id: str
    task_id: str
    kind: str
    attempt: int
    progress: int
    started_at: str | None
    lease_expires_at: str | None


class Worker(Struct, frozen=True):
    """A worker: what it may do, what it holds, when it was last heard of."""

    worker: str
    status: str
    """pending, approved, revoked, gone; embedded runs inside a server and is not registered."""
    kinds: list[str]
    offered: list[str]
    concurrency: int | None
    draining: bool
    held: int
    """How many tasks it has in hand."""
    leases: list[WorkerLease]
    """The tasks, those first that began first: in a list of workers some of them, under its own address all."""
    starts: int
    registered_at: str | None
    started_at: str | None
    seen_at: str | None
    ended_at: str | None
    labels: dict[str, str] | None
    capabilities: dict[str, Any] | None


class Workers(Struct, frozen=True):
    """Workers by name."""

    workers: list[Worker]
    next: str | None


class WorkerBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What to change; what is left out stays as it is."""

    approved: bool | None = None
    draining: bool | None = None
    kinds: list[str] | None = None
    """Of what it offers it may take these; an empty list is everything."""


class WorkerToken(Struct, frozen=True):
    """A worker's new token, shown once; the one before is good no longer."""

    worker: str
    token: str


async def list_workers(house: House, request: Request) -> Answer:
    query = listed(house, request, WorkersQuery)
    found, live = await house.scans.fetch_all([
        ("workers_after", {"after": query.after, "gone": int(query.gone), "count": limited(house, query.limit)}),
        ("workers_live", {}),
    ])  # fmt: skip
    page, more = paged(found, query.limit)
    workers = [rows.Worker(*row) for row in page]
    known = {row[0] for row in await house.scans.fetch("workers_known", ids=sorted({row[0] for row in live}))}
    strangers = sorted({row[0] for row in live} - known) if not query.after else []
    hands = await _hands(house, [*(worker.id for worker in workers), *strangers], _LISTED_MAX)
    shown = [_view(worker, hands.get(worker.id, _EMPTY)) for worker in workers]
    shown += [
        _embedded(name, sorted(row[1] for row in live if row[0] == name), hands.get(name, _EMPTY)) for name in strangers
    ]
    return Answer(Workers(shown, workers[-1].id if more else None))


async def get_worker(house: House, request: Request) -> Answer:
    return Answer(await _shown(house, request.params["worker"]))


async def change_worker(house: House, request: Request) -> Answer:
    body: WorkerBody = request.content
    name = request.params["worker"]
    kinds = None if body.kinds is None else tuple(body.kinds)
    await _done(
        house,
        name,
        commands.SetWorker(
            worker_id=name, approved=body.approved, draining=body.draining, kinds=kinds, by=request.who.id
        ),
    )
    return Answer(await _shown(house, name))


async def revoke_worker(house: House, request: Request) -> Answer:
    name = request.params["worker"]
    await _done(house, name, commands.RevokeWorker(worker_id=name, by=request.who.id))
    return Answer(await _shown(house, name))


async def rotate_worker(house: House, request: Request) -> Answer:
    name, token = request.params["worker"], new_secret(WORKER_PREFIX)
    await _done(house, name, commands.RotateWorker(worker_id=name, token_hash=hashed(token), by=request.who.id))
    return Answer(WorkerToken(name, token))


async def _done(house: House, name: str, command: commands.Command) -> None:
    """Carry out what an operator decided; a claim that waits here hears of it at once, one elsewhere at its end."""
    await house.engine.aexecute(command)
    house.keys.forget()
    house.fleet.room.let_go(name)


async def _shown(house: House, name: str) -> Worker:
    found = await house.reads.fetch("worker_of", id=name)
    if not found:
        raise absent("worker")
    hands = await _hands(house, [name], house.engine.settings.limits.worker_concurrency_max)
    return _view(rows.Worker(*found[0]), hands.get(name, _EMPTY))


class Hands(NamedTuple):
    """What a worker has in hand: how many tasks, and the first of them."""

    held: int
    leases: list[WorkerLease]


_EMPTY = Hands(0, [])


async def _hands(house: House, names: list[str], most: int) -> dict[str, Hands]:
    found: dict[str, Hands] = {}
    for *row, held in await house.scans.fetch("leases_of", ids=names, most=most) if names else []:
        task = rows.Task(*row)
        lease = WorkerLease(
            task.job_id, task.id, task.kind, task.attempts, task.progress, views.moment(task.started_at),
            views.moment(task.lease_expires_at),
        )  # fmt: skip
        found.setdefault(task.worker_id or "", Hands(held, [])).leases.append(lease)
    return found


def _view(worker: rows.Worker, hands: Hands) -> Worker:
    def decoded(text: str | None) -> Any:
        return None if text is None else msgspec.json.decode(text)

    return Worker(
        worker.id, worker.status, list(kinds_of(worker)), decoded(worker.offered), worker.concurrency,
        worker.draining_at is not None, hands.held, hands.leases, worker.starts, views.moment(worker.created_at),
        views.moment(worker.started_at), views.moment(worker.seen_at), views.moment(worker.ended_at),
        decoded(worker.labels), decoded(worker.capabilities),
    )  # fmt: skip


def _embedded(name: str, kinds: list[str], hands: Hands) -> Worker:
    return Worker(
        name, _EMBEDDED, kinds, kinds, None, draining=False, held=hands.held, leases=hands.leases, starts=0,
        registered_at=None, started_at=None, seen_at=None, ended_at=None, labels=None, capabilities=None,
    )  # fmt: skip


_ABSENT = "404 worker_not_found"
ROUTES = (
    Route("GET", "/v1/admin/workers", list_workers, HOUSE, "List workers, what they hold, when they were heard of",
          Workers, query=WorkersQuery,
          details=f"Of the tasks that a worker holds the first {_LISTED_MAX} are listed; `held` says how many there "
          "are, and the worker's own address has them all."),
    Route("GET", "/v1/admin/workers/{worker}", get_worker, HOUSE, "Get a worker", Worker, problems=(_ABSENT,)),
    Route("PATCH", "/v1/admin/workers/{worker}", change_worker, HOUSE, "Approve, drain or assign a worker", Worker,
          WorkerBody, problems=(_ABSENT, "409 kind_not_offered", "422 invalid_kind", *VALUES)),
    Route("POST", "/v1/admin/workers/{worker}/revoke", revoke_worker, HOUSE, "Revoke a worker", Worker,
          problems=(_ABSENT, "422 invalid_text"),
          details="Its token fails at once, and what it held is given back without using up a try. It may come again "
          "once it is approved."),
    Route("POST", "/v1/admin/workers/{worker}/rotate", rotate_worker, HOUSE, "Rotate a worker's token",
          WorkerToken, problems=(_ABSENT, "409 worker_ended", "422 invalid_text"),
          details="The token it has fails at once. A worker that knows the fleet's secret registers again by itself."),
)  # fmt: skip
