"""Events: as JSON pages, and as server-sent events that resume without gap or duplicate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from callsheet.core import rows
from callsheet.core.machine import JOB as JOB_MACHINE
from callsheet.core.moves import status_told
from callsheet.engine.reading import Placed
from callsheet.http import views
from callsheet.http.auth import Who
from callsheet.http.house import House
from callsheet.http.hub import JOB, TENANT, Key, Watch
from callsheet.http.jobs import job_row
from callsheet.http.paging import NUMBER_MAX, cursor_of, limited, listed, paged, place_of
from callsheet.http.problem import Problem
from callsheet.http.request import SAFE, Request, Send
from callsheet.http.route import READERS, WATCHERS, Answer, Route, Streaming
from callsheet.store.connection import StoreError

_encode = msgspec.json.Encoder().encode
_PAGE = 500
_STREAM = "text/event-stream"
_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no"))
_HEAD = Answer(b"", media_type="text/event-stream; charset=utf-8")
"""What a stream would begin with."""
_NOTHING = b""
"""A frame that is not sent: a moment to look whether a sign of life is due."""
Wanted = Callable[[rows.Event], bool]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin, in a job's own numbers."""

    after: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 0
    """The number of the last event seen; 0 begins with the first."""
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
    """Events of a job, oldest first; there may be more behind them."""

    events: list[views.Event]
    more: bool


class Feed(Struct, frozen=True):
    """Events of a tenant, oldest first, and where to go on: at once if there is more, else when something happened."""

    events: list[views.Event]
    next: str
    more: bool


# -- one job


async def job_events(house: House, request: Request) -> Answer | Streaming:
    query = listed(house, request, EventsQuery)
    job = await job_row(house, request)
    after = _last_id(request, query.after)
    if not _streams(request):
        count = limited(house, query.limit)
        page, more = paged(await house.reads.fetch("events_of", subject=job.id, after=after, count=count), query.limit)
        return Answer(Events([views.event_view(rows.Event(*row[2:])) for row in page], more))
    if job.finished_at is not None and after >= job.seq and not query.follow:
        return Answer(None, 204)  # tells a browser's EventSource not to come back
    if request.method == "HEAD":
        return _HEAD
    key = (JOB, job.id)
    watch = await house.hub.join(key, request.who.caller, browser=request.who.user is not None)
    return _stream(house, request, key, watch, _of_job(house, job, after, watch, follow=query.follow))


async def _of_job(house: House, job: rows.Job, after: int, watch: Watch, *, follow: bool) -> AsyncIterator[bytes]:
    """Yield a job's events by their dense numbers: the past, then what comes; a hole is read from the database.

    An end closes the stream, with what was remarked behind it, unless more is known to follow: it was tried again.
    """
    behind, over, gone = True, job.finished_at is not None, False
    while not watch.ended:
        reading = behind
        if reading:
            watch.events.clear()
            watch.caught_up()
            found = await house.reads.fetch("events_of", subject=job.id, after=after, count=_PAGE)
            behind = len(found) == _PAGE
            batch = [rows.Event(*row[2:]) for row in found]
        else:
            batch = [placed.event for placed in watch.events]
            watch.events.clear()
        for event in batch:
            if event.seq <= after:
                continue
            if event.seq != after + 1 and not reading:
                behind = True
                break
            after = event.seq
            if (told := status_told(event)) is not None:
                over = told in JOB_MACHINE.terminal
            gone = gone or event.type == "job.deleted"
            yield _frame(str(event.seq), event, None)
        if behind:
            continue
        if gone or (over and not follow):
            return
        # A writer elsewhere may hold the global order back; a job's own numbers are read past it, if only at each beat.
        behind = not await watch.wait(house.settings.beat_seconds) or watch.behind
        yield _NOTHING


# -- a whole tenant


async def tenant_events(house: House, request: Request) -> Answer | Streaming:
    query = listed(house, request, FeedQuery)
    who: Who = request.who
    wanted = _wanted(query)
    place = await _place(house, who, request.header(b"last-event-id") or query.after)
    if _streams(request):
        if request.method == "HEAD":
            return _HEAD
        key = (TENANT, who.tenant)
        watch = await house.hub.join(key, who.caller)
        return _stream(house, request, key, watch, _of_tenant(house, who, place, watch, wanted))
    limited(house, query.limit)
    events: list[views.Event] = []
    page, more = paged(await _page(house, who, place, _PAGE + 1), _PAGE)
    for placed in page:
        if wanted(placed.event):
            if len(events) == query.limit:
                more = True
                break
            events.append(views.event_view(placed.event, _cursor(house, who, placed.place)))
        place = placed.place
    return Answer(Feed(events, _cursor(house, who, place), more))


