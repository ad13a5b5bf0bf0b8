"""Commands about one job: print its input and events, update it, add tasks, delete it."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from callsheet.cli.connection import Server
from callsheet.cli.output import as_json, json_line, print_line
from callsheet.cli.value_parsers import parse_input
from callsheet.cli.watch import hint_on_interrupt, print_events
from callsheet.core.model.plural import pluralize
from callsheet.core.model.strict_json import decode_json

if TYPE_CHECKING:
    from callsheet.client import Client, Event

T = TypeVar("T")
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Metadata = Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="An object, or @FILE with one.")]
Priority = Annotated[int | None, typer.Option("--priority", help="0 to 100; higher priorities run first.")]


def delete(server: Server, job_id: JobId) -> None:
    """Delete a job with its files.

    An active job is stopped first.
    """
    with server.client() as client:
        deleted = client.jobs.delete(job_id)
    if server.json:
        as_json(deleted)
        return
    pending_note = " The storage does not respond; the bytes are deleted later." if deleted.pending else ""
    print_line(f"{job_id} is deleted: {pluralize(deleted.bytes, 'byte', verb='is')} free.{pending_note}")


def show_input(server: Server, job_id: JobId) -> None:
    """Print a job's input as JSON."""
    with server.client() as client:
        as_json(client.jobs.get_input(job_id))


def events(
    server: Server,
    job_id: JobId,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Also print new events, until the job has ended.")] = False,
) -> None:
    """Print a job's events, one per line."""
    with server.client(wait_for_server=follow) as client, hint_on_interrupt(job_id):
        print_events(
            client, job_id, client.jobs.events(job_id) if follow else _stored_events(client, job_id), json=server.json
        )


def update(
    server: Server,
    job_id: JobId,
    *,
    priority: Priority = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="name=value; may be repeated. Replaces all labels of the job.")
    ] = None,
    metadata: Metadata = None,
) -> None:
    """Update a job's priority, labels or metadata.

    Options that you omit stay unchanged.
    """
    if priority is None and not label and metadata is None:
        raise typer.BadParameter("Nothing to update. Pass --priority, --label or --metadata.")
    labels, metadata_value = parse_labels(label or []), parse_document("--metadata", metadata, dict[str, Any])
    with server.client() as client:
        job = client.jobs.update(job_id, priority=priority, labels=labels, metadata=metadata_value)
    if server.json:
        as_json(job)
        return
    labels_text = ", ".join(f"{name}={value}" for name, value in (job.labels or {}).items())
    metadata_text = f"metadata {json_line(job.metadata)}" if job.metadata else ""
    parts = filter(None, [f"priority {job.priority}", labels_text and f"labels {labels_text}", metadata_text])
    print_line(f"{job.id} has {'; '.join(parts)}.")


def add_tasks(
    server: Server,
    job_id: JobId,
    stage: Annotated[str, typer.Argument(help="Number or name of a stage that has not ended.")],
    *,
    input: Annotated[
        list[str], typer.Option("--input", help="A task's input: JSON, @FILE, name=text or name:=JSON; one task each.")
    ],
) -> None:
    """Add tasks to a stage, one for each --input."""
    inputs = [parse_input([argument]) for argument in input]
    with server.client() as client:
        added = client.jobs.add_tasks(job_id, stage, inputs)
    if server.json:
        as_json(added)
        return
    count, first = len(added.task_ids), added.first_task_no
    numbers = f"number {first}" if count == 1 else f"numbers {first} to {first + count - 1}"
    print_line(f"Stage {added.stage_no} has {pluralize(count, 'more task')}: {numbers}.")


# -- parsing


def parse_labels(arguments: list[str]) -> dict[str, str] | None:
    """Parse labels of the form name=value."""
    pairs = [argument.partition("=") for argument in arguments]
    if any(not name or not sign for name, sign, _ in pairs):
        raise typer.BadParameter("--label is not valid. Write name=value.")
    return {name: value for name, _, value in pairs} or None


def parse_document(option: str, value: str | None, expected_type: type[T]) -> T | None:
    """Parse the JSON of an option, or of the file that it names."""
    if value is None:
        return None
    try:
        return decode_json(read_text_file(value[1:]) if value.startswith("@") else value, expected_type)
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"{option} takes JSON, or @FILE: {error}.") from None


def read_text_file(name: str) -> str:
    """Read a file; - is standard input."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter(f"Cannot read the file {name}. Pass a UTF-8 file that you may read.") from None


def _stored_events(client: "Client", job_id: str) -> Iterator["Event"]:
    """Yield the events up to now, and stop: the stream of an active job would wait for more."""
    last_seq = client.jobs.get(job_id).last_event_seq
    with closing(client.jobs.events(job_id)) as stream:
        for event in stream:
            yield event
            if event.seq >= last_seq:
                return
