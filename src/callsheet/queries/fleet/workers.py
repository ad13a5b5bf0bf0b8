"""Workers as an operator sees them."""

from typing import Any, NamedTuple

import msgspec

from callsheet.api.workers import Worker, WorkerLease, WorkerPage, WorkersQuery
from callsheet.core.decisions.claim import allowed_kinds
from callsheet.core.model import rows
from callsheet.core.model.errors import NotFound
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.pages import row_count, split_page

_EMBEDDED = "embedded"
LISTED_LEASES_MAX = 10
"""Leases of each worker in a list: a page can have hundreds of workers, each with a thousand leases."""


async def list_workers(context: QueryContext, query: WorkersQuery) -> WorkerPage:
    """Return a page of the workers, by name. The first page also contains embedded workers, which do not register."""
    found, pairs = await context.reads.scan_many([
        (
            "all_workers_after" if query.include_deregistered else "workers_after",
            {"after": query.cursor, "count": row_count(context, query.limit)},
        ),
        ("leasing_workers", {"most": context.settings.scan_rows_max}),
    ])  # fmt: skip
    page, more = split_page(found, query.limit)
    workers = [rows.Worker(*row) for row in page]
    leasing = {name for name, _ in pairs}
    registered = {row[0] for row in await context.reads.scan("worker_ids", ids=sorted(leasing))}
    embedded_names = sorted(leasing - registered)[: context.settings.page_size_max] if not query.cursor else []
    leases_by_worker = await _fetch_leases(
        context, [*(worker.id for worker in workers), *embedded_names], LISTED_LEASES_MAX
    )
    views = [_view(worker, leases_by_worker.get(worker.id, _EMPTY)) for worker in workers]
    views += [
        _embedded(name, sorted(kind for own, kind in pairs if own == name), leases_by_worker.get(name, _EMPTY))
        for name in embedded_names
    ]
    return WorkerPage(views, workers[-1].id if more else None)


async def get_worker(context: QueryContext, name: str) -> Worker:
    """Return a worker with all its leases."""
    found = await context.reads.lookup("worker_of", id=name)
    if not found:
        raise NotFound("worker", name[:80])
    leases_by_worker = await _fetch_leases(context, [name], context.limits.worker_concurrency_max)
    return _view(rows.Worker(*found[0]), leases_by_worker.get(name, _EMPTY))


class WorkerLeases(NamedTuple):
    """The leases of a worker: how many, and the first of them."""

    leases_total: int
    leases: list[WorkerLease]


_EMPTY = WorkerLeases(0, [])


async def _fetch_leases(context: QueryContext, names: list[str], most: int) -> dict[str, WorkerLeases]:
    found: dict[str, WorkerLeases] = {}
    for *row, leases_total in await context.reads.scan("leases_of_workers", ids=names, most=most) if names else []:
        task = rows.Task(*row)
        lease = WorkerLease(
            task.job_id, task.id, task.kind, task.attempts, task.progress, render.to_datetime(task.started_at),
            render.to_datetime(task.lease_expires_at),
        )  # fmt: skip
        found.setdefault(task.worker_id or "", WorkerLeases(leases_total, [])).leases.append(lease)
    return found


def _view(worker: rows.Worker, held: WorkerLeases) -> Worker:
    def decoded(text: str | None) -> Any:
        return None if text is None else msgspec.json.decode(text)

    return Worker(
        worker.id, worker.status, list(allowed_kinds(worker)), decoded(worker.offered), worker.concurrency,
        worker.draining_at is not None, held.leases_total, held.leases, worker.starts,
        render.to_datetime(worker.created_at),
        render.to_datetime(worker.started_at), render.to_datetime(worker.last_seen_at),
        render.to_datetime(worker.ended_at),
        decoded(worker.labels), decoded(worker.capabilities),
    )  # fmt: skip


def _embedded(name: str, kinds: list[str], held: WorkerLeases) -> Worker:
    return Worker(
        name, _EMBEDDED, kinds, kinds, None, draining=False, leases_total=held.leases_total,
        leases=held.leases, start_count=0,
        registered_at=None, started_at=None, last_seen_at=None, ended_at=None, labels=None, capabilities=None,
    )  # fmt: skip
