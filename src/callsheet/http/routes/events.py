"""Routes for events: JSON pages, and streams of server-sent events that resume without gaps or duplicates."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from callsheet.api.events import Event, Events, EventsQuery, Feed, FeedQuery
from callsheet.http.auth.authenticator import Caller
from callsheet.http.auth.key_recheck import while_authenticated
from callsheet.http.server.exception_map import problem_from
from callsheet.http.server.list_query import parse_list_query
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import ClientDisconnected, Request, Send
from callsheet.http.server.route import READERS, READERS_AND_USERS, Response, Route, StreamingResponse
from callsheet.http.state import AppState
from callsheet.http.streams.broadcaster import JOB, TENANT, Key
from callsheet.http.streams.shared_event_buffer import Subscription
from callsheet.queries import render
from callsheet.queries.events import pages_and_cursors, streams
from callsheet.queries.events.shared_batches import ALL_EVENTS, Encode, EventFilter
from callsheet.queries.jobs import find_job

_encode = msgspec.json.Encoder().encode
_END_SECONDS = 1.0
_STREAM = "text/event-stream"
_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no"))
_STREAM_HEAD = Response(b"", media_type="text/event-stream; charset=utf-8")
"""The response to HEAD: the headers of a stream."""


# -- handlers


async def job_events(state: AppState, request: Request) -> Response | StreamingResponse:
    query = parse_list_query(state, request, EventsQuery)
    caller: Caller = request.caller
    job = await find_job(state.queries, caller, request.params["job_id"])
    after = _last_event_id(request, query.cursor)
    if not _accepts_stream(request):
        return Response(await pages_and_cursors.list_job_events(state.queries, job, after, query))
    if job.finished_at is not None and after >= job.seq and not query.follow:
        return Response(None, 204)  # a browser's EventSource does not reconnect after a 204
    if request.method == "HEAD":
        return _STREAM_HEAD
    key = (JOB, job.id)
    subscription = await state.broadcaster.subscribe(key, caller.stream_owner, browser=caller.user is not None)
    followed = streams.follow_job(state.queries, job, after, subscription, follow=query.follow)
    bodies = _encode_slices(followed, lambda positioned: _frame(render.event_view(positioned.event)))
    return _stream(state, request, key, subscription, bodies)


async def tenant_events(state: AppState, request: Request) -> Response | StreamingResponse:
    query = parse_list_query(state, request, FeedQuery)
    caller: Caller = request.caller
    cursor = request.header(b"last-event-id") or query.cursor
    position = await pages_and_cursors.start_position(state.queries, caller, cursor)
    if not _accepts_stream(request):
        return Response(await pages_and_cursors.list_tenant_events(state.queries, caller, position, query))
    if request.method == "HEAD":
        return _STREAM_HEAD
    tenant = caller.tenant
    key = (TENANT, tenant)
    subscription = await state.broadcaster.subscribe(key, caller.stream_owner)
    followed = streams.follow_tenant(state.queries, caller, position, subscription)
    bodies = _encode_slices(
        followed,
        lambda positioned: _frame(pages_and_cursors.tenant_event_view(state.queries, tenant, positioned)),
        pages_and_cursors.event_filter(query),
    )
    return _stream(state, request, key, subscription, bodies)


# -- sending


async def _encode_slices(
    followed: AsyncIterator[streams.EventSlice | None], encode: Encode, selected: EventFilter = ALL_EVENTS
) -> AsyncIterator[bytes]:
    """Yield the bytes of the events; none if there is nothing new."""
    async for one in followed:
        yield b"" if one is None else one.batch.body(encode, one.skip, selected)


def _stream(
    state: AppState, request: Request, key: Key, subscription: Subscription, bodies: AsyncIterator[bytes]
) -> StreamingResponse:
    async def send_all(send: Send) -> None:
        headers = [*request.response_headers(), *_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"retry: 1000\n\n", "more_body": True})
        async for body in _with_keepalives(bodies, state.settings.heartbeat_seconds):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def serve(send: Send) -> None:
        """Send until the stream ends, the client disconnects or its key is revoked."""
        try:
            await while_authenticated(state, request, send_all(send))
        except ClientDisconnected:
            raise
        except Exception as error:  # noqa: BLE001 - the status is sent already: the client reconnects and gets the error
            await _end_with_error(send, problem_from(state, request.id, error))
        finally:
            state.broadcaster.unsubscribe(key, request.caller.stream_owner, subscription)

    return StreamingResponse(serve)


async def _end_with_error(send: Send, problem: Problem) -> None:
    """End a stream with a comment that names the error. A client that does not read is disconnected."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            comment = f": {problem.code}\n\n".encode()
            await send({"type": "http.response.body", "body": comment, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


async def _with_keepalives(bodies: AsyncIterator[bytes], keepalive_seconds: float) -> AsyncIterator[bytes]:
    """Yield encoded events, and a comment after a pause."""
    clock = asyncio.get_running_loop().time
    sent_at = clock()
    async for body in bodies:
        now = clock()
        if body or now - sent_at >= keepalive_seconds:
            yield body or b": alive\n\n"
            sent_at = now


def _accepts_stream(request: Request) -> bool:
    return _STREAM in (request.header(b"accept") or "")


def _frame(event: Event) -> bytes:
    event_id = str(event.seq) if event.cursor is None else event.cursor
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event_id.encode(), event.type.encode(), _encode(event))


def _last_event_id(request: Request, after: int) -> int:
    last_event_id = request.header(b"last-event-id")
    if last_event_id is None:
        return max(after, 0)
    if not last_event_id.isdecimal() or len(last_event_id) > 18:  # noqa: PLR2004 - digits that always fit 64 bits
        raise Problem(
            422,
            "invalid_cursor",
            "Last-Event-ID must be the `seq` of an event of this job. Start without it to get all events.",
        )
    return int(last_event_id)


_STREAM_PROBLEMS = ("422 invalid_cursor", "429 too_many_streams", "503 stopping")
ROUTES = (
    Route(
        "GET", "/v1/jobs/{job_id}/events", job_events, READERS_AND_USERS, "List or stream a job's events", Events,
        query=EventsQuery,
        other_statuses=(204,), problems=("404 job_not_found", *_STREAM_PROBLEMS), request_headers=("Last-Event-ID",),
        event_stream=True,
        token_in_query=True,
        details="Without `Accept: text/event-stream`, the response is a JSON page. With it, the response is a "
        "stream of server-sent events that ends with the job. After a disconnect, send `Last-Event-ID` to resume "
        "without gaps or duplicates. A stream returns 204 if the job has ended and there are no further events. Each "
        "event of a stream has an `id` (its `seq`), an `event` (its type) and `data` (an `Event` as JSON).",
    ),
    Route(
        "GET", "/v1/events", tenant_events, READERS, "List or stream a tenant's events", Feed, query=FeedQuery,
        problems=_STREAM_PROBLEMS, request_headers=("Last-Event-ID",), event_stream=True,
        details="Without `Accept: text/event-stream`, the response is a JSON page: pass `next` as `cursor` to "
        "continue, now or later. With a filter, a page can be empty while `more` is true. With that header, the "
        "response is a stream of server-sent events; after a disconnect, send `Last-Event-ID` to resume it. Each event "
        "of a stream has an `id` (its `cursor`), an `event` (its type) and `data` (an `Event` as JSON).",
    ),
)  # fmt: skip
