"""Events of a job and of a tenant."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from callsheet.api.base import NUMBER_MAX


class Event(Struct, frozen=True):
    """A stored fact about a job. `seq` is dense per job; `cursor` resumes a stream of a tenant."""

    seq: int
    job_id: str
    run: int
    type: str
    at: datetime
    actor: str
    from_status: str | None
    to_status: str | None
    entity_id: str | None
    data: Any
    cursor: str | None = None


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

    events: list[Event]
    more: bool


class Feed(Struct, frozen=True):
    """Events of a tenant, oldest first, and where to go on: at once if there is more, else when something happened."""

    events: list[Event]
    next: str
    more: bool
