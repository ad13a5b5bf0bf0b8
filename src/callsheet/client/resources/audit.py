"""`client.audit`: the log of administrative changes."""

from callsheet.api.admin import AuditEntry
from callsheet.client.method_binding import iterate
from callsheet.client.operation_effects import IterableOperation
from callsheet.client.requests_and_pages import paginate, path
from callsheet.client.resource import D, Resource


class Audit(Resource[D]):
    """Read the log of administrative changes."""

    @iterate
    def list(self, *, subject: str | None = None, limit: int | None = None) -> IterableOperation[AuditEntry]:
        """Iterate over audit entries, newest first. `subject` filters by an id or name."""
        query = {"subject": subject}
        return paginate(self, AuditEntry, "entries", path("admin", "audit"), query, limit=limit)
