"""Checks rules slice by slice, in one snapshot of the database."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from callsheet.core.model.clock import SECOND
from callsheet.store.connection import Connection, Rows, StoreError
from callsheet.store.dialect import POSTGRESQL, SQLITE
from callsheet.store.verify.audit_chain import find_chain_faults
from callsheet.store.verify.rule_files import ROWS_SHOWN_MAX, CodePart, Rule, rules
from callsheet.store.verify.slices import Slices

SLICE_ROWS = 10_000
"""How many rows of a table a query checks at once."""
SWEPT_WITHIN_SECONDS = 60
_SNAPSHOT = {"sqlite": "BEGIN", "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"}
PLAN_SETTINGS = (
    "enable_seqscan = off", "enable_hashjoin = off", "enable_mergejoin = off", "enable_bitmapscan = off",
    "enable_material = off", "jit = off", "max_parallel_workers_per_gather = 0",
)  # fmt: skip
"""With these settings, PostgreSQL reads a slice and what belongs to it by index, although it does not know how many
rows a slice has."""

Progress = Callable[[Rule, int, int], None]
"""Receives a rule, how many of its slices are done, and how many it has."""


class Violation(msgspec.Struct, frozen=True):
    """A broken rule: its name and text, the number of rows that break it, and the first of these rows."""

    name: str
    rule: str
    count: int
    rows: list[dict[str, Any]]


class RuleResult(msgspec.Struct, frozen=True):
    """The check of one rule: how many slices it had, how long it took, and how many rows break the rule."""

    name: str
    rule: str
    seconds: float
    slices: int
    count: int
    rows: list[dict[str, Any]]

    @property
    def violation(self) -> Violation | None:
        """The violation that the check has found, if any."""
        return Violation(self.name, self.rule, self.count, self.rows) if self.count else None


def ignore_progress(rule: Rule, done: int, total: int) -> None:
    """Do nothing."""


def check(
    connection: Connection, now: int | None = None, swept_within_seconds: int = SWEPT_WITHIN_SECONDS
) -> list[Violation]:
    """Return all violations in one snapshot. Without `now`, time-dependent rules are skipped."""
    database = database_name(connection)
    before = None if now is None else now - swept_within_seconds * SECOND
    results = check_rules(connection, rules(database), before)
    return [violation for result in results if (violation := result.violation)]


def check_rules(
    connection: Connection, selected: Sequence[Rule], before: int | None,
    progress: Progress = ignore_progress, slice_rows: int = SLICE_ROWS,
) -> list[RuleResult]:  # fmt: skip
    """Check some rules in one snapshot. Without `before`, time-dependent rules are skipped."""
    database = database_name(connection)
    connection.run(_SNAPSHOT[database])
    try:
        for setting in PLAN_SETTINGS if database == POSTGRESQL.name else ():
            connection.run(f"SET LOCAL {setting}")
        return list(_Check(connection, before, progress, slice_rows).results(selected))
    finally:
        connection.rollback()


def find_violations(
    connection: Connection, selected: Iterable[Rule], before: int | None = None, slice_rows: int = SLICE_ROWS
) -> list[Violation]:
    """Check some rules in the transaction that the caller has opened."""
    results = _Check(connection, before, ignore_progress, slice_rows).results(selected)
    return [violation for result in results if (violation := result.violation)]


def database_name(connection: Connection) -> str:
    """Detect the database: only PostgreSQL has the function version()."""
    try:
        connection.run("SELECT version()")
    except StoreError:
        return SQLITE.name
    return POSTGRESQL.name


class _Findings:
    """What the check of one rule has found so far."""

    def __init__(self, rule: Rule, total: int, progress: Progress) -> None:
        self.count = 0
        self.rows: list[dict[str, Any]] = []
        self._rule = rule
        self._total = total
        self._done = 0
        self._progress = progress
        progress(rule, 0, total)

    def add(self, rows: Rows) -> None:
        """Add rows that break the rule. The last column of each is their number, if only the first ones are given."""
        for row in rows[: ROWS_SHOWN_MAX - len(self.rows)]:
            self.rows.append(dict(zip(self._rule.columns, list(row)[:-1], strict=True)))
        self.count += int(rows[0][-1]) if rows else 0

    def finish_slice(self) -> None:
        self._done += 1
        self._progress(self._rule, self._done, self._total)


class _Check:
    """One check of several rules."""

    def __init__(self, connection: Connection, before: int | None, progress: Progress, slice_rows: int) -> None:
        self._connection = connection
        self._before = before
        self._progress = progress
        self._slice_rows = slice_rows
        self._slices = Slices(connection, slice_rows)

    def results(self, selected: Iterable[Rule]) -> Iterator[RuleResult]:
        for rule in selected:
            if self._before is not None or not rule.time_dependent:
                yield self._check_rule(rule)

    def _check_rule(self, rule: Rule) -> RuleResult:
        start = time.monotonic()
        total = sum(self._slices.count(part.key) if part.key else 1 for part in rule.parts)
        findings = _Findings(rule, total, self._progress)
        for part in rule.parts:
            if isinstance(part, CodePart):
                for fault in find_chain_faults(self._connection, self._slice_rows, findings.finish_slice):
                    findings.add([(*fault, 1)])
                continue
            for rows in self._slices.run(part, {"before": self._before} if rule.time_dependent else {}):
                findings.add(rows)
                findings.finish_slice()
        seconds = round(time.monotonic() - start, 3)
        return RuleResult(rule.name, rule.description, seconds, total, findings.count, findings.rows)
