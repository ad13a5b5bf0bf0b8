"""The rules of sql/verify/: their format, rendered for one database.

Each block of a file is one rule. Its first comment is the rule, its second names the columns of the rows that break
it: ids and numbers, never a secret. Then come the parts of the rule:

- `-- slices: task.id`, and a query. The query runs once per slice of that column, which must be the first of an index.
  It names the rows of a slice with `{slice t.id}`, and reaches all other tables by an index, so that a slice takes the
  same time whatever the size of the database. A partial index needs its condition: `-- slices: entry.job_id WHERE …`.
- `-- slices: none`, and a query that reads a table once.
- `-- code: audit.id`: the rule is code that reads that table, because SQL cannot express it.

`{job_ended}`, `{stage_ended}` and `{task_ended}` are terminal statuses, `{moves}` the legal moves. `:before` is the
time before which everything that was due must have been processed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from callsheet.core.decisions.transitions import EVENT_NAMES
from callsheet.core.model.state_machines import MACHINES
from callsheet.store.dialect import Dialect, queries
from callsheet.store.migrate import dialect_of

ROWS_SHOWN_MAX = 5
_SUBSTITUTIONS = {
    "sqlite": {"json": "text", "real": "REAL", "json_values": "json_each"},
    "postgresql": {"json": "jsonb", "real": "double precision", "json_values": "jsonb_each_text"},
}
_COLUMNS_PREFIX = "-- columns: "
_PART = re.compile(r"^-- (slices|code): (.+)$", re.MULTILINE)
_KEY = re.compile(r"(\w+)\.(\w+)(?: WHERE (.+))?")
_SLICE = re.compile(r"\{slice ([\w.]+)\}")


class SliceKey(NamedTuple):
    """The column of a table by which it is divided into slices, and the condition of its partial index."""

    table: str
    column: str
    condition: str


class QueryPart(NamedTuple):
    """A query for one slice of a table, or for a whole table if it has no key."""

    key: SliceKey | None
    text: str


class CodePart(NamedTuple):
    """A part of a rule that is code. It reads its table in pages of the size of a slice."""

    key: SliceKey


class Rule(NamedTuple):
    """One block of sql/verify/, rendered for one database."""

    name: str
    description: str
    columns: tuple[str, ...]
    parts: tuple[QueryPart | CodePart, ...]

    @property
    def time_dependent(self) -> bool:
        """Whether the rule compares with the current time."""
        return any(":before" in part.text for part in self.parts if isinstance(part, QueryPart))


@lru_cache
def rules(database: str) -> tuple[Rule, ...]:
    """Return all rules, rendered for one database."""
    dialect = dialect_of(database)
    verify_substitutions = _SUBSTITUTIONS[database] | {
        "moves": ", ".join(f"('{kind}', '{move}', '{to}', '{actor}')" for kind, move, to, actor in _legal_moves()),
        **{f"{machine.entity}_ended": _sql_list(machine.terminal) for machine in MACHINES},
    }
    rendered = Dialect(dialect.name, {**dialect.substitutions, **verify_substitutions})
    return tuple(_rule(name, body, rendered) for name, body in queries("verify").items())


def select_rules(database: str, names: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules with these names, or all rules if there are no names."""
    known = {rule.name: rule for rule in rules(database)}
    if unknown := [name for name in names if name not in known]:
        raise LookupError(f"There is no rule {unknown[0]!r}. The rules are {', '.join(sorted(known))}.")
    return tuple(rule for rule in known.values() if not names or rule.name in names)


def _rule(name: str, body: str, dialect: Dialect) -> Rule:
    description, columns, queries_text = body.split("\n", 2)
    marks = _PART.split(queries_text)
    parts = tuple(
        _part(kind, argument, text.strip(), dialect)
        for kind, argument, text in zip(marks[1::3], marks[2::3], marks[3::3], strict=True)
    )
    column_names = tuple(columns.removeprefix(_COLUMNS_PREFIX).split(", "))
    return Rule(name, description.removeprefix("-- "), column_names, parts)


def _part(kind: str, argument: str, text: str, dialect: Dialect) -> QueryPart | CodePart:
    if argument == "none":
        return QueryPart(None, _first_rows(dialect.render(text)))
    if (match := _KEY.fullmatch(argument)) is None:
        raise ValueError(f"cannot read {argument!r}: name a table and its column")
    key = SliceKey(*match.groups(default=""))
    if kind == "code":
        return CodePart(key)
    if not _SLICE.search(text):
        raise ValueError(f"the query does not name the rows of a slice: {text}")
    return QueryPart(key, _first_rows(dialect.render(_SLICE.sub(r"\1 BETWEEN :first AND :last", text))))


def _first_rows(query: str) -> str:
    """Return a query for the number of rows and the first of them. The limit must not change the plan of the query."""
    return (
        f"WITH bad AS MATERIALIZED ({query}) "  # noqa: S608 - no user input
        f"SELECT *, (SELECT count(*) FROM bad) FROM bad ORDER BY 1, 2 LIMIT {ROWS_SHOWN_MAX}"
    )


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
