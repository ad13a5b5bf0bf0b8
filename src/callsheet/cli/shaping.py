"""Commands that look into one job or change what it is: its input, its events, its notes, its tasks, its deletion."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from callsheet.cli.given import input_of
from callsheet.cli.output import as_json, one_line, say
from callsheet.cli.server import Server
from callsheet.cli.watching import leaving, told
from callsheet.core.counting import counted

if TYPE_CHECKING:
    from callsheet.client import Client, Event

T = TypeVar("T")
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id.")]
Metadata = Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="An object, or @FILE with one.")]
Priority = Annotated[int | None, typer.Option("--priority", help="0 to 100; higher goes first.")]


def delete(server: Server, job_id: JobId) -> None:
    """Delete a job with its files.

    One that has not ended is stopped first.
    """
    with server.client() as client:
        freed = client.delete(job_id)
    if server.json:
        as_json(freed)
        return
    later = " The storage does not answer: its bytes go later." if freed.pending else ""
    say(f"{job_id} is deleted: {counted(freed.bytes, 'byte', verb='is')} free.{later}")


def show_input(server: Server, job_id: JobId) -> None:
    """Print what a job was asked to make, as JSON."""
    with server.client() as client:
        as_json(client.input(job_id))


def events(
    server: Server,
    job_id: JobId,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="And those that come, until it has ended.")] = False,
) -> None:
    """Print what has happened to a job, one event a line."""
    with server.client(patient=follow) as client, leaving(job_id):
        told(client, job_id, client.events(job_id) if follow else _past(client, job_id), json=server.json)


def change(
    server: Server,
    job_id: JobId,
    *,
    priority: Priority = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="name=value; may be repeated. They replace all that it has.")
    ] = None,
    metadata: Metadata = None,
) -> None:
    """Change what may change while a job lives.

    What is left out stays as it is.
    """
    if priority is None and not label and metadata is None:
        raise typer.BadParameter("Say what changes: --priority, --label or --metadata.")
    labels, notes = labels_of(label or []), document_of("--metadata", metadata, dict[str, Any])
    with server.client() as client:
        job = client.change(job_id, priority=priority, labels=labels, metadata=notes)
    if server.json:
        as_json(job)
        return
    named = ", ".join(f"{name}={value}" for name, value in (job.labels or {}).items())
    notes_too = f"metadata {one_line(job.metadata)}" if job.metadata else ""
    said = filter(None, [f"priority {job.priority}", named and f"labels {named}", notes_too])
    say(f"{job.id} has {'; '.join(said)}.")


def add_tasks(
    server: Server,
    job_id: JobId,
    stage: Annotated[str, typer.Argument(help="A stage that has not ended: its number or its name.")],
    *,
    input: Annotated[
        list[str], typer.Option("--input", help="A task's input: JSON, @FILE, name=text or name:=JSON; one task each.")
    ],
) -> None:
    """Add tasks to a stage, one for each --input."""
    inputs = [input_of([word]) for word in input]
    with server.client() as client:
        added = client.add_tasks(job_id, stage, inputs)
    if server.json:
        as_json(added)
        return
    count, first = len(added.task_ids), added.first_task_no
    numbers = f"number {first}" if count == 1 else f"numbers {first} to {first + count - 1}"
    say(f"Stage {added.stage_no} has {counted(count, 'more task')}: {numbers}.")


# -- what is typed


def labels_of(words: list[str]) -> dict[str, str] | None:
    """Read labels."""
    pairs = [word.partition("=") for word in words]
    if any(not name or not sign for name, sign, _ in pairs):
        raise typer.BadParameter("--label takes name=value.")
    return {name: value for name, _, value in pairs} or None


def document_of(option: str, given: str | None, shape: type[T]) -> T | None:
    """Read the JSON of an option, or of the file that it names."""
    if given is None:
        return None
    try:
        return msgspec.json.decode(text_of(given[1:]) if given.startswith("@") else given, type=shape)
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"{option} takes JSON, or @FILE: {error}.") from None


def text_of(name: str) -> str:
    """Read a file; - is standard input."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter(f"The file {name} cannot be read.") from None


def _past(client: "Client", job_id: str) -> Iterator["Event"]:
    """Yield the events up to now: a stream of a job that lives does not end there."""
    last = client.get(job_id).events
    with closing(client.events(job_id)) as stream:
        for event in stream:
            yield event
            if event.seq >= last:
                return
