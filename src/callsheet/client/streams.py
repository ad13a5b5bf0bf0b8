"""Calls that listen: events as they happen, resumed where a connection broke, without gap or duplicate."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from callsheet.client.binding import iterate
from callsheet.client.errors import error_of, failed
from callsheet.client.frames import Frame, Frames
from callsheet.client.models import Event
from callsheet.client.patience import patiently, unreachable
from callsheet.client.speaking import Speaking, get, path, read
from callsheet.client.talk import Broken, Item, Items, Nap, Open, Read, Reply, Request, Talk

_SEEN_ALL = 204
_SILENT_SECONDS = 45.0
"""The server says that it is alive every 15 seconds; a stream that is silent for longer is opened anew."""
_GOOD_SECONDS = 10.0
"""A stream that was open for so long had not failed to open: what came before it is forgiven."""
_ENDS = frozenset({"job.completed", "job.failed", "job.canceled", "job.expired", "job.blocked"})
Fits = Callable[[str, Frame], bool]
"""Say whether a frame is the next one after an id; False skips it, Broken opens the stream anew."""


class Streams(Speaking):
    """Listen to a job, or to all of them."""

    @iterate
    def events(self, job_id: str, *, after: int = 0, follow: bool = False) -> Items[Event]:
        """Iterate over a job's events, past and coming, until it has ended; with `follow` beyond, for a retry."""
        request = get(path("jobs", job_id, "events"), follow="true" if follow else None)
        yield from self._listen(request, str(after), _next_number)

    @iterate
    def feed(self, *, after: str = "", types: Iterable[str] = (), job_id: str = "") -> Items[Event]:
        """Iterate over the tenant's events for ever; `after` is an event's cursor, or `now` to skip the past.

        `now` is when the first event is asked for. Types are whole or how they begin: `["job.", "task.progressed"]`.
        """
        if after == "now":
            # What `now` is must be known before the first event: a stream that breaks early resumes there.
            after = (yield from self._ask(dict[str, Any], get(path("events"), after=after, limit=1)))["next"]
        yield from self._listen(get(path("events"), type=",".join(types), job=job_id), after, _any)

    def _listen(self, request: Request, last: str, fits: Fits) -> Items[Event]:
        failures = 0
        while True:
            opened, began = (yield from self._open(request, last)), time.monotonic()
            if opened.status == _SEEN_ALL:
                return
            frames, why, over = Frames(), "the stream ended early", False
            try:
                while chunk := (yield Read()):
                    for frame in frames.feed(chunk):
                        if not fits(last, frame):
                            continue
                        event = read(Event, opened._replace(body=frame.data))
                        last, failures, over = frame.id, 0, event.type in _ENDS
                        yield Item(event)
            except Broken as error:
                why = str(error)
            if time.monotonic() - began > _GOOD_SECONDS:
                failures = 0  # it was a good connection, only a quiet one
            failures += 1
            if failures > self.patience.retries_max:
                raise unreachable(Broken(why, sent=True))
            if not over:  # after a job's end the server says at once whether there is more
                yield Nap(self.patience.seconds(failures))

    def _open(self, request: Request, last: str) -> Talk[Reply]:
        headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
        request = request._replace(headers=headers, hold_seconds=_SILENT_SECONDS)
        reply = yield from patiently(self.patience, request, Open)
        if failed(reply.status):
            raise error_of(reply.status, reply.body, reply.headers.get("x-request-id", ""))
        return reply


def _next_number(last: str, frame: Frame) -> bool:
    """A job's events are numbered without holes: seen ones are skipped, a hole is read again."""
    if not frame.id.isdecimal():
        raise Broken("an event of the stream has no number", sent=True)
    if int(frame.id) > int(last) + 1:
        raise Broken("the stream has a hole", sent=True)
    return int(frame.id) > int(last)


def _any(last: str, frame: Frame) -> bool:
    return frame.id != last
