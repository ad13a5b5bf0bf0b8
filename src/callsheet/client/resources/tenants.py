"""`client.tenants`: list and update tenants."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from callsheet.api.admin import Tenant, TenantDetails
from callsheet.client.method_binding import call, iterate
from callsheet.client.operation_effects import IterableOperation, Operation
from callsheet.client.requests_and_pages import get_request, json_request, paginate, path, send, without_none
from callsheet.client.resource import D, Resource


class Tenants(Resource[D]):
    """List and update tenants."""

    @iterate
    def list(self) -> IterableOperation[Tenant]:
        """Iterate over tenants, by name."""
        return paginate(self, Tenant, "tenants", path("admin", "tenants"), {})

    @call
    def get(self, tenant: str) -> Operation[TenantDetails]:
        """Return a tenant and its use of file storage."""
        return send(self, TenantDetails, get_request(path("admin", "tenants", tenant)))

    @call
    def put(
        self, tenant: str, *, weight: int | None = None, status: Literal["active", "suspended"] | None = None,
        active_jobs_max: int | UnsetType | None = UNSET, storage_bytes_max: int | UnsetType | None = UNSET,
    ) -> Operation[Tenant]:  # fmt: skip
        """Create or update a tenant. Omitted arguments stay unchanged; a limit of None removes the tenant's own."""
        body: dict[str, Any] = without_none({"weight": weight, "status": status})
        own_limits = {"active_jobs_max": active_jobs_max, "storage_bytes_max": storage_bytes_max}
        body |= {name: limit for name, limit in own_limits.items() if limit is not UNSET}
        return send(self, Tenant, json_request("PUT", path("admin", "tenants", tenant), body, idempotent=True))
