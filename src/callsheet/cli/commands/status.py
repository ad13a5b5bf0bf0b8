"""`callsheet status`: show the number of waiting and running tasks, active jobs and workers."""

import typer

from callsheet.cli.connection import Server, command
from callsheet.cli.output import as_json, format_count, print_line, table


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
    active = (
        f"{format_count(count, is_capped=overview.active_jobs_is_capped[status])} {status}"
        for status, count in overview.active_jobs.items()
    )
    busy = format_count(overview.busy_workers, is_capped=overview.busy_workers_is_capped)
    calls = format_count(overview.provider_calls, is_capped=overview.provider_calls_is_capped)
    overdue = format_count(overview.provider_calls_overdue, is_capped=overview.provider_calls_overdue_is_capped)
    print_line(f"Active jobs: {', '.join(active) or 'none'}. Workers: {overview.workers}, {busy} of them busy.")
    print_line(f"Open streams: {overview.streams}. Provider calls: {calls}, {overdue} of them overdue.\n")
    table(
        ("KIND", "WORKFLOW", "WAITING", "RUNNING"),
        (
            (
                queue.kind,
                queue.workflow,
                format_count(queue.waiting, is_capped=queue.waiting_is_capped),
                format_count(queue.running, is_capped=queue.running_is_capped),
            )
            for queue in overview.queues
        ),
        empty="No tasks are waiting or running.",
        wrappable=("WORKFLOW",),
    )
