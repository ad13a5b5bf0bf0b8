"""Events of a job and of a tenant."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from callsheet.api.shared_fields import NUMBER_MAX, Example, Time, doc


class Event(Struct, frozen=True):
    """A recorded change of a job, a stage or a task."""

    seq: Annotated[int, doc("Number of the event within its job, from 1 without gaps.", 1)]
    job_id: Annotated[str, doc("Id of the job.", Example.JOB_ID)]
    run: Annotated[int, doc("Number of the job's run.", 1)]
    type: Annotated[str, doc("Type of the event, such as `job.created`.", "job.created")]
    at: Annotated[Time, doc("Time of the event.", Example.AT)]
    actor: Annotated[str, doc("Who caused it: `user`, `admin`, `worker` or `system`.", "user")]
    from_status: Annotated[str | None, doc("Status before. Null if the event is no transition.", None)]
    to_status: Annotated[str | None, doc("Status after. Null if the event is no transition.", "queued")]
    entity_id: Annotated[str | None, doc("Id of the stage or task. Null if the event is about the job.", None)]
    data: Annotated[Any, doc("Further values, depending on the type; or null.", {"workflow": "sketch", "price": 3})]
    cursor: Annotated[
        str | None,
        doc("Position in the tenant's events: pass it as `cursor` to continue after this event. Null in a list of one "
            "job's events.", Example.CURSOR),
    ] = None  # fmt: skip


class SinkEvent(Event, frozen=True, kw_only=True):
    """An event as a sink receives it: with its tenant, and with `data` decoded.

    `job_id` and `seq` identify an event. `cursor` is a position in the events of the tenant, and the same at every
    delivery.
    """

    tenant: Annotated[str, doc("Tenant of the job.", "default")]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which events of a job to return."""

    cursor: Annotated[
        int,
        doc(
            "Start after this event: `next` of the previous page, or the `seq` of an event. 0 starts with the first.",
            12,
        ),
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
        str,
        doc("Return only these types, separated by commas. `job.` selects all types that start with it.",
            "job.,task.progressed"),
    ] = ""  # fmt: skip
    job: Annotated[str, doc("Return only events of this job.", Example.JOB_ID)] = ""
    limit: Annotated[int, doc("Maximum number of events to return. Streams ignore it.", 50)] = 200


class Events(Struct, frozen=True):
    """Events of a job, oldest first."""

    events: Annotated[list[Event], doc("Events, oldest first.")]
    next: Annotated[str, doc("Pass this as `cursor` to continue after these events, now or later.", "13")]
    more: Annotated[bool, doc("Whether more events are stored already.", False)]


class Feed(Struct, frozen=True):
    """Events of a tenant, oldest first."""

    events: Annotated[list[Event], doc("Events, oldest first.")]
    next: Annotated[str, doc("Pass this as `cursor` to continue after these events, now or later.", Example.CURSOR)]
    more: Annotated[bool, doc("Whether more events are stored already.", False)]
