"""The audit log: who changed settings, moved credits by hand, or acted as an admin.

A decorated decision writes its audit line in the same transaction, and only if it changed something. The lines of a
tenant are a chain. `chain_lines` runs once, after all decisions of a batch, so that the lock on a chain is the last
one and is held for as short as possible.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import UNSET

from callsheet.core.model.audit_chain import append_to_chain
from callsheet.core.model.commands import Command
from callsheet.core.model.rows import Audit, AuditHead
from callsheet.core.prefetched_facts import Needs
from callsheet.core.working_set import WorkingSet, encode

Decide = Callable[[WorkingSet, Any], Any]


class AuditSpec(NamedTuple):
    """What the audit line of a command contains."""

    action: str
    subject: str
    """The field of the command that names what it is about."""
    fields: tuple[str, ...] = ()
    """Other fields of the command to record. None means not given."""
    nullable_fields: tuple[str, ...] = ()
    """Fields of the command in which None is a value and UNSET means not given."""
    admins_only: bool = False
    """Record the command only if an admin sent it."""


def with_audit(decide: Decide, spec: AuditSpec) -> Decide:
    """Return the decision, extended to append an audit line when it changes something."""

    def decide_and_audit(ws: WorkingSet, command: Any) -> Any:
        answer = decide(ws, command)
        if ws.changed and not (spec.admins_only and command.actor != "admin"):
            _write_audit(ws, command, spec, str(getattr(command, "tenant", None) or getattr(answer, "tenant", "")))
        return answer

    return decide_and_audit


def _write_audit(ws: WorkingSet, command: Command, spec: AuditSpec, tenant: str) -> None:
    if ws.retrying and ws.find(Audit, command.id) is not None:
        return
    data = {name: value for name in spec.fields if (value := getattr(command, name)) is not None}
    data |= {name: value for name in spec.nullable_fields if (value := getattr(command, name)) is not UNSET}
    subject = getattr(command, spec.subject)
    name = subject if isinstance(subject, str) else subject.name
    text = encode(data) if data else None
    ws.append(Audit(command.id, tenant, ws.command_time(), command.requested_by, spec.action, name, text))


def chain_needs(ws: WorkingSet) -> Needs:
    """Return the heads of the chains that the audit lines of the batch extend."""
    needs = Needs()
    needs.update(AuditHead, (line.tenant for line in ws.audit_lines))
    return needs


def chain_lines(ws: WorkingSet) -> None:
    """Give every audit line of the batch its place in the chain of its tenant. The heads must be loaded."""
    lines = ws.audit_lines
    for index, line in enumerate(lines):
        head, lines[index] = append_to_chain(ws.find(AuditHead, line.tenant) or AuditHead(line.tenant), line)
        ws.put(head)
