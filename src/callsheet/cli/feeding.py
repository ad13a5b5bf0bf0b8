"""`callsheet events`: everything that happens to a tenant's jobs, as it happens."""

from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.output import INTERRUPTED, Failure, moment, one_line, plain, say, typed
from callsheet.cli.server import Server, command

if TYPE_CHECKING:
    from callsheet.client import Event

_TOLD = ("progress", "message", "code", "reason")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(events)


def events(
    server: Server,
    *,
    after: Annotated[str, typer.Option("--after", help="An event's cursor, or `now` to skip the past.")] = "",
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Only of this type, or how it begins: job. May be repeated.")
    ] = None,
) -> None:
    """Follow what happens to the tenant's jobs, until Ctrl-C.

    With --json, one event a line.
    """
    last = after
    with server.client(patient=True) as client:
        try:
            for event in client.feed(after=after, types=types or ()):
                say(one_line(event) if server.json else _line(event))
                last = event.cursor or last
        except KeyboardInterrupt:
            then = f" --after {last}" if last else ""
            raise Failure(f"To go on here: {typed('events')}{then}", INTERRUPTED, code="interrupted") from None


def _line(event: "Event") -> str:
    data = event.data if isinstance(event.data, dict) else {}
    told = [plain(str(data[name])) for name in _TOLD if data.get(name)]
    return "  ".join([moment(event.at), event.job_id, event.type, *told])
