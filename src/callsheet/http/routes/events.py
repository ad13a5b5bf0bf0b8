"""Events: as JSON pages, and as server-sent events that resume without gap or duplicate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from callsheet.api.events import Event, Events, EventsQuery, Feed, FeedQuery
from callsheet.core.decisions.transitions import job_status_after
from callsheet.core.model import rows
from callsheet.core.model.state_machines import JOB as JOB_MACHINE
from callsheet.engine.reads.blocking import PositionedEvent
from callsheet.http.auth.authenticator import Caller
from callsheet.http.broadcaster import JOB, TENANT, Key, Subscription
from callsheet.http.routes.jobs import job_row
from callsheet.http.server.pagination import (
    decode_cursor,
    encode_cursor,
    parse_list_query,
    row_count,
    split_page,
)
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request, Send
from callsheet.http.server.router import READERS, READERS_AND_USERS, Response, Route, StreamingResponse
from callsheet.http.state import AppState
from callsheet.queries import render
from callsheet.store.connection import StoreError

_encode = msgspec.json.Encoder().encode
_PAGE = 500
_STREAM = "text/event-stream"
_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no"))
_STREAM_HEAD = Response(b"", media_type="text/event-stream; charset=utf-8")
"""What a stream would begin with."""
_NO_FRAME = b""
"""A frame that is not sent: a moment to look whether a sign of life is due."""
EventFilter = Callable[[rows.Event], bool]


# -- one job


async def job_events(state: AppState, request: Request) -> Response | StreamingResponse:
    query = parse_list_query(state, request, EventsQuery)
    job = await job_row(state, request)
    after = _last_event_id(request, query.after)
    if not _accepts_stream(request):
        count = row_count(state, query.limit)
        page, more = split_page(
            await state.reads.lookup("events_of", subject=job.id, after=after, count=count), query.limit
        )
        return Response(Events([render.event_view(rows.Event(*row[2:])) for row in page], more))
    if job.finished_at is not None and after >= job.seq and not query.follow:
        return Response(None, 204)  # tells a browser's EventSource not to come back
    if request.method == "HEAD":
        return _STREAM_HEAD
    key = (JOB, job.id)
    subscription = await state.broadcaster.subscribe(
        key, request.caller.stream_owner, browser=request.caller.user is not None
    )
    return _stream(state, request, key, subscription, _job_frames(state, job, after, subscription, follow=query.follow))


async def _job_frames(
    state: AppState, job: rows.Job, after: int, subscription: Subscription, *, follow: bool
) -> AsyncIterator[bytes]:
    """Yield a job's events by their dense numbers: the past, then what comes; a hole is read from the database.

    An end closes the stream, with what was remarked behind it, unless more is known to follow: it was tried again.
    """
    behind, ended, deleted = True, job.finished_at is not None, False
    while not subscription.ended:
        from_database = behind
        if from_database:
            subscription.events.clear()
            subscription.clear_behind()
            found = await state.reads.lookup("events_of", subject=job.id, after=after, count=_PAGE)
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
            yield _frame(str(event.seq), event, None)
        if behind:
            continue
        if deleted or (ended and not follow):
            return
        # A writer elsewhere may hold the global order back; a job's own numbers are read past it, if only at each beat.
        behind = not await subscription.wait(state.settings.heartbeat_seconds) or subscription.behind
        yield _NO_FRAME


# -- a whole tenant


async def tenant_events(state: AppState, request: Request) -> Response | StreamingResponse:
    query = parse_list_query(state, request, FeedQuery)
    caller: Caller = request.caller
    wanted = _event_filter(query)
    place = await _start_position(state, caller, request.header(b"last-event-id") or query.after)
    if _accepts_stream(request):
        if request.method == "HEAD":
            return _STREAM_HEAD
        key = (TENANT, caller.tenant)
        subscription = await state.broadcaster.subscribe(key, caller.stream_owner)
        return _stream(state, request, key, subscription, _tenant_frames(state, caller, place, subscription, wanted))
    row_count(state, query.limit)
    events: list[Event] = []
    page, more = split_page(await _page(state, caller, place, _PAGE + 1), _PAGE)
    for placed in page:
        if wanted(placed.event):
            if len(events) == query.limit:
                more = True
                break
            events.append(render.event_view(placed.event, _cursor(state, caller, placed.place)))
        place = placed.place
    return Response(Feed(events, _cursor(state, caller, place), more))


async def _tenant_frames(
    state: AppState, caller: Caller, place: tuple[int, int], subscription: Subscription, wanted: EventFilter
) -> AsyncIterator[bytes]:
    """Yield a tenant's events in the global order: the past page by page, then what comes."""
    behind = True
    while not subscription.ended:
        if behind or subscription.behind:  # the buffer may also have run over while the last frame was being sent
            subscription.events.clear()
            subscription.clear_behind()
            batch = await _page(state, caller, place, _PAGE)
            behind = len(batch) == _PAGE
        else:
            batch = list(subscription.events)
            subscription.events.clear()
        for placed in batch:
            if placed.place <= place:
                continue
            place = placed.place
            if wanted(placed.event):
                cursor = _cursor(state, caller, place)
                yield _frame(cursor, placed.event, cursor)
        if not behind:
            await subscription.wait(state.settings.heartbeat_seconds)
            behind = subscription.behind
            yield _NO_FRAME


