"""`client.workflows`: read and update workflow definitions."""

from typing import Any

from callsheet.api.workflows import Workflow
from callsheet.client.method_binding import call, iterate
from callsheet.client.operation_effects import IterableOperation, Operation
from callsheet.client.requests_and_pages import get_request, json_request, paginate, path, send
from callsheet.client.resource import D, Resource


class Workflows(Resource[D]):
    """Read and update workflow definitions."""

    @call
    def get(self, name: str) -> Operation[Workflow]:
        """Return a workflow with its definition."""
        return send(self, Workflow, get_request(path("workflows", name)))

    @iterate
    def list(self) -> IterableOperation[Workflow]:
        """Iterate over workflows, by name."""
        return paginate(self, Workflow, "workflows", path("workflows"), {})

    @call
    def put(self, name: str, definition: dict[str, Any]) -> Operation[Workflow]:
        """Create or replace a workflow. An equal definition changes nothing."""
        request = json_request("PUT", path("workflows", name), {"definition": definition}, idempotent=True)
        return send(self, Workflow, request)
