"""Calls that listen: events as they happen, resumed where a connection broke, without gap or duplicate."""

import time
from collections.abc import Iterable
from typing import Any

from callsheet.client.binding import iterate
from callsheet.client.errors import error_of, failed
from callsheet.client.frames import Frame, Frames
from callsheet.client.models import Event
from callsheet.client.patience import patiently, unreachable
from callsheet.client.speaking import Speaking, get, path, read
from callsheet.client.talk import Broken, Item, Items, Nap, Open, Read, Reply, Request, Talk

_SEEN_ALL = 204
_DELETED = 404
"""Said of a job that has ended, it is no failure: there is nothing more to hear."""
_SILENT_SECONDS = 45.0
"""The server says that it is alive every 15 seconds; a stream that is silent for longer is opened anew."""
_GOOD_SECONDS = 10.0
"""A stream that was open for so long had not failed to open: what came before it is forgiven."""
_ENDS = frozenset({"job.completed", "job.failed", "job.canceled", "job.expired", "job.blocked"})


class Streams(Speaking):
    """Listen to a job, or to all of them."""

    @iterate
    def events(self, job_id: str, *, after: int = 0, follow: bool = False) -> Items[Event]:
        """Iterate over a job's events, past and coming, until it has ended; with `follow` beyond, for a retry."""
        request = get(path("jobs", job_id, "events"), follow="true" if follow else None)
        yield from self._listen(request, _Story(str(after)))

    @iterate
    def feed(self, *, after: str = "", types: Iterable[str] = (), job_id: str = "") -> Items[Event]:
        """Iterate over the tenant's events for ever; `after` is an event's cursor, or `now` to skip the past.

        `now` is when the first event is asked for. Types are whole or how they begin: `["job.", "task.progressed"]`.
        """
        if after == "now":
            # What `now` is must be known before the first event: a stream that breaks early resumes there.
            after = (yield from self._ask(dict[str, Any], get(path("events"), after=after, limit=1)))["next"]
        yield from self._listen(get(path("events"), type=",".join(types), job=job_id), _Feed(after))

    def _listen(self, request: Request, heard: "_Feed") -> Items[Event]:
        failures = 0
        while True:
            opened, began, last = (yield from self._open(request, heard)), time.monotonic(), heard.last
            if opened.status in {_SEEN_ALL, _DELETED}:
                return
            why = "the stream ended early"
            try:
                yield from _hear(opened, heard)
            except Broken as error:
                why = str(error)
            if heard.gone:
                return
            if heard.last != last or time.monotonic() - began > _GOOD_SECONDS:
                failures = 0  # it was a good connection, if perhaps a quiet one
            failures += 1
            if failures > self.patience.retries_max:
                raise unreachable(Broken(why, sent=True), self.url, request)
            if failures > 1 or not heard.over:  # after a job's end the server says at once whether there is more
                yield Nap(self.patience.seconds(failures))

    def _open(self, request: Request, heard: "_Feed") -> Talk[Reply]:
        headers = {"accept": "text/event-stream"} | ({"last-event-id": heard.last} if heard.last else {})
        request = request._replace(headers=headers, hold_seconds=_SILENT_SECONDS)
        reply = yield from patiently(self, request, Open)
        if failed(reply.status) and not (heard.over and reply.status == _DELETED):
            raise error_of(reply.status, reply.body, reply.headers.get("x-request-id", ""))
        return reply


class _Feed:
    """How far a tenant's events were heard. They never end."""

    over = gone = False

    def __init__(self, last: str) -> None:
        self.last = last

    def is_next(self, frame: Frame) -> bool:
        """Say whether a frame is news; Broken opens the stream anew."""
        return frame.id != self.last

    def take(self, frame: Frame, event: Event) -> None:
        """Go on to an event."""
        _ = event
        self.last = frame.id


class _Story(_Feed):
    """How far a job's events were heard, and whether it has ended: by its own moves, not by remarks about it."""

    def is_next(self, frame: Frame) -> bool:
        """A job's events are numbered without holes: seen ones are skipped, a hole is read again."""
        if not frame.id.isdecimal():
            raise Broken("an event of the stream has no number", sent=True)
        if int(frame.id) > int(self.last) + 1:
            raise Broken("the stream has a hole", sent=True)
        return int(frame.id) > int(self.last)

    def take(self, frame: Frame, event: Event) -> None:
        super().take(frame, event)
        self.over = (self.over or event.type in _ENDS) and event.type != "job.retried"
        self.gone = event.type == "job.deleted"


def _hear(opened: Reply, heard: _Feed) -> Items[Event]:
    """Yield what is new of an open stream, up to its end."""
    frames = Frames()
    while not heard.gone and (chunk := (yield Read())):
        for frame in frames.feed(chunk):
            if heard.is_next(frame):
                event = read(Event, opened._replace(body=frame.data))
                heard.take(frame, event)
                yield Item(event)
