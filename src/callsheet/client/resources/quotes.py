"""`client.quotes`: price a job before submitting it."""

from typing import Any

from callsheet.api.quotes import Quote
from callsheet.client.method_binding import call
from callsheet.client.operation_effects import Operation
from callsheet.client.requests_and_pages import json_request, path, send
from callsheet.client.resource import D, Resource


class Quotes(Resource[D]):
    """Price a job before submitting it."""

    @call
    def create(self, workflow: str, *, user: str, input: Any = None) -> Operation[Quote]:
        """Create a quote. Pass its `quote` when you submit the same job, to pay this price until the quote expires."""
        body = {"workflow": workflow, "user": user, "input": input}
        return send(self, Quote, json_request("POST", path("quotes"), body, idempotent=True))
