"""The audit log: a decision about the house, money by hand, or by an admin writes down who made it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from callsheet.core.commands import Command
from callsheet.core.rows import Audit
from callsheet.core.working import WorkingSet, encode

Decide = Callable[[WorkingSet, Any], Any]


class Line(NamedTuple):
    """What a command's audit line says."""

    action: str
    subject: str
    """The field of the command that names what it is about."""
    fields: tuple[str, ...] = ()
    """What else of the command is worth keeping."""
    admins_only: bool = False
    """Users do this all day; only an admin's doing it to them is written down."""


def audited(decide: Decide, line: Line) -> Decide:
    """Let a decision that changed something leave its line."""

    def decided(ws: WorkingSet, command: Any) -> Any:
        answer = decide(ws, command)
        if ws.changed and not (line.admins_only and command.actor != "admin"):
            _write(ws, command, line, str(getattr(command, "tenant", None) or getattr(answer, "tenant", "")))
        return answer

    return decided


def _write(ws: WorkingSet, command: Command, line: Line, tenant: str) -> None:
    if ws.again and ws.find(Audit, command.id) is not None:
        return
    data = {name: value for name in line.fields if (value := getattr(command, name)) is not None}
    subject = getattr(command, line.subject)
    name = subject if isinstance(subject, str) else subject.name
    ws.append(Audit(command.id, tenant, ws.now, command.by, line.action, name, encode(data) if data else None))
