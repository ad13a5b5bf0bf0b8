"""Events: as JSON pages, and as server-sent events that resume without gap or duplicate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from msgspec import Struct

from callsheet.core import rows
from callsheet.core.machine import JOB as JOB_MACHINE
from callsheet.engine.reading import Placed
from callsheet.http import views
from callsheet.http.auth import Who
from callsheet.http.house import House
from callsheet.http.hub import JOB, TENANT, Key, Watch
from callsheet.http.jobs import job_row
from callsheet.http.paging import limited
from callsheet.http.problem import Problem
from callsheet.http.request import Request, Send
from callsheet.http.route import READERS, WATCHERS, Answer, Route, Streaming

_encode = msgspec.json.Encoder().encode
_PAGE = 500
_STREAM = "text/event-stream"
_ENDS = frozenset({f"job.{status}" for status in JOB_MACHINE.terminal})
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"), (b"x-content-type-options", b"nosniff"),
]  # fmt: skip
Wanted = Callable[[rows.Event], bool]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin, in a job's own numbers."""

    after: int = 0
    limit: int = 200
    follow: bool = False
    """Keep the stream open when the job has ended: it may be tried again."""


class FeedQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin, and which events."""

    after: str = ""
    """A cursor; `now` begins with what comes next."""
    type: str = ""
    """Types, or how they begin, with commas between: `job.,task.progressed`."""
    job: str = ""
    limit: int = 200


class Events(Struct, frozen=True):
    """Events of a job, oldest first."""

    events: list[views.Event]


class Feed(Struct, frozen=True):
    """Events of a tenant, oldest first, and where to go on."""

    events: list[views.Event]
    next: str


# -- one job


async def job_events(house: House, request: Request) -> Answer | Streaming:
    query = request.query(EventsQuery)
    job = await job_row(house, request)
    after = _last_id(request, query.after)
    if _STREAM not in (request.header(b"accept") or ""):
        found = await house.reads.fetch("events_of", subject=job.id, after=after, count=limited(house, query.limit) - 1)
        return Answer(Events([views.event_view(rows.Event(*row[2:])) for row in found]))
    if job.finished_at is not None and after >= job.seq and not query.follow:
        return Answer(None, 204)  # tells a browser's EventSource not to come back
    key, who = (JOB, job.id), request.who.id
    watch = await house.hub.join(key, who)
    return _stream(house, request, key, watch, _of_job(house, job.id, after, watch, follow=query.follow))


async def _of_job(house: House, job_id: str, after: int, watch: Watch, *, follow: bool) -> AsyncIterator[bytes]:
    """Yield a job's events by their dense numbers: the past, then what comes; a hole is read from the database."""
    behind = True
    while True:
        if behind:
            watch.events.clear()
            watch.caught_up()
            found = await house.reads.fetch("events_of", subject=job_id, after=after, count=_PAGE)
            behind = len(found) == _PAGE
            batch = [rows.Event(*row[2:]) for row in found]
        else:
            batch = [placed.event for placed in watch.events]
            watch.events.clear()
        for event in batch:
            if event.seq <= after:
                continue
            if event.seq != after + 1:
                behind = True
                break
            after = event.seq
            yield _frame(str(event.seq), event, None)
            if event.type in _ENDS and not follow:
                return
        if not behind:
            if not await watch.wait(house.settings.beat_seconds):
                yield b": alive\n\n"
            behind = watch.behind


# -- a whole tenant


async def tenant_events(house: House, request: Request) -> Answer | Streaming:
    query = request.query(FeedQuery)
    who: Who = request.who
    wanted = _wanted(query)
    text = request.header(b"last-event-id") or query.after
    if _STREAM in (request.header(b"accept") or ""):
        key = (TENANT, who.tenant)
        watch = await house.hub.join(key, who.id)
        place = await _place(house, who, text)
        return _stream(house, request, key, watch, _of_tenant(house, who, place, watch, wanted))
    place = await _place(house, who, text)
    most = limited(house, query.limit) - 1
    events: list[views.Event] = []
    for placed in await _page(house, place, _PAGE):
        if len(events) == most:
            break
        place = placed.place
        if placed.event.tenant == who.tenant and wanted(placed.event):
            events.append(views.event_view(placed.event, _cursor(house, who, place)))
    return Answer(Feed(events, _cursor(house, who, place)))


