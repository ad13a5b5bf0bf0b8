"""Tenants with their use of storage, API keys, and the audit log."""

from typing import Any

from callsheet.api.admin import (
    AuditLog,
    AuditQuery,
    Key,
    KeyPage,
    StorageUsage,
    Tenant,
    TenantDetails,
    TenantPage,
)
from callsheet.api.shared_fields import NamesQuery
from callsheet.core.model import rows
from callsheet.core.model.errors import NotFound
from callsheet.core.policy.storage_quota import storage_bytes_max
from callsheet.core.policy.visibility import Viewer, sees_all_tenants
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.pages import row_count, split_page

_AUDIT_QUERIES = {
    (False, False): "audit_before", (True, False): "audit_of_tenant", (False, True): "audit_of_subject",
    (True, True): "audit_of_tenant_and_subject",
}  # fmt: skip
"""The query of the audit log, by whether it is limited to a tenant and to a subject."""


async def list_tenants(context: QueryContext, query: NamesQuery) -> TenantPage:
    """Return a page of the tenants, by name."""
    found = await context.reads.lookup("tenants_after", after=query.cursor, count=row_count(context, query.limit))
    page, more = split_page(found, query.limit)
    return TenantPage([render.tenant_view(rows.Tenant(*row)) for row in page], page[-1][0] if more else None)


async def get_tenant(context: QueryContext, tenant_id: str) -> TenantDetails:
    """Return a tenant and its use of file storage."""
    tenants, usages = await context.reads.lookup_many([
        ("tenants", {"ids": [tenant_id]}), ("usage_of_tenant", {"id": tenant_id}),
    ])  # fmt: skip
    if not tenants:
        raise NotFound("tenant", tenant_id[:80])
    tenant, usage, limits = rows.Tenant(*tenants[0]), rows.StorageUsage(*usages[0]), context.limits
    storage = StorageUsage(
        usage.stored_bytes, usage.pending_bytes, storage_bytes_max(tenant, limits), limits.pending_bytes_max
    )
    return TenantDetails(render.tenant_view(tenant), storage)


async def list_keys(context: QueryContext, viewer: Viewer, query: NamesQuery) -> KeyPage:
    """Return a page of the keys that the viewer may see, oldest first."""
    page_of_list = {"after": query.cursor, "count": row_count(context, query.limit)}
    if sees_all_tenants(viewer):
        found = await context.reads.lookup("api_keys_after", **page_of_list)
    else:
        found = await context.reads.lookup("api_keys_of_tenant", tenant=viewer.tenant, **page_of_list)
    page, more = split_page(found, query.limit)
    return KeyPage([render.key_view(rows.ApiKey(*row)) for row in page], page[-1][0] if more else None)


async def list_audit(context: QueryContext, viewer: Viewer, query: AuditQuery) -> AuditLog:
    """Return a page of the audit log that the viewer may see, newest first."""
    filters: dict[str, Any] = {"before": query.cursor, "count": row_count(context, query.limit)}
    if not sees_all_tenants(viewer):
        filters["tenant"] = viewer.tenant
    if query.subject is not None:
        filters["subject"] = query.subject
    found = await context.reads.scan(_AUDIT_QUERIES["tenant" in filters, "subject" in filters], **filters)
    page, more = split_page(found, query.limit)
    return AuditLog([render.audit_view(rows.Audit(*row)) for row in page], page[-1][0] if more else None)


def render_tenant(row: rows.Tenant) -> Tenant:
    return render.tenant_view(row)


def render_key(row: rows.ApiKey) -> Key:
    return render.key_view(row)
