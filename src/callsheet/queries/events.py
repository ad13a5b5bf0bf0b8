"""Events of a job and of a tenant: pages, and streams that resume without gap or duplicate."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from callsheet.api.events import Event, Events, EventsQuery, Feed, FeedQuery
from callsheet.core.decisions.transitions import job_status_after
from callsheet.core.model import rows
from callsheet.core.model.errors import TemporarilyUnavailable
from callsheet.core.model.state_machines import JOB as JOB_MACHINE
from callsheet.core.policy.visibility import Viewer
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.pages import decode_cursor, encode_cursor, row_count, split_page
from callsheet.store.connection import Rows, StoreError

_PAGE = 500
EventFilter = Callable[[rows.Event], bool]
Position = tuple[int, int]
"""A position in the order of all events: transaction and id."""


class Subscription(Protocol):
    """Events as they are committed, from the moment of subscribing on."""

    @property
    def ended(self) -> bool: ...

    @property
    def behind(self) -> bool: ...

    @property
    def events(self) -> deque[PositionedEvent]: ...

    async def wait(self, seconds: float) -> bool: ...

    def discard_events(self) -> None: ...


# -- one job


async def list_job_events(context: QueryContext, job: rows.Job, after: int, query: EventsQuery) -> Events:
    """Return a page of the events of a job, oldest first."""
    count = row_count(context, query.limit)
    found = await context.reads.lookup("events_of", subject=job.id, after=after, count=count)
    page, more = split_page(found, query.limit)
    return Events([render.event_view(rows.Event(*row[2:])) for row in page], more)


async def follow_job(
    context: QueryContext, job: rows.Job, after: int, subscription: Subscription, *, follow: bool
) -> AsyncIterator[Event | None]:
    """Yield a job's events in the order of their numbers: the past, then new ones. None means nothing new.

    A gap is filled from the database. The stream ends with the job, unless `follow` is set: the job may be retried.
    """
    behind, ended, deleted = True, job.finished_at is not None, False
    while not subscription.ended:
        from_database = behind
        if from_database:
            subscription.discard_events()
            found = await _job_rows(context, job.id, after)
            behind = len(found) == _PAGE
            batch = [rows.Event(*row[2:]) for row in found]
        else:
            batch = [placed.event for placed in subscription.events]
            subscription.events.clear()
        for event in batch:
            if event.seq <= after:
                continue
            if event.seq != after + 1 and not from_database:
                behind = True
                break
            after = event.seq
            if (status := job_status_after(event)) is not None:
                ended = status in JOB_MACHINE.terminal
            deleted = deleted or event.type == "job.deleted"
            yield render.event_view(event)
        if behind:
            continue
        if deleted or (ended and not follow):
            return
        # An open transaction elsewhere may delay the order of all events, but not a job's own numbers.
        behind = not await subscription.wait(context.settings.heartbeat_seconds) or subscription.behind
        yield None


async def _job_rows(context: QueryContext, job_id: str, after: int) -> Rows:
    try:
        return await context.reads.lookup("events_of", subject=job_id, after=after, count=_PAGE)
    except StoreError as error:
        raise _unavailable() from error


def _unavailable() -> TemporarilyUnavailable:
    return TemporarilyUnavailable(
        "unavailable", "The database does not answer. Retry after a second.", retry_after_seconds=1
    )


# -- a whole tenant


async def list_tenant_events(context: QueryContext, viewer: Viewer, position: Position, query: FeedQuery) -> Feed:
    """Return a page of the events of a tenant, oldest first."""
    wanted = event_filter(query)
    row_count(context, query.limit)
    events: list[Event] = []
    page, more = split_page(await _page(context, viewer, position, _PAGE + 1), _PAGE)
    for placed in page:
        if wanted(placed.event):
            if len(events) == query.limit:
                more = True
                break
            events.append(render.event_view(placed.event, _cursor(context, viewer, placed.place)))
        position = placed.place
    return Feed(events, _cursor(context, viewer, position), more)


async def follow_tenant(
    context: QueryContext, viewer: Viewer, position: Position, subscription: Subscription, wanted: EventFilter
) -> AsyncIterator[Event | None]:
    """Yield a tenant's events in the order of commits: the past page by page, then new ones. None means nothing new."""
    behind = True
    while not subscription.ended:
        if behind or subscription.behind:  # the buffer may also have overflowed while the last event was sent
            subscription.discard_events()
            batch = await _page(context, viewer, position, _PAGE)
            behind = len(batch) == _PAGE
        else:
            batch = list(subscription.events)
            subscription.events.clear()
        for placed in batch:
            if placed.place <= position:
                continue
            position = placed.place
            if wanted(placed.event):
                cursor = _cursor(context, viewer, position)
                yield render.event_view(placed.event, cursor)
        if not behind:
            await subscription.wait(context.settings.heartbeat_seconds)
            behind = subscription.behind
            yield None


async def _page(context: QueryContext, viewer: Viewer, position: Position, count: int) -> list[PositionedEvent]:
    try:
        found = await context.reads.scan(
            "events_of_tenant", tenant=viewer.tenant, tx=position[0], position=position[1], count=count
        )
    except StoreError as error:
        raise _unavailable() from error
    return [PositionedEvent((row[1], row[0], rows.Event(*row[2:]))) for row in found]


async def start_position(context: QueryContext, viewer: Viewer, text: str) -> Position:
    """Return the position that a cursor names; `now` is the end, and no cursor the beginning."""
    if not text:
        return (0, 0)
    if text == "now":
        found = await context.reads.lookup("feed_end", tx=0, position=0)
        return (found[0][0], found[0][1]) if found else (0, 0)
    return decode_cursor(context, "feed", viewer.tenant, text, tuple[int, int])


def _cursor(context: QueryContext, viewer: Viewer, position: Position) -> str:
    return encode_cursor(context, "feed", viewer.tenant, position)


def event_filter(query: FeedQuery) -> EventFilter:
    """Return whether an event matches the filters of a query."""
    kinds = tuple(filter(None, query.type.split(","))) or ("",)
    return lambda event: event.type.startswith(kinds) and query.job in {"", event.subject}
