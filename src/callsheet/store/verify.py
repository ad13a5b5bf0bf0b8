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

from callsheet.core.clock import SECOND
from callsheet.core.machine import MACHINES
from callsheet.core.moves import PAST
from callsheet.store.connection import Connection, StoreError
from callsheet.store.dialect import POSTGRESQL, SQLITE, Dialect, queries
from callsheet.store.migrate import dialect_of

SHOWN_MAX = 5
SWEPT_WITHIN_SECONDS = 60
_TIMELY = "{before}"
_SNAPSHOT = {"sqlite": "BEGIN", "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"}
_WORDS = {"sqlite": {"json": "text", "real": "REAL"}, "postgresql": {"json": "jsonb", "real": "double precision"}}
_SHOWS = "shows: "


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
    shows: tuple[str, ...]
    text: str

    @property
    def timely(self) -> bool:
        """Say whether the rule is about what must have happened by now."""
        return _TIMELY in self.text


def check(
    connection: Connection, now: int | None = None, swept_within_seconds: int = SWEPT_WITHIN_SECONDS,
    each: Callable[[Sequence[Rule]], Iterable[Rule]] = iter,
) -> list[Violation]:  # fmt: skip
    """Return what is broken, seen in one moment; without `now`, the timely rules are left out.

    `each` goes through the rules, for whoever wants to see how far it is.
    """
    database = _database(connection)
    before = None if now is None else now - swept_within_seconds * SECOND
    connection.run(_SNAPSHOT[database])
    if database == POSTGRESQL.name:
        connection.run("SET LOCAL enable_seqscan = on")  # here whole tables are read, and not rows by their keys
    try:
        return broken(connection, each(rules(database)), before)
    finally:
        connection.rollback()


def broken(connection: Connection, some: Iterable[Rule], before: int | None = None) -> list[Violation]:
    """Return which of some rules are broken, as a transaction sees it that the caller has opened."""
    return [found for rule in some for found in _broken(connection, rule, before)]


def report(violations: Iterable[Violation]) -> str:
    """Write violations down for a person."""
    lines = [line for violation in violations for line in _lines(violation)]
    return "\n".join(lines) if lines else "Every rule holds."


def as_json(violations: Iterable[Violation]) -> str:
    """Write violations down for a program."""
    found = list(violations)
    return msgspec.json.encode({"sound": not found, "violations": found}).decode()


@lru_cache
def rules(database: str) -> tuple[Rule, ...]:
    """Return all rules in one database's words."""
    dialect = dialect_of(database)
    own = _WORDS[database] | {
        "before": _TIMELY,
        "moves": ", ".join(f"('{kind}', '{move}', '{to}', '{actor}')" for kind, move, to, actor in _moves()),
        **{f"{machine.entity}_ended": _listed(machine.terminal) for machine in MACHINES},
    }
    words = Dialect(dialect.name, {**dialect.words, **own})
    return tuple(_rule(name, words.fill(body)) for name, body in queries("verify.sql").items())


def _database(connection: Connection) -> str:
    """Ask the database which one it is: only PostgreSQL knows this function."""
    try:
        connection.run("SELECT version()")
    except StoreError:
        return SQLITE.name
    return POSTGRESQL.name


def _rule(name: str, body: str) -> Rule:
    words, shows, query = (part.removeprefix("-- ") for part in body.split("\n", 2))
    first = f"SELECT *, count(*) OVER () FROM ({query}) AS bad ORDER BY 1, 2 LIMIT {SHOWN_MAX}"  # noqa: S608 - our own file
    return Rule(name, words, tuple(shows.removeprefix(_SHOWS).split(", ")), first)


def _moves() -> Iterator[tuple[str, str, str, str]]:
    """Yield each legal move as the event that tells it: type, source, target, actor."""
    for machine in MACHINES:
        for move in machine.moves:
            if move.event in PAST:
                kind = f"{machine.entity}.{PAST[move.event]}"
                yield from ((kind, move.source, move.target, actor) for actor in move.actors)
    # Planning is the system's; the fact of an added stage names the person who asked for it.
    yield from (("stage.added", "new", "created", actor) for actor in ("user", "admin"))


def _listed(statuses: Iterable[str]) -> str:
    return "(" + ", ".join(f"'{status}'" for status in sorted(statuses)) + ")"


def _broken(connection: Connection, rule: Rule, before: int | None) -> Iterator[Violation]:
    text = rule.text
    if rule.timely:
        if before is None:
            return
        text = text.replace(_TIMELY, str(int(before)))
    found = connection.run(text)
    if found:
        rows = [dict(zip(rule.shows, list(row)[:-1], strict=True)) for row in found]
        yield Violation(rule.name, rule.words, int(found[0][-1]), rows)


def _lines(violation: Violation) -> Iterator[str]:
    rows = "1 row" if violation.count == 1 else f"{violation.count} rows"
    yield f"{violation.name} is broken by {rows}: {violation.rule}"
    for row in violation.rows:
        yield "    " + " ".join(f"{name}={value}" for name, value in row.items())
    if violation.count > len(violation.rows):
        yield f"    and {violation.count - len(violation.rows)} more"
