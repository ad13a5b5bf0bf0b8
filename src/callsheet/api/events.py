"""Events of a job and of a tenant."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from callsheet.api.base import NUMBER_MAX, Example, Time, doc


class Event(Struct, frozen=True):
    """A change that was recorded: of a job, a stage or a task."""

    seq: Annotated[int, doc("Number of the event within its job, from 1 without gaps.", 1)]
    job_id: Annotated[str, doc("Id of the job.", Example.JOB_ID)]
    run: Annotated[int, doc("Number of the run.", 1)]
    type: Annotated[str, doc("Type of the event, as `noun.verb`.", "job.created")]
    at: Annotated[Time, doc("Time of the event.", Example.AT)]
    actor: Annotated[str, doc("Who caused it: `user`, `admin`, `worker`, `provider` or `system`.", "user")]
    from_status: Annotated[str | None, doc("Previous status.", None)]
    to_status: Annotated[str | None, doc("New status.", "queued")]
    entity_id: Annotated[str | None, doc("Id of the stage or task. Null if the event is about the job.", None)]
    data: Annotated[Any, doc("Further data, depending on the type.", {"workflow": "sketch", "price": 3})]
    cursor: Annotated[
        str | None, doc("Position of the event in the tenant's events. Resume a stream from here.", Example.CURSOR)
    ] = None


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which events of a job to return."""

    after: Annotated[
        int,
        doc("Return only events with a greater `seq`. 0 starts with the first event.", 12),
        Meta(ge=0, le=NUMBER_MAX),
    ] = 0
    limit: Annotated[int, doc("Maximum number of events to return. Streams ignore it.", 50)] = 200
    follow: Annotated[bool, doc("Keep the stream open after the job has ended, because it may be retried.", True)] = (
        False
    )


class FeedQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which events of the tenant to return."""

    cursor: Annotated[
        str,
        doc("Start after this position: `next` of the previous page, or `cursor` of an event. `now` skips past events.",
            "now"),
    ] = ""  # fmt: skip
    type: Annotated[
        str, doc("Return only these types, separated by commas. A type may be a prefix.", "job.,task.progressed")
    ] = ""
    job: Annotated[str, doc("Return only events of this job.", Example.JOB_ID)] = ""
    limit: Annotated[int, doc("Maximum number of events to return. Streams ignore it.", 50)] = 200


class Events(Struct, frozen=True):
    """Events of a job, oldest first."""

    events: Annotated[list[Event], doc("Events, oldest first.")]
    more: Annotated[bool, doc("Whether there are more events after these.", False)]


class Feed(Struct, frozen=True):
    """Events of a tenant, oldest first."""

    events: Annotated[list[Event], doc("Events, oldest first.")]
    next: Annotated[str, doc("Cursor to continue with, now or when more events have happened.", Example.CURSOR)]
    more: Annotated[bool, doc("Whether there are more events after these.", False)]
