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
        found = list(client.audit.list(subject=subject, limit=limit))
    if server.json:
        as_json({"entries": found})
        return
    table(
        ("AT", "BY", "ACTION", "SUBJECT", "TENANT", "DATA"),
        ((format_time(a.at), a.by, a.action, a.subject, a.tenant, json_line(a.data) if a.data else "") for a in found),
        empty="There are no audit entries.",
        least=("DATA", "TENANT", "BY"),
        text=("DATA",),
    )
