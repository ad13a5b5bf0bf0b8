"""Consecutive events of a job or a tenant, which all its streams share, so that each event is encoded once."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from callsheet.core.decisions.transitions import job_status_after
from callsheet.core.model import rows
from callsheet.core.model.state_machines import JOB as JOB_MACHINE
from callsheet.engine.reads.synchronous import PositionedEvent

EVENTS_MAX = 256
BYTES_MAX = 32 * 1024
"""The size of a batch: what one stream sends before other work of the server continues. One event may be larger."""
_BODIES_MAX = 16
"""Filters whose result is kept. Streams with other filters join the encoded events themselves."""
_FIXED_BYTES = 384
"""About the size of an encoded event without its data."""

Place = Any
"""The place of an event among those of its stream: `seq` in a job, transaction and id in a tenant."""
PlaceOf = Callable[[PositionedEvent], Place]
Encode = Callable[[PositionedEvent], bytes]


class EventFilter(NamedTuple):
    """Which events a stream sends."""

    types: tuple[str, ...] = ("",)
    """Types, or beginnings of types."""
    job: str = ""

    def matches(self, event: rows.Event) -> bool:
        return event.type.startswith(self.types) and self.job in {"", event.subject}


ALL_EVENTS = EventFilter()


class JobFacts(NamedTuple):
    """What a batch says about its job."""

    in_sequence: bool
    """The numbers of the events have no gaps."""
    ended: bool | None
    """Whether the job has ended after the batch; None if no event of it changes the status."""
    deleted: bool


class EventBatch:
    """Some consecutive events."""

    __slots__ = ("_bodies", "_frames", "_job_facts", "events", "places", "size")

    def __init__(self, events: Sequence[PositionedEvent], place_of: PlaceOf) -> None:
        self.events = events
        self.places = [place_of(event) for event in events]
        self.size = sum(map(_size_of, events))
        """About the number of bytes."""
        self._frames: list[bytes] | None = None
        self._bodies: dict[EventFilter, bytes] = {}
        self._job_facts: JobFacts | None = None

    @property
    def last(self) -> Place:
        """The place of the last event."""
        return self.places[-1]

    def count_until(self, place: Place) -> int:
        """Return how many events are not after a place."""
        return 0 if self.places[0] > place else bisect_right(self.places, place)

    @property
    def job_facts(self) -> JobFacts:
        """Facts about the job of the batch."""
        if self._job_facts is None:
            first, events = self.places[0], [positioned.event for positioned in self.events]
            statuses = [status for event in events if (status := job_status_after(event)) is not None]
            self._job_facts = JobFacts(
                self.places == list(range(first, first + len(events))),
                statuses[-1] in JOB_MACHINE.terminal if statuses else None,
                any(event.type == "job.deleted" for event in events),
            )
        return self._job_facts

    def body(self, encode: Encode, skip: int = 0, selected: EventFilter = ALL_EVENTS) -> bytes:
        """Return the encoded events without the first ones. Every stream must pass the same `encode`."""
        if self._frames is None:
            self._frames = [encode(event) for event in self.events]
        body = None if skip else self._bodies.get(selected)
        if body is None:
            frames = zip(self._frames[skip:], self.events[skip:], strict=True)
            body = b"".join([frame for frame, (_, _, event) in frames if selected.matches(event)])
            if not skip and len(self._bodies) < _BODIES_MAX:
                self._bodies[selected] = body
        return body


def cut_batches(events: Sequence[PositionedEvent], place_of: PlaceOf, events_max: int) -> Iterator[EventBatch]:
    """Cut events into batches of limited size."""
    start = size = 0
    for index, event in enumerate(events):
        size += _size_of(event)
        if index > start and (size > BYTES_MAX or index - start >= events_max):
            yield EventBatch(events[start:index], place_of)
            start, size = index, _size_of(event)
    if start < len(events):
        yield EventBatch(events[start:], place_of)


def _size_of(positioned: PositionedEvent) -> int:
    return _FIXED_BYTES + len(positioned[2].data or "")
