"""Streams of a job's or a tenant's events, which resume without gaps or duplicates.

A stream reads past events from the database, then takes the batches that all streams of the job or tenant share. A
stream that falls behind those reads the database again.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from callsheet.core.model import rows
from callsheet.core.policy.visibility import Viewer
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.queries.context import QueryContext
from callsheet.queries.events.global_order import Position, store_errors_as_unavailable
from callsheet.queries.events.pages_and_cursors import read_tenant_page
from callsheet.queries.events.shared_batches import EventBatch, Place

PAGE_EVENTS = 256
FetchPage = Callable[[Place], Awaitable[list[PositionedEvent]]]
"""Reads the next `PAGE_EVENTS` events after a place from the database."""


class Page(Protocol):
    """Events from the database."""

    @property
    def batches(self) -> Sequence[EventBatch]: ...

    @property
    def more(self) -> bool:
        """The database may have more events that are not in the shared batches."""


class Subscription(Protocol):
    """Events as they are committed, from the moment of subscribing on."""

    @property
    def ended(self) -> bool:
        """The server is shutting down."""

    @property
    def behind(self) -> bool:
        """The database has events that are not in the shared batches."""

    async def wait(self, seconds: float) -> bool:
        """Wait for events or the end; return False on timeout."""

    async def turn(self) -> None:
        """Wait until this stream may send a batch."""

    def take(self) -> Sequence[EventBatch]:
        """Return the shared batches since the last call."""

    async def read_page(self, after: Place, fetch: FetchPage) -> Page:
        """Read the database after a place, and continue with the shared batches that follow."""


class EventSlice(NamedTuple):
    """A batch without its first events."""

    batch: EventBatch
    skip: int


async def follow_job(
    context: QueryContext, job: rows.Job, after: int, subscription: Subscription, *, follow: bool
) -> AsyncIterator[EventSlice | None]:
    """Yield a job's events in the order of their numbers: the past, then new ones. None means nothing new.

    A gap is filled from the database. The stream ends with the job, unless `follow` is set: the job may be retried.
    """

    async def fetch(after: Place) -> list[PositionedEvent]:
        with store_errors_as_unavailable():
            found = await context.reads.lookup("events_of", subject=job.id, after=after, count=PAGE_EVENTS)
        return [PositionedEvent((row[1], row[0], rows.Event(*row[2:]))) for row in found]

    behind, ended, deleted = True, job.finished_at is not None, False
    while not subscription.ended:
        batches, behind = await _next_batches(subscription, after, fetch, behind=behind)
        for batch in batches:
            facts = batch.job_facts
            skip = batch.count_until(after) if facts.in_sequence else 0
            if skip == len(batch.events):
                continue
            if not facts.in_sequence or batch.places[skip] != after + 1:
                behind = True
                break
            await subscription.turn()
            after = batch.last
            ended = ended if facts.ended is None else facts.ended
            deleted = deleted or facts.deleted
            yield EventSlice(batch, skip)
        if behind:
            continue
        if deleted or (ended and not follow):
            return
        # An open transaction elsewhere may delay the order of all events, but not a job's own numbers.
        behind = not await subscription.wait(context.settings.heartbeat_seconds)
        yield None


async def follow_tenant(
    context: QueryContext, viewer: Viewer, after: Position, subscription: Subscription
) -> AsyncIterator[EventSlice | None]:
    """Yield a tenant's events in the order of commits: the past page by page, then new ones. None means nothing new."""

    async def fetch(after: Place) -> list[PositionedEvent]:
        return await read_tenant_page(context, viewer.tenant, after, PAGE_EVENTS)

    behind = True
    while not subscription.ended:
        batches, behind = await _next_batches(subscription, after, fetch, behind=behind)
        for batch in batches:
            if batch.last <= after:
                continue
            await subscription.turn()
            skip, after = batch.count_until(after), batch.last
            yield EventSlice(batch, skip)
        if not behind:
            await subscription.wait(context.settings.heartbeat_seconds)
            yield None


async def _next_batches(
    subscription: Subscription, after: Place, fetch: FetchPage, *, behind: bool
) -> tuple[Sequence[EventBatch], bool]:
    """Return the next batches, and whether the database may have more."""
    if not behind and not subscription.behind:
        return subscription.take(), False
    page = await subscription.read_page(after, fetch)
    return page.batches, page.more
