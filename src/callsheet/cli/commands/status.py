"""`callsheet status`: show the number of waiting and running tasks, active jobs and workers."""

import typer

from callsheet.cli.connection import Server, command
from callsheet.cli.output import as_json, print_line, table
from callsheet.core.model.plural import pluralize


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(status)


def status(server: Server) -> None:
    """Show the queues, active jobs and workers."""
    with server.client() as client:
        overview = client.ops.get()
    if server.json:
        as_json(overview)
        return
    jobs = ", ".join(f"{count} {status}" for status, count in overview.active_jobs.items() if count)
    print_line(f"Active jobs: {jobs or 'none'}. {pluralize(overview.workers, 'worker')}, {overview.busy_workers} busy.")
    print_line(f"{pluralize(overview.streams, 'stream', verb='is')} open.")
    calls = pluralize(overview.provider_calls, "provider call")
    print_line(f"{calls}, {overview.provider_calls_overdue} of them overdue.\n")
    table(
        ("KIND", "WORKFLOW", "WAITING", "RUNNING"),
        ((queue.kind, queue.workflow, queue.waiting, queue.running) for queue in overview.queues),
        empty="No tasks are waiting or running.",
        wrappable=("WORKFLOW",),
    )