async def _of_tenant(
    house: House, who: Who, place: tuple[int, int], watch: Watch, wanted: Wanted
) -> AsyncIterator[bytes]:
    """Yield a tenant's events in the global order: the past page by page, then what comes."""
    behind = True
    while True:
        if behind:
            watch.events.clear()
            watch.caught_up()
            batch = await _page(house, place, _PAGE)
            behind = len(batch) == _PAGE
        else:
            batch = list(watch.events)
            watch.events.clear()
        for placed in batch:
            if placed.place <= place:
                continue
            place = placed.place
            if placed.event.tenant == who.tenant and wanted(placed.event):
                cursor = _cursor(house, who, place)
                yield _frame(cursor, placed.event, cursor)
        if not behind:
            if not await watch.wait(house.settings.beat_seconds):
                yield b": alive\n\n"
            behind = watch.behind


async def _page(house: House, place: tuple[int, int], count: int) -> list[Placed]:
    found = await house.reads.fetch("events_after", tx=place[0], position=place[1], count=count)
    return [Placed((row[1], row[0], rows.Event(*row[2:]))) for row in found]


async def _place(house: House, who: Who, text: str) -> tuple[int, int]:
    if not text:
        return (0, 0)
    if text == "now":
        found = await house.reads.fetch("feed_end", tx=0, position=0)
        return (found[0][0], found[0][1]) if found else (0, 0)
    place = house.signed.read("feed", text, tuple[str, int, int])
    if place is None or place[0] != who.tenant:
        raise Problem(422, "invalid_cursor", "This cursor is not one of ours: begin without one, or with `now`.")
    return place[1], place[2]


def _cursor(house: House, who: Who, place: tuple[int, int]) -> str:
    return house.signed.sign("feed", (who.tenant, *place))


def _wanted(query: FeedQuery) -> Wanted:
    kinds = tuple(query.type.split(","))
    return lambda event: event.type.startswith(kinds) and query.job in {"", event.subject}


# -- sending


def _stream(house: House, request: Request, key: Key, watch: Watch, frames: AsyncIterator[bytes]) -> Streaming:
    async def send_all(send: Send) -> None:
        headers = [*_HEADERS, (b"x-request-id", request.id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
        async for frame in frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def serve(send: Send) -> None:
        """Send until the end, or until the client is gone: whichever is first."""
        sending = asyncio.ensure_future(send_all(send))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
        finally:
            for task in (sending, leaving):
                task.cancel()
            house.hub.leave(key, request.who.id, watch)

    return Streaming(serve)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _frame(name: str, event: rows.Event, cursor: str | None) -> bytes:
    body: Any = _encode(views.event_view(event, cursor))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (name.encode(), event.type.encode(), body)


def _last_id(request: Request, after: int) -> int:
    given = request.header(b"last-event-id")
    if given is None:
        return max(after, 0)
    if not given.isdecimal() or len(given) > 18:  # noqa: PLR2004 - what a 64-bit number may have
        raise Problem(422, "invalid_cursor", "Last-Event-ID of a job's stream is a number.")
    return int(given)


_STREAMED = ("422 invalid_cursor", "429 too_many_streams")
ROUTES = (
    Route(
        "GET", "/v1/jobs/{job_id}/events", job_events, WATCHERS, "A job's events", Events, query=EventsQuery,
        also=(204,), problems=("404 job_not_found", *_STREAMED),
        details="With `Accept: text/event-stream` a stream that resumes at Last-Event-ID, without gap or duplicate, "
        "and ends with the job. 204 says that the job has ended and everything was seen.",
    ),
    Route(
        "GET", "/v1/events", tenant_events, READERS, "All events of the tenant", Feed, query=FeedQuery,
        problems=_STREAMED, details="With `Accept: text/event-stream` a stream that resumes at Last-Event-ID.",
    ),
)  # fmt: skip
