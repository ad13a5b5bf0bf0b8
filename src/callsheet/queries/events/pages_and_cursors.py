"""Pages of events of a job and of a tenant, and the cursors that continue them."""

import msgspec

from callsheet.api.events import Event, Events, EventsQuery, Feed, FeedQuery, SinkEvent
from callsheet.core.model import rows
from callsheet.core.policy.visibility import Viewer
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.events.global_order import Position, store_errors_as_unavailable
from callsheet.queries.events.shared_batches import EventFilter
from callsheet.queries.pages import decode_cursor, encode_cursor, row_count, split_page

_PAGE = 500


async def list_job_events(context: QueryContext, job: rows.Job, after: int, query: EventsQuery) -> Events:
    """Return a page of the events of a job, oldest first."""
    count = row_count(context, query.limit)
    found = await context.reads.lookup("events_of", subject=job.id, after=after, count=count)
    page, more = split_page(found, query.limit)
    events = [render.event_view(rows.Event(*row[2:])) for row in page]
    return Events(events, str(events[-1].seq if events else after), more)


async def list_tenant_events(context: QueryContext, viewer: Viewer, position: Position, query: FeedQuery) -> Feed:
    """Return a page of the events of a tenant, oldest first."""
    selected = event_filter(query)
    row_count(context, query.limit)
    events: list[Event] = []
    page, more = split_page(await read_tenant_page(context, viewer.tenant, position, _PAGE + 1), _PAGE)
    for positioned in page:
        if selected.matches(positioned.event):
            if len(events) == query.limit:
                more = True
                break
            events.append(tenant_event_view(context, viewer.tenant, positioned))
        position = positioned.position
    return Feed(events, _cursor(context, viewer.tenant, position), more)


async def read_tenant_page(context: QueryContext, tenant: str, position: Position, count: int) -> list[PositionedEvent]:
    """Read the next events of a tenant after a position, in the order of commits."""
    with store_errors_as_unavailable():
        found = await context.reads.scan(
            "events_of_tenant", tenant=tenant, tx=position[0], position=position[1], count=count
        )
    return [PositionedEvent((row[1], row[0], rows.Event(*row[2:]))) for row in found]


async def start_position(context: QueryContext, viewer: Viewer, text: str) -> Position:
    """Return the position that a cursor names; `now` is the end, and no cursor the beginning."""
    if not text:
        return (0, 0)
    if text == "now":
        found = await context.reads.lookup("feed_end", tx=0, position=0)
        return (found[0][0], found[0][1]) if found else (0, 0)
    return decode_cursor(context, "feed", viewer.tenant, text, tuple[int, int])


def tenant_event_view(context: QueryContext, tenant: str, positioned: PositionedEvent) -> Event:
    """Convert an event of a tenant, with its cursor."""
    return render.event_view(positioned.event, _cursor(context, tenant, positioned.position))


def sink_event_view(context: QueryContext, positioned: PositionedEvent) -> SinkEvent:
    """Convert an event for a sink."""
    tenant = positioned.event.tenant
    event = tenant_event_view(context, tenant, positioned)
    data = None if event.data is None else msgspec.json.decode(event.data)
    return SinkEvent(**{**msgspec.structs.asdict(event), "data": data}, tenant=tenant)


def event_filter(query: FeedQuery) -> EventFilter:
    """Return the filter of a query."""
    return EventFilter(tuple(filter(None, query.type.split(","))) or ("",), query.job)


def _cursor(context: QueryContext, tenant: str, position: Position) -> str:
    return encode_cursor(context, "feed", tenant, position)
