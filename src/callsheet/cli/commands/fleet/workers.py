"""Commands for the fleet: who is here, approve, drain, assign, revoke, rotate."""

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
    """Add the commands of the fleet."""
    app.add_typer(workers)


def list_workers(server: Server, include_deregistered: IncludeOffline = False) -> None:
    """List workers: what they have and hold, when they were heard of."""
    with server.client() as client:
        found = list(client.workers.list(include_deregistered=include_deregistered))
    if server.json:
        as_json({"workers": found})
        return
    table(
        ("WORKER", "STATUS", "KINDS", "HOLDS", "LAST HEARD", "LABELS", "CAPABILITIES"),
        ((w.worker, _format_status(w), ", ".join(w.kinds), _format_load(w), format_time(w.last_seen_at),
        _truncate_fields(w.labels),
          _truncate_fields(w.capabilities)) for w in found),
        empty="There are no workers: start one with `callsheet worker`. The one inside `callsheet up` is not listed.",
        least=("CAPABILITIES", "LABELS", "LAST HEARD", "HOLDS"),
        text=("KINDS",),
    )  # fmt: skip


def show(server: Server, worker: Name) -> None:
    """Show a worker, what its machine has, and the tasks in its hand."""
    with server.client() as client:
        found = client.workers.get(worker)
    if server.json:
        as_json(found)
        return
    starts = pluralize(found.start_count, "time")
    print_line(
        f"{found.worker} is {_format_status(found)}. It started {starts}, last at {format_time(found.started_at)}."
    )
    print_line(f"It offers {', '.join(found.offered_kinds)} and may take {', '.join(found.kinds) or 'nothing'}.")
    for what, mapping in (("Labels", found.labels), ("Capabilities", found.capabilities)):
        if mapping:
            print_line(f"{what}: {_format_fields(mapping)}.")
    table(
        ("TASK", "JOB", "KIND", "TRY", "PROGRESS", "LEASED UNTIL"),
        ((one.task_id, one.job_id, one.kind, one.attempt, f"{one.progress} %", format_time(one.lease_expires_at))
         for one in found.leases),
        empty="It has no work in hand.",
        least=("LEASED UNTIL", "TASK", "TRY"),
        text=("KIND",),
    )  # fmt: skip


def approve(server: Server, worker: Name) -> None:
    """Let a new or a revoked worker take work."""
    _update_worker(server, worker, approved=True)


def drain(
    server: Server, worker: Name, undo: Annotated[bool, typer.Option("--undo", help="Let it take work again.")] = False
) -> None:
    """Let a worker finish what it holds and go."""
    _update_worker(server, worker, draining=not undo)


def assign(
    server: Server,
    worker: Name,
    kinds: Annotated[list[str] | None, typer.Argument(metavar="KIND", help="None is all that it offers.")] = None,
) -> None:
    """Say which of the kinds that a worker offers it may take."""
    _update_worker(server, worker, kinds=kinds or [])


def revoke(server: Server, worker: Name) -> None:
    """Let a worker in no longer; what it holds is given back."""
    with server.client() as client:
        _print_worker(server, client.workers.revoke(worker))


def rotate_token(server: Server, worker: Name) -> None:
    """Give a worker another token, shown this once.

    The old one fails at once.
    """
    with server.client() as client:
        rotated = client.workers.rotate_token(worker)
    if server.json:
        as_json(rotated)
        return
    print_line(f"{rotated.worker} has a new token, shown this once:")
    print_line(rotated.token)


def _update_worker(server: Server, worker: str, **changes: Any) -> None:
    with server.client() as client:
        _print_worker(server, client.workers.update(worker, **changes))


def _print_worker(server: Server, worker: "Worker") -> None:
    if server.json:
        as_json(worker)
        return
    kinds = ", ".join(worker.kinds) or "nothing"
    suffix = {"approved": f" and may take {kinds}", "pending": f"; once it is approved, it may take {kinds}"}
    print_line(f"{worker.worker} is {_format_status(worker)}{suffix.get(worker.status, '')}.")


def _format_status(worker: "Worker") -> str:
    return f"{worker.status}, draining" if worker.draining else worker.status


def _format_load(worker: "Worker") -> str:
    return f"{worker.leases_total}" if worker.concurrency is None else f"{worker.leases_total} of {worker.concurrency}"


def _truncate_fields(mapping: Mapping[str, Any] | None) -> str:
    """Say what a worker noted, as far as a table has room; `workers show` says it all."""
    text = _format_fields(mapping or {})
    return text if len(text) <= _CELL_CHARS_MAX else f"{text[: _CELL_CHARS_MAX - 1]}…"


def _format_fields(mapping: Mapping[str, Any]) -> str:
    return ", ".join(f"{_format_value(name)}={_format_value(value)}" for name, value in mapping.items())


def _format_value(value: Any) -> str:
    """Say a text as it is, and anything else as JSON: what a machine says of itself commands no terminal."""
    return value if isinstance(value, str) and value.isprintable() else json_line(value)


command(workers, is_default=True)(list_workers)
command(workers, "list")(list_workers)
command(workers)(show)
command(workers)(approve)
command(workers)(drain)
command(workers)(assign)
command(workers)(revoke)
command(workers)(rotate_token)
