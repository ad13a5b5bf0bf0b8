"""Event streams that reconnect at the last event, without gaps or duplicates."""

import time

from callsheet.api.events import Event
from callsheet.client.operation_effects import (
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
from callsheet.client.requests_and_pages import parse_reply, raise_for_status
from callsheet.client.retry import RetryContext, connection_error, send_with_retries
from callsheet.transport.sse_parser import SseEvent, SseEventTooLargeError, SseParser

_NO_CONTENT = 204
_NOT_FOUND = 404
"""Not an error for a job that has ended: its events were deleted."""
_READ_TIMEOUT_SECONDS = 45.0
"""The server sends a keep-alive every 15 seconds; a stream that is silent for longer is reopened."""
_STABLE_SECONDS = 10.0
"""A stream that stayed open this long resets the failure count."""
_TERMINAL_EVENTS = frozenset({"job.completed", "job.failed", "job.canceled", "job.expired", "job.blocked"})


class TenantPosition:
    """The position in a tenant's events, which never end."""

    ended = deleted = False

    def __init__(self, last_id: str) -> None:
        self.last_id = last_id

    def is_new(self, frame: SseEvent) -> bool:
        """Return whether a frame was not seen before. Raise TransportError to reopen the stream."""
        return frame.id != self.last_id

    def advance(self, frame: SseEvent, event: Event) -> None:
        """Move to an event."""
        _ = event
        self.last_id = frame.id


class JobPosition(TenantPosition):
    """The position in a job's events, and whether the job has ended."""

    def is_new(self, frame: SseEvent) -> bool:
        """Return whether a frame was not seen before. A gap in the sequence raises, to read the stream again."""
        if not frame.id.isdecimal():
            raise TransportError("an event of the stream has no number", sent=True)
        if int(frame.id) > int(self.last_id) + 1:
            raise TransportError("the stream has a gap", sent=True)
        return int(frame.id) > int(self.last_id)

    def advance(self, frame: SseEvent, event: Event) -> None:
        super().advance(frame, event)
        self.ended = (self.ended or event.type in _TERMINAL_EVENTS) and event.type != "job.retried"
        self.deleted = event.type == "job.deleted"


def follow_events(context: RetryContext, request: Request, position: TenantPosition) -> IterableOperation[Event]:
    """Yield the events of a stream, and reconnect at the last one when the connection breaks."""
    failures = 0
    while True:
        stream, opened_at, last_id = (yield from _open(context, request, position)), time.monotonic(), position.last_id
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
            failures = 0  # the connection worked, even if no event came
        failures += 1
        if failures > context.retry_policy.retries_max:
            raise connection_error(TransportError(reason, sent=True), context.url, request)
        if failures > 1 or not position.ended:  # after the end of a job the server answers immediately
            yield Sleep(context.retry_policy.delay_seconds(failures))


def _open(context: RetryContext, request: Request, position: TenantPosition) -> Operation[Reply]:
    headers = {"accept": "text/event-stream"} | ({"last-event-id": position.last_id} if position.last_id else {})
    request = request._replace(headers=headers, server_wait_seconds=_READ_TIMEOUT_SECONDS)
    reply = yield from send_with_retries(context, request, Open)
    if not (position.ended and reply.status == _NOT_FOUND):
        raise_for_status(reply)
    return reply


def _read_events(stream: Reply, position: TenantPosition) -> IterableOperation[Event]:
    """Yield the new events of an open stream, until it ends."""
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
