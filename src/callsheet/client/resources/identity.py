"""`client.identity`: who the API key belongs to."""

from callsheet.api.admin import Identity
from callsheet.client.method_binding import call
from callsheet.client.operation_effects import Operation
from callsheet.client.requests_and_pages import get_request, path, send
from callsheet.client.resource import D, Resource


class IdentityResource(Resource[D]):
    """Read who the API key belongs to."""

    @call
    def get(self) -> Operation[Identity]:
        """Return the role, tenant and user of your API key or token."""
        return send(self, Identity, get_request(path("me")))