async def _page(state: AppState, caller: Caller, place: tuple[int, int], count: int) -> list[PositionedEvent]:
    found = await state.reads.scan(
        "events_of_tenant", tenant=caller.tenant, tx=place[0], position=place[1], count=count
    )
    return [PositionedEvent((row[1], row[0], rows.Event(*row[2:]))) for row in found]


async def _start_position(state: AppState, caller: Caller, text: str) -> tuple[int, int]:
    if not text:
        return (0, 0)
    if text == "now":
        found = await state.reads.lookup("feed_end", tx=0, position=0)
        return (found[0][0], found[0][1]) if found else (0, 0)
    return decode_cursor(state, "feed", caller.tenant, text, tuple[int, int])


def _cursor(state: AppState, caller: Caller, place: tuple[int, int]) -> str:
    return encode_cursor(state, "feed", caller.tenant, place)


def _event_filter(query: FeedQuery) -> EventFilter:
    kinds = tuple(filter(None, query.type.split(","))) or ("",)
    return lambda event: event.type.startswith(kinds) and query.job in {"", event.subject}


# -- sending


def _stream(
    state: AppState, request: Request, key: Key, subscription: Subscription, frames: AsyncIterator[bytes]
) -> StreamingResponse:
    async def send_all(send: Send) -> None:
        headers = [*request.response_headers(), *_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
        try:
            async for frame in _with_keepalives(state, request, frames):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        except (Problem, StoreError) as error:  # too late for a status: the client comes back and is told
            await send({"type": "http.response.body", "body": _error_comment(error), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def serve(send: Send) -> None:
        """Send until the end, or until the client is gone: whichever is first."""
        try:
            await request.until_disconnect(send_all(send))
        finally:
            state.broadcaster.unsubscribe(key, request.caller.stream_owner, subscription)

    return StreamingResponse(serve)


async def _with_keepalives(state: AppState, request: Request, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Add a sign of life where there is nothing to say, and end when the key or token no longer lets in."""
    clock = asyncio.get_running_loop().time
    keepalive_seconds = state.settings.heartbeat_seconds
    sent_at = authenticated_at = clock()
    async for frame in frames:
        now = clock()
        if now - authenticated_at >= keepalive_seconds:
            await request.api.authenticate(state, request)
            authenticated_at = now
        if frame or now - sent_at >= keepalive_seconds:
            yield frame or b": alive\n\n"
            sent_at = now


def _error_comment(error: Exception) -> bytes:
    why = error.code if isinstance(error, Problem) else "unavailable"
    return f": {why}\n\n".encode()


def _accepts_stream(request: Request) -> bool:
    return _STREAM in (request.header(b"accept") or "")


def _frame(name: str, event: rows.Event, cursor: str | None) -> bytes:
    body: Any = _encode(render.event_view(event, cursor))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (name.encode(), event.type.encode(), body)


def _last_event_id(request: Request, after: int) -> int:
    given = request.header(b"last-event-id")
    if given is None:
        return max(after, 0)
    if not given.isdecimal() or len(given) > 18:  # noqa: PLR2004 - what a 64-bit number may have
        raise Problem(422, "invalid_cursor", "Last-Event-ID of a job's stream is a number.")
    return int(given)


_STREAMED = ("422 invalid_cursor", "429 too_many_streams", "503 stopping")
ROUTES = (
    Route(
        "GET", "/v1/jobs/{job_id}/events", job_events, READERS_AND_USERS, "Watch a job's events", Events,
        query=EventsQuery,
        other_statuses=(204,), problems=("404 job_not_found", *_STREAMED), request_headers=("Last-Event-ID",),
        event_stream=True,
        token_in_query=True,
        details="With `Accept: text/event-stream` a stream that resumes at Last-Event-ID, without gap or duplicate, "
        "and ends with the job. 204 says that the job has ended and everything was seen.",
    ),
    Route(
        "GET", "/v1/events", tenant_events, READERS, "Watch all events of the tenant", Feed, query=FeedQuery,
        problems=_STREAMED, request_headers=("Last-Event-ID",), event_stream=True,
        details="With `Accept: text/event-stream` a stream that resumes at Last-Event-ID. As JSON, `next` is where to "
        "go on; `more` says that there is more already, which a page may do that has no event of the `type` or `job`.",
    ),
)  # fmt: skip
