"""Tenants, keys, the audit log, and counts for operators."""

from collections.abc import Iterable
from typing import Any

from callsheet.api.admin import AuditLog, AuditQuery, Key, KeyPage, Ops, Queue, Tenant, TenantPage
from callsheet.api.shared_fields import NamesQuery
from callsheet.core.model import rows
from callsheet.core.model.clock import SECOND
from callsheet.core.policy.visibility import Viewer, sees_all_tenants
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.fleet.stats import seen_within
from callsheet.queries.pages import row_count, split_page

_OVERDUE = 60 * SECOND
"""A provider call is overdue if it should have been polled this long ago."""


async def list_tenants(context: QueryContext, query: NamesQuery) -> TenantPage:
    """Return a page of the tenants, by name."""
    found = await context.reads.lookup("tenants_after", after=query.cursor, count=row_count(context, query.limit))
    page, more = split_page(found, query.limit)
    return TenantPage([render.tenant_view(rows.Tenant(*row)) for row in page], page[-1][0] if more else None)


async def list_keys(context: QueryContext, viewer: Viewer, query: NamesQuery) -> KeyPage:
    """Return a page of the keys that the viewer may see, oldest first."""
    found = await context.reads.lookup(
        "api_keys_after", **_scope(viewer), after=query.cursor, count=row_count(context, query.limit)
    )
    page, more = split_page(found, query.limit)
    return KeyPage([render.key_view(rows.ApiKey(*row)) for row in page], page[-1][0] if more else None)


async def list_audit(context: QueryContext, viewer: Viewer, query: AuditQuery) -> AuditLog:
    """Return a page of the audit log that the viewer may see, newest first."""
    filters = {**_scope(viewer), "before": query.cursor, "count": row_count(context, query.limit)}
    if query.subject is None:
        found = await context.reads.scan("audit_of", **filters)
    else:
        found = await context.reads.scan("audit_of_subject", subject=query.subject, **filters)
    page, more = split_page(found, query.limit)
    return AuditLog([render.audit_view(rows.Audit(*row)) for row in page], page[-1][0] if more else None)


async def get_ops(context: QueryContext, streams: int, embedded_workers: Iterable[str]) -> Ops:
    """Return load counts across all tenants. `embedded_workers` are those of this server, which do not register."""
    now = await context.reads.current_time()
    depths, active, leases, ((provider_calls, overdue),) = await read_load(context, now)
    live = await context.reads.scan("live_worker_ids", seen_since=now - seen_within(context.settings))
    busy = {row[0] for row in leases if row[3] is not None}
    return Ops(
        render.to_datetime(now), {row[0]: row[1] for row in active}, [Queue(*row) for row in depths],
        len(busy.union(embedded_workers, (row[0] for row in live))), len(busy), streams, provider_calls, overdue,
    )  # fmt: skip


async def read_load(context: QueryContext, now: int) -> Any:
    """Read queue depths, active jobs, leases by worker and open provider calls."""
    return await context.reads.scan_many([
        ("depths", {}), ("active_jobs", {}), ("leases_by_worker", {}), ("open_calls", {"due_before": now - _OVERDUE}),
    ])  # fmt: skip


def render_tenant(row: rows.Tenant) -> Tenant:
    return render.tenant_view(row)


def render_key(row: rows.ApiKey) -> Key:
    return render.key_view(row)


def _scope(viewer: Viewer) -> dict[str, Any]:
    """Return the parameters that limit a list to the viewer's tenant; an operator sees all."""
    return {"tenant": viewer.tenant, "all": int(sees_all_tenants(viewer))}
