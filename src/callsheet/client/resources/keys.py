"""`client.keys`: create, list and revoke API keys."""

from typing import Literal

from callsheet.api.admin import Key, NewKey
from callsheet.client.method_binding import call, iterate
from callsheet.client.operation_effects import IterableOperation, Operation
from callsheet.client.requests_and_pages import json_request, paginate, path, send
from callsheet.client.resource import D, Resource


class Keys(Resource[D]):
    """Create, list and revoke API keys."""

    @call
    def create(
        self, name: str, role: Literal["admin", "client", "viewer", "worker"], *, tenant: str | None = None,
        expires_in_seconds: int | None = None,
    ) -> Operation[NewKey]:  # fmt: skip
        """Create an API key. Its secret is returned only here. Not retried automatically."""
        body = {"name": name, "role": role, "tenant": tenant, "expires_in_seconds": expires_in_seconds}
        return send(self, NewKey, json_request("POST", path("admin", "keys"), body, idempotent=False))

    @iterate
    def list(self) -> IterableOperation[Key]:
        """Iterate over API keys, oldest first."""
        return paginate(self, Key, "keys", path("admin", "keys"), {})

    @call
    def revoke(self, key_id: str) -> Operation[Key]:
        """Revoke an API key. Requests with it fail from now on."""
        return send(self, Key, json_request("DELETE", path("admin", "keys", key_id), idempotent=True))
