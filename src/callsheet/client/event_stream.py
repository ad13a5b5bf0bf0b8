"""Calls that listen: events as they happen, resumed where a connection broke, without gap or duplicate."""

import time
from collections.abc import Iterable
from typing import Any

from callsheet.client.errors import is_error, parse_error
from callsheet.client.method_binding import iterate
from callsheet.client.models import Event
from callsheet.client.operations import (
    Item,
    IterableOperation,
    Open,
    Operation,
    Read,
    Reply,
    Request,
    Sleep,
    TransportError,
)
from callsheet.client.resource import Resource, get, parse_reply, path
from callsheet.client.retry import connection_error, send_with_retries
from callsheet.transport.sse import SseEvent, SseEventTooLargeError, SseParser

_NO_CONTENT = 204
_NOT_FOUND = 404
"""Said of a job that has ended, it is no failure: there is nothing more to hear."""
_READ_TIMEOUT_SECONDS = 45.0
"""The server says that it is alive every 15 seconds; a stream that is silent for longer is opened anew."""
_STABLE_SECONDS = 10.0
"""A stream that was open for so long had not failed to open: what came before it is uncounted."""
_TERMINAL_EVENTS = frozenset({"job.completed", "job.failed", "job.canceled", "job.expired", "job.blocked"})


class Streams(Resource):
    """Listen to a job, or to all of them."""

    @iterate
    def events(self, job_id: str, *, after: int = 0, follow: bool = False) -> IterableOperation[Event]:
        """Iterate over a job's events, past and coming, until it has ended; with `follow` beyond, for a retry."""
        request = get(path("jobs", job_id, "events"), follow="true" if follow else None)
        yield from self._follow(request, _JobPosition(str(after)))

    @iterate
    def feed(self, *, after: str = "", types: Iterable[str] = (), job_id: str = "") -> IterableOperation[Event]:
        """Iterate over the tenant's events for ever; `after` is an event's cursor, or `now` to skip the past.

        `now` is when the first event is asked for. Types are whole or how they begin: `["job.", "task.progressed"]`.
        """
        if after == "now":
            # What `now` is must be known before the first event: a stream that breaks early resumes there.
            after = (yield from self._request(dict[str, Any], get(path("events"), after=after, limit=1)))["next"]
        yield from self._follow(get(path("events"), type=",".join(types), job=job_id), _FeedPosition(after))

    def _follow(self, request: Request, position: "_FeedPosition") -> IterableOperation[Event]:
        failures = 0
        while True:
            stream, opened_at, last_id = (yield from self._open(request, position)), time.monotonic(), position.last_id
            if stream.status in {_NO_CONTENT, _NOT_FOUND}:
                return
            reason = "the stream ended early"
            try:
                yield from _read_events(stream, position)
            except TransportError as error:
                reason = str(error)
            if position.deleted:
                return
            if position.last_id != last_id or time.monotonic() - opened_at > _STABLE_SECONDS:
                failures = 0  # it was a good connection, if perhaps a quiet one
            failures += 1
            if failures > self.retry_policy.retries_max:
                raise connection_error(TransportError(reason, sent=True), self.url, request)
            if failures > 1 or not position.ended:  # after a job's end the server says at once whether there is more
                yield Sleep(self.retry_policy.delay_seconds(failures))

    def _open(self, request: Request, position: "_FeedPosition") -> Operation[Reply]:
        headers = {"accept": "text/event-stream"} | ({"last-event-id": position.last_id} if position.last_id else {})
        request = request._replace(headers=headers, server_wait_seconds=_READ_TIMEOUT_SECONDS)
        reply = yield from send_with_retries(self, request, Open)
        if is_error(reply.status) and not (position.ended and reply.status == _NOT_FOUND):
            raise parse_error(reply.status, reply.body, reply.headers.get("x-request-id", ""))
        return reply


class _FeedPosition:
    """How far a tenant's events were heard. They never end."""

    ended = deleted = False

    def __init__(self, last_id: str) -> None:
        self.last_id = last_id

    def is_new(self, frame: SseEvent) -> bool:
        """Say whether a frame is news; Broken opens the stream anew."""
        return frame.id != self.last_id

    def advance(self, frame: SseEvent, event: Event) -> None:
        """Go on to an event."""
        _ = event
        self.last_id = frame.id


class _JobPosition(_FeedPosition):
    """How far a job's events were heard, and whether it has ended: by its own moves, not by remarks about it."""

    def is_new(self, frame: SseEvent) -> bool:
        """A job's events are numbered without holes: seen ones are skipped, a hole is read again."""
        if not frame.id.isdecimal():
            raise TransportError("an event of the stream has no number", sent=True)
        if int(frame.id) > int(self.last_id) + 1:
            raise TransportError("the stream has a hole", sent=True)
        return int(frame.id) > int(self.last_id)

    def advance(self, frame: SseEvent, event: Event) -> None:
        super().advance(frame, event)
        self.ended = (self.ended or event.type in _TERMINAL_EVENTS) and event.type != "job.retried"
        self.deleted = event.type == "job.deleted"


def _read_events(stream: Reply, position: _FeedPosition) -> IterableOperation[Event]:
    """Yield what is new of an open stream, up to its end."""
    parser = SseParser()
    try:
        while not position.deleted and (chunk := (yield Read())):
            for frame in parser.feed(chunk):
                if position.is_new(frame):
                    event = parse_reply(Event, stream._replace(body=frame.data))
                    position.advance(frame, event)
                    yield Item(event)
    except SseEventTooLargeError as error:
        raise TransportError(str(error), sent=True) from None
