"""`client.tenants`: list and update tenants."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from callsheet.api.admin import Tenant
from callsheet.client.method_binding import call, iterate
from callsheet.client.operation_effects import IterableOperation, Operation
from callsheet.client.requests import json_request, paginate, path, send, without_none
from callsheet.client.resource import D, Resource


class Tenants(Resource[D]):
    """List and update tenants."""

    @iterate
    def list(self) -> IterableOperation[Tenant]:
        """Iterate over tenants, by name."""
        return paginate(self, Tenant, "tenants", path("admin", "tenants"), {})

    @call
    def put(
        self, tenant: str, *, weight: int | None = None, status: Literal["active", "suspended"] | None = None,
        active_jobs_max: int | UnsetType | None = UNSET,
    ) -> Operation[Tenant]:  # fmt: skip
        """Create or update a tenant. Omitted arguments stay unchanged; `active_jobs_max=None` removes the limit."""
        body: dict[str, Any] = without_none({"weight": weight, "status": status})
        if active_jobs_max is not UNSET:
            body["active_jobs_max"] = active_jobs_max
        return send(self, Tenant, json_request("PUT", path("admin", "tenants", tenant), body, idempotent=True))
