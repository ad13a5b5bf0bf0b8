"""`client.events`: the event stream of a tenant."""

from collections.abc import Iterable
from typing import Any

from callsheet.api.events import Event
from callsheet.client.event_stream import TenantPosition, follow_events
from callsheet.client.method_binding import iterate
from callsheet.client.operation_effects import IterableOperation
from callsheet.client.requests_and_pages import get_request, path, send
from callsheet.client.resource import D, Resource


class Events(Resource[D]):
    """Stream the events of a tenant."""

    @iterate
    def stream(
        self, *, cursor: str | None = None, types: Iterable[str] = (), job_id: str | None = None
    ) -> IterableOperation[Event]:
        """Stream the tenant's events, without end. `cursor` is an event's `cursor`, or `now` to skip past events.

        Types are full names or prefixes: `["job.", "task.progressed"]`. The stream reconnects by itself.
        """
        if cursor == "now":
            # Resolve `now` to a cursor first: a stream that breaks before its first event resumes there.
            cursor = (yield from send(self, dict[str, Any], get_request(path("events"), cursor=cursor, limit=1)))[
                "next"
            ]
        request = get_request(path("events"), type=",".join(types), job=job_id)
        yield from follow_events(self, request, TenantPosition(cursor or ""))
