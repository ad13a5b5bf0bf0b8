"""Proof on a live database that nothing drifted: every rule of sql/verify.sql, read in one moment.

A rule is a query that finds nothing on a sound database. A row that it finds is a bug report, never a normal path;
it shows ids and numbers, never a token or a text of a user.

Not here yet, because their tables are not: deliveries (X3, X4), schedules (S4), the audit chain (A3). Whether bytes are
what their file's digest says, and whether a key was used after its end (A2), no query can tell.
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
    "sqlite": {"json": "text", "real": "REAL"},
    "postgresql": {"json": "jsonb", "real": "double precision"},
}
_COLUMNS_PREFIX = "shows: "


class Violation(msgspec.Struct, frozen=True):
    """A broken rule: its name and words, how many rows break it, and the first of them."""

    name: str
    rule: str
    count: int
    rows: list[dict[str, Any]]


class Rule(NamedTuple):
    """One block of verify.sql, ready for one database."""

    name: str
    words: str
    columns: tuple[str, ...]
    text: str

    @property
    def time_dependent(self) -> bool:
        """Say whether the rule is about what must have happened by now."""
        return _BEFORE_PLACEHOLDER in self.text


def check(
    connection: Connection, now: int | None = None, swept_within_seconds: int = SWEPT_WITHIN_SECONDS,
    iterate: Callable[[Sequence[Rule]], Iterable[Rule]] = iter,
) -> list[Violation]:  # fmt: skip
    """Return what is broken, seen in one moment; without `now`, the timely rules are left out.

    `each` goes through the rules, for whoever wants to see how far it is.
    """
    database = _database_name(connection)
    before = None if now is None else now - swept_within_seconds * SECOND
    connection.run(_SNAPSHOT[database])
    if database == POSTGRESQL.name:
        connection.run("SET LOCAL enable_seqscan = on")  # here whole tables are read, and not rows by their keys
    try:
        return find_violations(connection, iterate(rules(database)), before)
    finally:
        connection.rollback()


def find_violations(connection: Connection, selected: Iterable[Rule], before: int | None = None) -> list[Violation]:
    """Return which of some rules are broken, as a transaction sees it that the caller has opened."""
    return [found for rule in selected for found in _check_rule(connection, rule, before)]


def report(violations: Iterable[Violation]) -> str:
    """Write violations down for a person."""
    lines = [line for violation in violations for line in _report_lines(violation)]
    return "\n".join(lines) if lines else "Every rule holds."


def as_json(violations: Iterable[Violation]) -> str:
    """Write violations down for a program."""
    found = list(violations)
    return msgspec.json.encode({"sound": not found, "violations": found}).decode()


@lru_cache
def rules(database: str) -> tuple[Rule, ...]:
    """Return all rules in one database's words."""
    dialect = dialect_of(database)
    own_words = _SUBSTITUTIONS[database] | {
        "before": _BEFORE_PLACEHOLDER,
        "moves": ", ".join(f"('{kind}', '{move}', '{to}', '{actor}')" for kind, move, to, actor in _legal_moves()),
        **{f"{machine.entity}_ended": _sql_list(machine.terminal) for machine in MACHINES},
    }
    words = Dialect(dialect.name, {**dialect.words, **own_words})
    return tuple(_rule(name, words.render(body)) for name, body in queries("verify.sql").items())


def _database_name(connection: Connection) -> str:
    """Ask the database which one it is: only PostgreSQL knows this function."""
    try:
        connection.run("SELECT version()")
    except StoreError:
        return SQLITE.name
    return POSTGRESQL.name


def _rule(name: str, body: str) -> Rule:
    words, columns, query = (part.removeprefix("-- ") for part in body.split("\n", 2))
    first = f"SELECT *, count(*) OVER () FROM ({query}) AS bad ORDER BY 1, 2 LIMIT {ROWS_SHOWN_MAX}"  # noqa: S608 - our own file
    return Rule(name, words, tuple(columns.removeprefix(_COLUMNS_PREFIX).split(", ")), first)


def _legal_moves() -> Iterator[tuple[str, str, str, str]]:
    """Yield each legal move as the event that tells it: type, source, target, actor."""
    for machine in MACHINES:
        for move in machine.moves:
            if move.event in EVENT_NAMES:
                kind = f"{machine.entity}.{EVENT_NAMES[move.event]}"
                yield from ((kind, move.source, move.target, actor) for actor in move.actors)
    # Planning is the system's; the fact of an added stage names the person who asked for it.
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
        yield Violation(rule.name, rule.words, int(found[0][-1]), rows)


def _report_lines(violation: Violation) -> Iterator[str]:
    rows = "1 row" if violation.count == 1 else f"{violation.count} rows"
    yield f"{violation.name} is broken by {rows}: {violation.rule}"
    for row in violation.rows:
        yield "    " + " ".join(f"{name}={value}" for name, value in row.items())
    if violation.count > len(violation.rows):
        yield f"    and {violation.count - len(violation.rows)} more"
