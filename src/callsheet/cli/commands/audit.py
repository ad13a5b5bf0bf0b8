"""`callsheet audit`: list administrative changes."""

from typing import Annotated

import typer

from callsheet.cli.connection import Server, command
from callsheet.cli.output import as_json, format_time, json_line, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(audit)


def audit(
    server: Server,
    subject: Annotated[str, typer.Option("--subject", help="Only entries about this id or name.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")] = 20,
) -> None:
    """List administrative changes, newest first."""
    with server.client() as client:
        entries = list(client.audit.list(subject=subject, limit=limit))
    if server.json:
        as_json({"entries": entries})
        return
    table(
        ("AT", "BY", "ACTION", "SUBJECT", "TENANT", "DATA"),
        (
            (format_time(e.at), e.by, e.action, e.subject, e.tenant, json_line(e.data) if e.data else "")
            for e in entries
        ),
        empty="There are no audit entries.",
        droppable=("DATA", "TENANT", "BY"),
        wrappable=("DATA",),
    )
