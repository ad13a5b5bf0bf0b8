"""Checks the invariants of a live database: runs every rule of sql/verify/ in one snapshot.

A rule is a query that finds no row on a consistent database. A row that it finds is a bug. Rows show ids and numbers,
never a token or user text.

Missing until their tables exist: deliveries (X3, X4), schedules (S4), the audit chain (A3). No query can check that
bytes match their file's digest, or that an API key was used after its expiry (A2).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from callsheet.core.decisions.transitions import EVENT_NAMES
from callsheet.core.model.clock import SECOND
from callsheet.core.model.state_machines import MACHINES
from callsheet.store.connection import Connection, StoreError
from callsheet.store.dialect import POSTGRESQL, SQLITE, Dialect, queries
from callsheet.store.migrate import dialect_of

ROWS_SHOWN_MAX = 5
SWEPT_WITHIN_SECONDS = 60
_BEFORE_PLACEHOLDER = "{before}"
_SNAPSHOT = {"sqlite": "BEGIN", "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"}
_SUBSTITUTIONS = {
    "sqlite": {"json": "text", "real": "REAL", "json_values": "json_each"},
    "postgresql": {"json": "jsonb", "real": "double precision", "json_values": "jsonb_each_text"},
}
_COLUMNS_PREFIX = "columns: "


class Violation(msgspec.Struct, frozen=True):
    """A broken rule: its name and text, the number of rows that break it, and the first of these rows."""

    name: str
    rule: str
    count: int
    rows: list[dict[str, Any]]


class Rule(NamedTuple):
    """One block of sql/verify/, rendered for one database."""

    name: str
    description: str
    columns: tuple[str, ...]
    text: str

    @property
    def time_dependent(self) -> bool:
        """Whether the rule compares with the current time."""
        return _BEFORE_PLACEHOLDER in self.text


def check(
    connection: Connection, now: int | None = None, swept_within_seconds: int = SWEPT_WITHIN_SECONDS,
    iterate: Callable[[Sequence[Rule]], Iterable[Rule]] = iter,
) -> list[Violation]:  # fmt: skip
    """Return all violations in one snapshot. Without `now`, time-dependent rules are skipped.

    `iterate` wraps the sequence of rules, for a progress bar.
    """
    database = _database_name(connection)
    before = None if now is None else now - swept_within_seconds * SECOND
    connection.run(_SNAPSHOT[database])
    if database == POSTGRESQL.name:
        connection.run("SET LOCAL enable_seqscan = on")  # rules read whole tables, unlike the queries of the engine
    try:
        return find_violations(connection, iterate(rules(database)), before)
    finally:
        connection.rollback()


def find_violations(connection: Connection, selected: Iterable[Rule], before: int | None = None) -> list[Violation]:
    """Check some rules in the transaction that the caller has opened."""
    return [found for rule in selected for found in _check_rule(connection, rule, before)]


def report(violations: Iterable[Violation]) -> str:
    """Format violations as text."""
    lines = [line for violation in violations for line in _report_lines(violation)]
    return "\n".join(lines) if lines else "Every rule holds."


def as_json(violations: Iterable[Violation]) -> str:
    """Format violations as JSON."""
    found = list(violations)
    return msgspec.json.encode({"sound": not found, "violations": found}).decode()


@lru_cache
def rules(database: str) -> tuple[Rule, ...]:
    """Return all rules, rendered for one database."""
    dialect = dialect_of(database)
    verify_substitutions = _SUBSTITUTIONS[database] | {
        "before": _BEFORE_PLACEHOLDER,
        "moves": ", ".join(f"('{kind}', '{move}', '{to}', '{actor}')" for kind, move, to, actor in _legal_moves()),
        **{f"{machine.entity}_ended": _sql_list(machine.terminal) for machine in MACHINES},
    }
    rendered = Dialect(dialect.name, {**dialect.substitutions, **verify_substitutions})
    return tuple(_rule(name, rendered.render(body)) for name, body in queries("verify").items())


def _database_name(connection: Connection) -> str:
    """Detect the database: only PostgreSQL has the function version()."""
    try:
        connection.run("SELECT version()")
    except StoreError:
        return SQLITE.name
    return POSTGRESQL.name


def _rule(name: str, body: str) -> Rule:
    description, columns, query = (part.removeprefix("-- ") for part in body.split("\n", 2))
    first = f"SELECT *, count(*) OVER () FROM ({query}) AS bad ORDER BY 1, 2 LIMIT {ROWS_SHOWN_MAX}"  # noqa: S608 - no user input
    return Rule(name, description, tuple(columns.removeprefix(_COLUMNS_PREFIX).split(", ")), first)


def _legal_moves() -> Iterator[tuple[str, str, str, str]]:
    """Yield each legal move as its event: type, source, target, actor."""
    for machine in MACHINES:
        for move in machine.moves:
            if move.event in EVENT_NAMES:
                kind = f"{machine.entity}.{EVENT_NAMES[move.event]}"
                yield from ((kind, move.source, move.target, actor) for actor in move.actors)
    # The state machine attributes new stages to the system; the event names the user or admin who added the stage.
    yield from (("stage.added", "new", "created", actor) for actor in ("user", "admin"))


def _sql_list(statuses: Iterable[str]) -> str:
    return "(" + ", ".join(f"'{status}'" for status in sorted(statuses)) + ")"


def _check_rule(connection: Connection, rule: Rule, before: int | None) -> Iterator[Violation]:
    text = rule.text
    if rule.time_dependent:
        if before is None:
            return
        text = text.replace(_BEFORE_PLACEHOLDER, str(int(before)))
    found = connection.run(text)
    if found:
        rows = [dict(zip(rule.columns, list(row)[:-1], strict=True)) for row in found]
        yield Violation(rule.name, rule.description, int(found[0][-1]), rows)


def _report_lines(violation: Violation) -> Iterator[str]:
    rows = "1 row" if violation.count == 1 else f"{violation.count} rows"
    yield f"{violation.name} is broken by {rows}: {violation.rule}"
    for row in violation.rows:
        yield "    " + " ".join(f"{name}={value}" for name, value in row.items())
    if violation.count > len(violation.rows):
        yield f"    and {violation.count - len(violation.rows)} more"
