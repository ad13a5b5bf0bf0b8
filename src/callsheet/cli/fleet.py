"""Commands for the fleet: who is here, approve, drain, assign, revoke, rotate."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callsheet.cli.output import as_json, group, moment, one_line, say, table
from callsheet.cli.server import Server, command
from callsheet.core.counting import counted

if TYPE_CHECKING:
    from callsheet.client import Worker

workers = group("workers", help="Workers: who is here, what they hold, what they may do.", invoke_without_command=True)
Name = Annotated[str, typer.Argument(metavar="WORKER", help="A worker's name.")]
Gone = Annotated[bool, typer.Option("--gone", help="Show those that have gone, too.")]
_CELL_CHARS_MAX = 60


def register(app: typer.Typer) -> None:
    """Add the commands of the fleet."""
    app.add_typer(workers)


def list_workers(server: Server, gone: Gone = False) -> None:
    """List workers: what they have and hold, when they were heard of."""
    with server.client() as client:
        found = list(client.workers(gone=gone))
    if server.json:
        as_json({"workers": found})
        return
    table(
        ("WORKER", "STATUS", "KINDS", "HOLDS", "LAST HEARD", "LABELS", "CAPABILITIES"),
        ((w.worker, _status(w), ", ".join(w.kinds), _holds(w), moment(w.seen_at), _cell(w.labels),
          _cell(w.capabilities)) for w in found),
        empty="There are no workers: start one with `callsheet work`. The one inside `callsheet up` is not listed.",
        least=("CAPABILITIES", "LABELS", "LAST HEARD", "HOLDS"),
        text=("KINDS",),
    )  # fmt: skip


def show(server: Server, worker: Name) -> None:
    """Show a worker, what its machine has, and the tasks in its hand."""
    with server.client() as client:
        found = client.worker(worker)
    if server.json:
        as_json(found)
        return
    starts = counted(found.starts, "time")
    say(f"{found.worker} is {_status(found)}. It started {starts}, last at {moment(found.started_at)}.")
    say(f"It offers {', '.join(found.offered)} and may take {', '.join(found.kinds) or 'nothing'}.")
    for what, notes in (("Labels", found.labels), ("Capabilities", found.capabilities)):
        if notes:
            say(f"{what}: {_fields(notes)}.")
    table(
        ("TASK", "JOB", "KIND", "TRY", "PROGRESS", "LEASED UNTIL"),
        ((one.task_id, one.job_id, one.kind, one.attempt, f"{one.progress} %", moment(one.lease_expires_at))
         for one in found.leases),
        empty="It has no work in hand.",
        least=("LEASED UNTIL", "TASK", "TRY"),
        text=("KIND",),
    )  # fmt: skip


def approve(server: Server, worker: Name) -> None:
    """Let a new or a revoked worker take work."""
    _change(server, worker, approved=True)


def drain(
    server: Server, worker: Name, undo: Annotated[bool, typer.Option("--undo", help="Let it take work again.")] = False
) -> None:
    """Let a worker finish what it holds and go."""
    _change(server, worker, draining=not undo)


def assign(
    server: Server,
    worker: Name,
    kinds: Annotated[list[str] | None, typer.Argument(metavar="KIND", help="None is all that it offers.")] = None,
) -> None:
    """Say which of the kinds that a worker offers it may take."""
    _change(server, worker, kinds=kinds or [])


def revoke(server: Server, worker: Name) -> None:
    """Let a worker in no longer; what it holds is given back."""
    with server.client() as client:
        _told(server, client.revoke_worker(worker))


def rotate(server: Server, worker: Name) -> None:
    """Give a worker another token, shown this once.

    The old one fails at once.
    """
    with server.client() as client:
        made = client.rotate_worker(worker)
    if server.json:
        as_json(made)
        return
    say(f"{made.worker} has a new token, shown this once:")
    say(made.token)


def _change(server: Server, worker: str, **change: Any) -> None:
    with server.client() as client:
        _told(server, client.change_worker(worker, **change))


def _told(server: Server, worker: "Worker") -> None:
    if server.json:
        as_json(worker)
        return
    kinds = ", ".join(worker.kinds) or "nothing"
    then = {"approved": f" and may take {kinds}", "pending": f"; once it is approved, it may take {kinds}"}
    say(f"{worker.worker} is {_status(worker)}{then.get(worker.status, '')}.")


def _status(worker: "Worker") -> str:
    return f"{worker.status}, draining" if worker.draining else worker.status


def _holds(worker: "Worker") -> str:
    return f"{worker.held}" if worker.concurrency is None else f"{worker.held} of {worker.concurrency}"


def _cell(notes: Mapping[str, Any] | None) -> str:
    """Say what a worker noted, as far as a table has room; `workers show` says it all."""
    text = _fields(notes or {})
    return text if len(text) <= _CELL_CHARS_MAX else f"{text[: _CELL_CHARS_MAX - 1]}…"


def _fields(notes: Mapping[str, Any]) -> str:
    return ", ".join(f"{_word(name)}={_word(value)}" for name, value in notes.items())


def _word(value: Any) -> str:
    """Say a text as it is, and anything else as JSON: what a machine says of itself commands no terminal."""
    return value if isinstance(value, str) and value.isprintable() else one_line(value)


command(workers, bare=True)(list_workers)
command(workers, "list")(list_workers)
command(workers)(show)
command(workers)(approve)
command(workers)(drain)
command(workers)(assign)
command(workers)(revoke)
command(workers)(rotate)
