"""Routes of events: JSON pages, and server-sent event streams that resume without gaps or duplicates."""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from callsheet.api.events import Event, Events, EventsQuery, Feed, FeedQuery
from callsheet.core.model.errors import Refusal
from callsheet.http.auth.authenticator import Caller
from callsheet.http.broadcaster import JOB, TENANT, Key, Subscription
from callsheet.http.server.pagination import parse_list_query
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request, Send
from callsheet.http.server.route import READERS, READERS_AND_USERS, Response, Route, StreamingResponse
from callsheet.http.state import AppState
from callsheet.queries import events
from callsheet.queries.jobs import find_job

_encode = msgspec.json.Encoder().encode
_STREAM = "text/event-stream"
_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no"))
_STREAM_HEAD = Response(b"", media_type="text/event-stream; charset=utf-8")
"""The response to HEAD: the headers of a stream."""


# -- handlers


async def job_events(state: AppState, request: Request) -> Response | StreamingResponse:
    query = parse_list_query(state, request, EventsQuery)
    caller: Caller = request.caller
    job = await find_job(state.queries, caller, request.params["job_id"])
    after = _last_event_id(request, query.after)
    if not _accepts_stream(request):
        return Response(await events.list_job_events(state.queries, job, after, query))
    if job.finished_at is not None and after >= job.seq and not query.follow:
        return Response(None, 204)  # a browser's EventSource does not reconnect after a 204
    if request.method == "HEAD":
        return _STREAM_HEAD
    key = (JOB, job.id)
    subscription = await state.broadcaster.subscribe(key, caller.stream_owner, browser=caller.user is not None)
    found = events.follow_job(state.queries, job, after, subscription, follow=query.follow)
    return _stream(state, request, key, subscription, found)


async def tenant_events(state: AppState, request: Request) -> Response | StreamingResponse:
    query = parse_list_query(state, request, FeedQuery)
    caller: Caller = request.caller
    cursor = request.header(b"last-event-id") or query.cursor
    position = await events.start_position(state.queries, caller, cursor)
    if not _accepts_stream(request):
        return Response(await events.list_tenant_events(state.queries, caller, position, query))
    if request.method == "HEAD":
        return _STREAM_HEAD
    key = (TENANT, caller.tenant)
    subscription = await state.broadcaster.subscribe(key, caller.stream_owner)
    found = events.follow_tenant(state.queries, caller, position, subscription, events.event_filter(query))
    return _stream(state, request, key, subscription, found)


# -- sending


def _stream(
    state: AppState, request: Request, key: Key, subscription: Subscription, found: AsyncIterator[Event | None]
) -> StreamingResponse:
    async def send_all(send: Send) -> None:
        headers = [*request.response_headers(), *_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
        try:
            async for frame in _with_keepalives(state, request, found):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        except (Problem, Refusal) as error:  # the status is sent already: the client reconnects and gets the error
            await send({"type": "http.response.body", "body": _error_comment(error), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def serve(send: Send) -> None:
        """Send until the stream ends or the client disconnects."""
        try:
            await request.until_disconnect(send_all(send))
        finally:
            state.broadcaster.unsubscribe(key, request.caller.stream_owner, subscription)

    return StreamingResponse(serve)


async def _with_keepalives(
    state: AppState, request: Request, found: AsyncIterator[Event | None]
) -> AsyncIterator[bytes]:
    """Yield events as frames, and a comment after a pause. Raise when the key is revoked."""
    clock = asyncio.get_running_loop().time
    keepalive_seconds = state.settings.heartbeat_seconds
    sent_at = authenticated_at = clock()
    async for event in found:
        now = clock()
        if now - authenticated_at >= keepalive_seconds:
            await request.api.authenticate(state, request)
            authenticated_at = now
        if event is not None or now - sent_at >= keepalive_seconds:
            yield b": alive\n\n" if event is None else _frame(event)
            sent_at = now


def _error_comment(error: Problem | Refusal) -> bytes:
    return f": {error.code}\n\n".encode()


def _accepts_stream(request: Request) -> bool:
    return _STREAM in (request.header(b"accept") or "")


def _frame(event: Event) -> bytes:
    name = str(event.seq) if event.cursor is None else event.cursor
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (name.encode(), event.type.encode(), _encode(event))


def _last_event_id(request: Request, after: int) -> int:
    given = request.header(b"last-event-id")
    if given is None:
        return max(after, 0)
    if not given.isdecimal() or len(given) > 18:  # noqa: PLR2004 - digits that always fit 64 bits
        raise Problem(
            422,
            "invalid_cursor",
            "Last-Event-ID must be the `seq` of an event of this job. Start without it to get all events.",
        )
    return int(given)


_STREAMED = ("422 invalid_cursor", "429 too_many_streams", "503 stopping")
ROUTES = (
    Route(
        "GET", "/v1/jobs/{job_id}/events", job_events, READERS_AND_USERS, "List or stream a job's events", Events,
        query=EventsQuery,
        other_statuses=(204,), problems=("404 job_not_found", *_STREAMED), request_headers=("Last-Event-ID",),
        event_stream=True,
        token_in_query=True,
        details="Send `Accept: text/event-stream` for a stream of server-sent events. It ends with the job. After a "
        "disconnect, send `Last-Event-ID` to resume without gaps or duplicates. The response is 204 if the job has "
        "ended and there are no further events. Without that `Accept` header, the response is a JSON page.",
    ),
    Route(
        "GET", "/v1/events", tenant_events, READERS, "List or stream a tenant's events", Feed, query=FeedQuery,
        problems=_STREAMED, request_headers=("Last-Event-ID",), event_stream=True,
        details="Send `Accept: text/event-stream` for a stream of server-sent events; resume it with `Last-Event-ID`. "
        "Without it, the response is a JSON page. Pass `next` as `cursor` to continue, now or later. `more` tells "
        "whether further events exist already; with a filter, a page can be empty and still have `more`.",
    ),
)  # fmt: skip
