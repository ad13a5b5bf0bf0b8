"""`callsheet workers`: list, approve, drain, assign and revoke workers, and rotate their tokens."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callsheet.cli.connection import Server, command
from callsheet.cli.output import as_json, create_group, format_time, json_line, print_line, table
from callsheet.core.model.plural import pluralize

if TYPE_CHECKING:
    from callsheet.client import Worker

workers = create_group("workers", help="List, approve, drain and revoke workers.", invoke_without_command=True)
Name = Annotated[str, typer.Argument(metavar="WORKER", help="A worker's name.")]
IncludeOffline = Annotated[bool, typer.Option("--all", help="Include offline workers.")]
_CELL_CHARS_MAX = 60


def register(app: typer.Typer) -> None:
    """Add the group `workers`."""
    app.add_typer(workers)


def list_workers(server: Server, include_deregistered: IncludeOffline = False) -> None:
    """List workers with their kinds, load and last heartbeat."""
    with server.client() as client:
        registered = list(client.workers.list(include_deregistered=include_deregistered))
    if server.json:
        as_json({"workers": registered})
        return
    table(
        ("WORKER", "STATUS", "KINDS", "TASKS", "LAST SEEN", "LABELS", "CAPABILITIES"),
        ((w.worker, _format_status(w), ", ".join(w.kinds), _format_load(w), format_time(w.last_seen_at),
        _truncate_fields(w.labels),
          _truncate_fields(w.capabilities)) for w in registered),
        empty="There are no workers. Start one with `callsheet worker`. The one inside `callsheet up` is not listed.",
        droppable=("CAPABILITIES", "LABELS", "LAST SEEN", "TASKS"),
        wrappable=("KINDS",),
    )  # fmt: skip


def show(server: Server, worker: Name) -> None:
    """Show a worker, its capabilities and its running tasks."""
    with server.client() as client:
        info = client.workers.get(worker)
    if server.json:
        as_json(info)
        return
    starts = pluralize(info.start_count, "time")
    print_line(f"{info.worker} is {_format_status(info)}. It started {starts}, last at {format_time(info.started_at)}.")
    print_line(f"It offers {', '.join(info.offered_kinds)} and may run {', '.join(info.kinds) or 'nothing'}.")
    for title, mapping in (("Labels", info.labels), ("Capabilities", info.capabilities)):
        if mapping:
            print_line(f"{title}: {_format_fields(mapping)}.")
    table(
        ("TASK", "JOB", "KIND", "ATTEMPT", "PROGRESS", "LEASED UNTIL"),
        ((lease.task_id, lease.job_id, lease.kind, lease.attempt, f"{lease.progress} %",
          format_time(lease.lease_expires_at)) for lease in info.leases),
        empty="It has no running tasks.",
        droppable=("LEASED UNTIL", "TASK", "ATTEMPT"),
        wrappable=("KIND",),
    )  # fmt: skip


def approve(server: Server, worker: Name) -> None:
    """Approve a new or a revoked worker."""
    _update_worker(server, worker, approved=True)


def drain(
    server: Server, worker: Name, undo: Annotated[bool, typer.Option("--undo", help="Stop draining.")] = False
) -> None:
    """Drain a worker: it finishes its tasks and exits."""
    _update_worker(server, worker, draining=not undo)


def assign(
    server: Server,
    worker: Name,
    kinds: Annotated[
        list[str] | None, typer.Argument(metavar="KIND", help="Kinds to assign. Default: all that it offers.")
    ] = None,
) -> None:
    """Limit a worker to some of the kinds that it offers."""
    _update_worker(server, worker, kinds=kinds or [])


def revoke(server: Server, worker: Name) -> None:
    """Revoke a worker's access; its tasks are requeued."""
    with server.client() as client:
        _print_worker(server, client.workers.revoke(worker))


def rotate_token(server: Server, worker: Name) -> None:
    """Replace a worker's token. The new one is shown only once.

    The old one is rejected immediately.
    """
    with server.client() as client:
        rotated = client.workers.rotate_token(worker)
    if server.json:
        as_json(rotated)
        return
    print_line(f"{rotated.worker} has a new token, shown only once:")
    print_line(rotated.token)


def _update_worker(server: Server, worker: str, **changes: Any) -> None:
    with server.client() as client:
        _print_worker(server, client.workers.update(worker, **changes))


def _print_worker(server: Server, worker: "Worker") -> None:
    if server.json:
        as_json(worker)
        return
    kinds = ", ".join(worker.kinds) or "nothing"
    suffix = {"approved": f" and may run {kinds}", "pending": f"; once it is approved, it may run {kinds}"}
    print_line(f"{worker.worker} is {_format_status(worker)}{suffix.get(worker.status, '')}.")


def _format_status(worker: "Worker") -> str:
    return f"{worker.status}, draining" if worker.draining else worker.status


def _format_load(worker: "Worker") -> str:
    return f"{worker.leases_total}" if worker.concurrency is None else f"{worker.leases_total} of {worker.concurrency}"


def _truncate_fields(mapping: Mapping[str, Any] | None) -> str:
    """Format fields for a table cell, truncated; `workers show` prints all of them."""
    text = _format_fields(mapping or {})
    return text if len(text) <= _CELL_CHARS_MAX else f"{text[: _CELL_CHARS_MAX - 1]}…"


def _format_fields(mapping: Mapping[str, Any]) -> str:
    return ", ".join(f"{_format_value(name)}={_format_value(value)}" for name, value in mapping.items())


def _format_value(value: Any) -> str:
    """Return printable text unchanged, and other values as JSON, which has no terminal control characters."""
    return value if isinstance(value, str) and value.isprintable() else json_line(value)


command(workers, is_default=True)(list_workers)
command(workers, "list")(list_workers)
command(workers)(show)
command(workers)(approve)
command(workers)(drain)
command(workers)(assign)
command(workers)(revoke)
command(workers)(rotate_token)
