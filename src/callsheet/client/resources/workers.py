"""`client.workers`: list, approve, drain and revoke workers."""

import builtins

from callsheet.api.workers import Worker, WorkerToken
from callsheet.client.method_binding import call, iterate
from callsheet.client.operation_effects import IterableOperation, Operation
from callsheet.client.requests_and_pages import get_request, json_request, paginate, path, send, without_none
from callsheet.client.resource import D, Resource


class Workers(Resource[D]):
    """List, approve, drain and revoke workers."""

    @call
    def get(self, worker: str) -> Operation[Worker]:
        """Return a worker, with the tasks it is running."""
        return send(self, Worker, get_request(path("admin", "workers", worker)))

    @iterate
    def list(self, *, include_deregistered: bool = False) -> IterableOperation[Worker]:
        """Iterate over workers, by name."""
        query = {"include_deregistered": include_deregistered or None}
        return paginate(self, Worker, "workers", path("admin", "workers"), query)

    @call
    def update(
        self, worker: str, *, approved: bool | None = None, draining: bool | None = None,
        kinds: builtins.list[str] | None = None,
    ) -> Operation[Worker]:  # fmt: skip
        """Approve or drain a worker, or set its kinds. Arguments that are None stay unchanged."""
        body = without_none({"approved": approved, "draining": draining, "kinds": kinds})
        return send(self, Worker, json_request("PATCH", path("admin", "workers", worker), body, idempotent=True))

    @call
    def revoke(self, worker: str) -> Operation[Worker]:
        """Revoke a worker's access. Its running tasks are requeued."""
        return send(self, Worker, json_request("POST", path("admin", "workers", worker, "revoke"), {}, idempotent=True))

    @call
    def rotate_token(self, worker: str) -> Operation[WorkerToken]:
        """Replace a worker's token. The old one fails at once. Not retried automatically."""
        request = json_request("POST", path("admin", "workers", worker, "rotate"), {}, idempotent=False)
        return send(self, WorkerToken, request)
