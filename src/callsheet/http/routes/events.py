"""Events: as JSON pages, and as server-sent events that resume without gap or duplicate."""

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
from callsheet.http.server.router import READERS, READERS_AND_USERS, Response, Route, StreamingResponse
from callsheet.http.state import AppState
from callsheet.queries import events
from callsheet.queries.jobs import find_job

_encode = msgspec.json.Encoder().encode
_STREAM = "text/event-stream"
_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no"))
_STREAM_HEAD = Response(b"", media_type="text/event-stream; charset=utf-8")
"""What a stream would begin with."""


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
        except (Problem, Refusal) as error:  # too late for a status: the client reconnects, and gets it then
            await send({"type": "http.response.body", "body": _error_comment(error), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def serve(send: Send) -> None:
        """Send until the end, or until the client is gone: whichever is first."""
        try:
            await request.until_disconnect(send_all(send))
        finally:
            state.broadcaster.unsubscribe(key, request.caller.stream_owner, subscription)

    return StreamingResponse(serve)


async def _with_keepalives(
    state: AppState, request: Request, found: AsyncIterator[Event | None]
) -> AsyncIterator[bytes]:
    """Yield events as frames, a comment when there was none for a while, and end when the key is revoked."""
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
    if not given.isdecimal() or len(given) > 18:  # noqa: PLR2004 - what a 64-bit number may have
        raise Problem(422, "invalid_cursor", "Last-Event-ID of a job's stream must be the number of an event.")
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
