"""`callsheet events`: stream the events of a tenant's jobs."""

from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.connection import Server, command
from callsheet.cli.output import INTERRUPTED, Failure, format_time, json_line, print_line, shell_command
from callsheet.core.model.terminal_text import sanitize

if TYPE_CHECKING:
    from callsheet.client import Event

_DATA_FIELDS = ("progress", "message", "code", "reason")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(events)


def events(
    server: Server,
    *,
    cursor: Annotated[
        str, typer.Option("--cursor", help="Start after this event cursor, or `now` to skip past events.")
    ] = "",
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only this event type, or a prefix such as `job.`. May be repeated."),
    ] = None,
) -> None:
    """Stream the events of the tenant's jobs, until Ctrl-C.

    With --json, one event per line.
    """
    last_cursor = cursor
    with server.client(wait_for_server=True) as client:
        try:
            for event in client.events.stream(cursor=cursor, types=types or ()):
                print_line(json_line(event) if server.json else _format_event(event))
                last_cursor = event.cursor or last_cursor
        except KeyboardInterrupt:
            resume_option = f" --cursor {last_cursor}" if last_cursor else ""
            raise Failure(
                f"Continue with: {shell_command('events')}{resume_option}", INTERRUPTED, code="interrupted"
            ) from None


def _format_event(event: "Event") -> str:
    data = event.data if isinstance(event.data, dict) else {}
    details = [sanitize(str(data[name])) for name in _DATA_FIELDS if data.get(name)]
    return "  ".join([format_time(event.at), event.job_id, event.type, *details])