async def _of_tenant(
    house: House, who: Who, place: tuple[int, int], watch: Watch, wanted: Wanted
) -> AsyncIterator[bytes]:
    """Yield a tenant's events in the global order: the past page by page, then what comes."""
    behind = True
    while not watch.ended:
        if behind or watch.behind:  # the buffer may also have run over while the last frame was being sent
            watch.events.clear()
            watch.caught_up()
            batch = await _page(house, who, place, _PAGE)
            behind = len(batch) == _PAGE
        else:
            batch = list(watch.events)
            watch.events.clear()
        for placed in batch:
            if placed.place <= place:
                continue
            place = placed.place
            if wanted(placed.event):
                cursor = _cursor(house, who, place)
                yield _frame(cursor, placed.event, cursor)
        if not behind:
            await watch.wait(house.settings.beat_seconds)
            behind = watch.behind
            yield _NOTHING


async def _page(house: House, who: Who, place: tuple[int, int], count: int) -> list[Placed]:
    found = await house.scans.fetch("events_of_tenant", tenant=who.tenant, tx=place[0], position=place[1], count=count)
    return [Placed((row[1], row[0], rows.Event(*row[2:]))) for row in found]


async def _place(house: House, who: Who, text: str) -> tuple[int, int]:
    if not text:
        return (0, 0)
    if text == "now":
        found = await house.reads.fetch("feed_end", tx=0, position=0)
        return (found[0][0], found[0][1]) if found else (0, 0)
    return place_of(house, "feed", who.tenant, text, tuple[int, int])


def _cursor(house: House, who: Who, place: tuple[int, int]) -> str:
    return cursor_of(house, "feed", who.tenant, place)


def _wanted(query: FeedQuery) -> Wanted:
    kinds = tuple(filter(None, query.type.split(","))) or ("",)
    return lambda event: event.type.startswith(kinds) and query.job in {"", event.subject}


# -- sending


def _stream(house: House, request: Request, key: Key, watch: Watch, frames: AsyncIterator[bytes]) -> Streaming:
    async def send_all(send: Send) -> None:
        headers = [*SAFE, *_HEADERS, *request.extra, (b"x-request-id", request.id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
        try:
            async for frame in _alive(house, request, frames):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        except (Problem, StoreError) as error:  # too late for a status: the client comes back and is told
            await send({"type": "http.response.body", "body": _farewell(error), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def serve(send: Send) -> None:
        """Send until the end, or until the client is gone: whichever is first."""
        try:
            await request.unless_gone(send_all(send))
        finally:
            house.hub.leave(key, request.who.caller, watch)

    return Streaming(serve)


async def _alive(house: House, request: Request, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Add a sign of life where there is nothing to say, and end when the key or token no longer lets in."""
    clock = asyncio.get_running_loop().time
    beat = house.settings.beat_seconds
    said_at = asked_at = clock()
    async for frame in frames:
        now = clock()
        if now - asked_at >= beat:
            await house.keys.who(request)
            asked_at = now
        if frame or now - said_at >= beat:
            yield frame or b": alive\n\n"
            said_at = now


def _farewell(error: Exception) -> bytes:
    why = error.code if isinstance(error, Problem) else "unavailable"
    return f": {why}\n\n".encode()


def _streams(request: Request) -> bool:
    return _STREAM in (request.header(b"accept") or "")


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


_STREAMED = ("422 invalid_cursor", "429 too_many_streams", "503 stopping")
ROUTES = (
    Route(
        "GET", "/v1/jobs/{job_id}/events", job_events, WATCHERS, "Watch a job's events", Events, query=EventsQuery,
        also=(204,), problems=("404 job_not_found", *_STREAMED), reads=("Last-Event-ID",), streams=True,
        token_in_query=True,
        details="With `Accept: text/event-stream` a stream that resumes at Last-Event-ID, without gap or duplicate, "
        "and ends with the job. 204 says that the job has ended and everything was seen.",
    ),
    Route(
        "GET", "/v1/events", tenant_events, READERS, "Watch all events of the tenant", Feed, query=FeedQuery,
        problems=_STREAMED, reads=("Last-Event-ID",), streams=True,
        details="With `Accept: text/event-stream` a stream that resumes at Last-Event-ID. As JSON, `next` is where to "
        "go on; `more` says that there is more already, which a page may do that has no event of the `type` or `job`.",
    ),
)  # fmt: skip
