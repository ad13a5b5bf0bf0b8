"""Checks the invariants of a live database: every rule of sql/verify/, in one snapshot.

A rule finds no row on a consistent database. A row that it finds is a bug, or the trace of a person who changed the
database by hand. Rows show ids and numbers, never a token or user text.

Missing until their tables exist: deliveries (X3, X4), schedules (S4). No rule can check that bytes match their file's
digest, or that an API key was used after its expiry (A2).
"""

from callsheet.store.verify.rule_check import (
    SLICE_ROWS,
    SWEPT_WITHIN_SECONDS,
    Progress,
    RuleResult,
    Violation,
    check,
    check_rules,
    find_violations,
)
from callsheet.store.verify.rule_files import ROWS_SHOWN_MAX, Rule, rules, select_rules
from callsheet.store.verify.violation_report import as_json, report

__all__ = [
    "ROWS_SHOWN_MAX",
    "SLICE_ROWS",
    "SWEPT_WITHIN_SECONDS",
    "Progress",
    "Rule",
    "RuleResult",
    "Violation",
    "as_json",
    "check",
    "check_rules",
    "find_violations",
    "report",
    "rules",
    "select_rules",
]
