"""Faults in the audit log, each with the chain, the line and the problem that rule A3 must name."""

from typing import NamedTuple


class AuditFault(NamedTuple):
    """A change of the audit log by hand."""

    statements: str
    line: int
    problem: str
    tenant: str = "acme"


_FORGED_LINE = "SELECT 'forged', tenant, at, actor, action, subject, data, {0}, digest FROM audit"

AUDIT_FAULTS = {
    "an edited line": AuditFault("UPDATE audit SET subject = 'eve' WHERE tenant = 'acme' AND seq = 3", 3, "edited"),
    "an edited time": AuditFault("UPDATE audit SET at = at + 1 WHERE tenant = 'acme' AND seq = 1", 1, "edited"),
    "an edited digest": AuditFault("UPDATE audit SET digest = 'x' WHERE tenant = 'acme' AND seq = 2", 2, "edited"),
    "an edited line of the operator": AuditFault(
        "UPDATE audit SET actor = 'eve' WHERE tenant = '' AND seq = 2", 2, "edited", ""
    ),
    "a line deleted in the middle": AuditFault("DELETE FROM audit WHERE tenant = 'acme' AND seq = 3", 3, "missing"),
    "the first line deleted": AuditFault("DELETE FROM audit WHERE tenant = 'acme' AND seq = 1", 1, "missing"),
    "the last lines deleted": AuditFault("DELETE FROM audit WHERE tenant = 'acme' AND seq > 4", 5, "missing"),
    "all lines deleted": AuditFault("DELETE FROM audit WHERE tenant = 'acme'", 1, "missing"),
    "two lines exchanged": AuditFault(
        "UPDATE audit SET seq = 7 - seq WHERE tenant = 'acme' AND seq IN (3, 4)", 3, "reordered"
    ),
    "a line inserted in the middle": AuditFault(
        "UPDATE audit SET seq = seq + 1 WHERE tenant = 'acme' AND seq > 2;"
        "UPDATE audit_head SET seq = seq + 1 WHERE tenant = 'acme';"
        f"INSERT INTO audit {_FORGED_LINE.replace('{0}', '3')} WHERE tenant = 'acme' AND seq = 2",
        3, "reordered",
    ),
    "a line inserted twice": AuditFault(
        f"INSERT INTO audit {_FORGED_LINE.replace('{0}', '2')} WHERE tenant = 'acme' AND seq = 2", 2, "inserted"
    ),
    "the head set back": AuditFault("UPDATE audit_head SET seq = 2 WHERE tenant = 'acme'", 3, "inserted"),
    "a line moved to another tenant": AuditFault(
        "UPDATE audit SET tenant = 'missing' WHERE tenant = 'acme' AND seq = 2", 2, "missing"
    ),
    "the head deleted": AuditFault("DELETE FROM audit_head WHERE tenant = 'acme'", 0, "head"),
    "the whole chain deleted": AuditFault(
        "DELETE FROM audit WHERE tenant = 'acme'; DELETE FROM audit_head WHERE tenant = 'acme'", 0, "head"
    ),
}  # fmt: skip
AUDIT_LOG = [("A3", fault.statements) for fault in AUDIT_FAULTS.values()]
