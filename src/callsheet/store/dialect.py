"""SQL dialects: the fragments in which SQLite and PostgreSQL differ, and the layout of query parameters.

Placeholders in `.sql` files, such as `{int}`, stand for these fragments. Those of tables are storage options:
`{small_table}` has few rows, `{updated_table}` is updated often, `{growing_table}` grows and is rarely updated,
`{log_table}` is append-only.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple, get_type_hints

from callsheet.core.model.rows import ROWS, Row
from callsheet.core.policy.event_order import TRANSACTION_OFFSET

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COLUMNS = re.compile(r"\{(\w+) (\w+)\}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"IN :(?P<list>\w+)\[\]|:(?P<table>\w+)\[(?P<columns>[^\]]+)\]|(?<!:):(?P<one>[a-z]\w*)")
_TABLES: dict[str, type[Row]] = {row.TABLE: row for row in ROWS}


class Statement(NamedTuple):
    """A query for a driver: its text, and a function that puts its parameters in order."""

    text: str
    layout: Callable[[Mapping[str, Any]], list[Any]]


class Dialect(NamedTuple):
    """The name of a database, and its SQL for each placeholder."""

    name: str
    substitutions: Mapping[str, str]

    def render(self, text: str) -> str:
        """Replace the placeholders of a query."""
        text = _COLUMNS.sub(lambda m: ", ".join(f"{m[2]}.{name}" for name in columns(_TABLES[m[1]])), text)
        return _PLACEHOLDER.sub(lambda m: self.substitutions[m[1]], text)


def _job_filters(labels: str) -> str:
    """Return the filters of every list of jobs. They apply to rows that were read before, so they need no index."""
    return (
        "j.deleted_at IS NULL AND j.created_at >= :since AND (:status = '' OR j.status = :status) "  # noqa: S608 - no user input
        "AND (:phase = '' OR j.waiting_at IS NOT NULL) AND (:workflow = '' OR j.workflow = :workflow) "
        f"AND (:label = '' OR EXISTS (SELECT 1 FROM {labels} l WHERE l.key = :label AND l.value = :label_value))"
    )


SQLITE_CLOCK = "system_clock"
"""A function that every SQLite connection defines: SQL and Python read the same clock."""
_OFFSET = f"(SELECT coalesce(max(i.value::bigint), 0) FROM installation i WHERE i.name = '{TRANSACTION_OFFSET}')"  # noqa: S608 - no user input


def _position_of(transaction: str) -> str:
    """Return the place of a transaction in the order of events."""
    return f"(({transaction}::text)::bigint + {_OFFSET})"


CURRENT_TRANSACTION = _position_of("pg_current_xact_id()")
_OLDEST_TRANSACTION = _position_of("pg_snapshot_xmin(pg_current_snapshot())")
"""The oldest transaction that is still open."""

SQLITE = Dialect(
    "sqlite",
    {
        "int": "INTEGER",
        "small_table": "WITHOUT ROWID, STRICT",
        "updated_table": "WITHOUT ROWID, STRICT",
        "growing_table": "WITHOUT ROWID, STRICT",
        "log_table": "STRICT",
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "transaction_default": "DEFAULT 0",
        "next_transaction": "1",
        "only_postgresql": "--",
        "lock": "",
        "lock_jobs": "",
        "lock_ref": "1",
        "try_lock_ref": "1",
        "feed_order": "e.id",
        "tenant_feed_columns": "tenant",  # followed by the id, which is part of every index of SQLite
        "feed_order_desc": "e.id DESC",
        "after_position": "e.id > :position AND :tx >= 0",
        "events_of_tenant_after": (
            "event e WHERE e.tenant = :tenant AND e.id > :position AND :tx >= 0 ORDER BY e.id LIMIT :count"
        ),
        "not_yet_visible": "e.id > :position AND :tx < 0",  # nothing: with one writer, all committed events are visible
        "now": f"{SQLITE_CLOCK}()",
        "job_filters": _job_filters("json_each(j.labels)"),
    },
)

POSTGRESQL = Dialect(
    "postgresql",
    {
        "int": "bigint",
        "small_table": "",
        "updated_table": "WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05)",
        "growing_table": "",
        "log_table": "",
        "serial": "bigint GENERATED ALWAYS AS IDENTITY",
        "transaction_default": "",  # every insert computes it
        "next_transaction": _position_of("pg_snapshot_xmax(pg_current_snapshot())"),
        "only_postgresql": "",
        "lock": "FOR UPDATE",
        "lock_jobs": "FOR UPDATE OF j SKIP LOCKED",
        "lock_ref": "pg_advisory_xact_lock(hashtextextended(k.ref, 0))",
        "try_lock_ref": "pg_try_advisory_xact_lock(hashtextextended(k.ref, 0))",
        "feed_order": "e.tx, e.id",
        "tenant_feed_columns": "tenant, tx, id",
        "feed_order_desc": "e.tx DESC, e.id DESC",
        "after_position": f"(e.tx, e.id) > (:tx, :position) AND e.tx < {_OLDEST_TRANSACTION}",
        "events_of_tenant_after": (
            "(SELECT e.* FROM event e WHERE (e.tenant, e.tx, e.id) > (:tenant, :tx, :position) "  # noqa: S608 - no user input
            "AND e.tenant <= :tenant "
            "ORDER BY e.tenant, e.tx, e.id LIMIT :count) AS e "
            f"WHERE e.tx < {_OLDEST_TRANSACTION} ORDER BY e.tenant, e.tx, e.id"
        ),
        "not_yet_visible": f"(e.tx, e.id) > (:tx, :position) AND e.tx >= {_OLDEST_TRANSACTION}",
        "now": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        "job_filters": _job_filters("json_each_text(j.labels::json)"),
    },
)


@lru_cache
def columns(row: type[Row]) -> tuple[str, ...]:
    """Return a table's columns, in the order of its row class."""
    return row.__struct_fields__


@lru_cache
def column_types(row: type[Row]) -> tuple[str, ...]:
    """Return the PostgreSQL type of each column."""
    hints = get_type_hints(row)
    return tuple("bigint" if hints[name] in {int, int | None} else "text" for name in columns(row))


@lru_cache
def queries(folder: str = "queries") -> Mapping[str, str]:
    """Read the named blocks of all .sql files in a folder of store/sql. Names must be unique."""
    blocks: dict[str, str] = {}
    for file in sorted((files("callsheet.store") / "sql" / folder).iterdir(), key=lambda file: file.name):
        parts = _NAME.split(file.read_text())
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name in blocks:
                raise ValueError(f"sql/{folder}/{file.name} defines the block {name!r} again: rename it")
            blocks[name] = body.strip()
    return blocks


def sqlite_statement(text: str, encode: Callable[[Any], str]) -> Statement:
    """Lay out a query for SQLite: `?`, with lists and tables as one JSON text."""
    names: list[tuple[str, bool]] = []

    def replace_parameter(match: re.Match[str]) -> str:
        if match["one"]:
            names.append((match["one"], False))
            return "?"
        names.append((match["list"] or match["table"], True))
        if match["list"]:
            return "IN (SELECT value FROM json_each(?))"
        fields = ", ".join(f"value ->> {n} AS {field.split()[0]}" for n, field in enumerate(_fields(match["columns"])))
        return f"(SELECT {fields} FROM json_each(?))"  # noqa: S608 - no user input

    rendered = _PARAMETER.sub(replace_parameter, SQLITE.render(text))
    return Statement(
        rendered, lambda parameters: [encode(parameters[n]) if is_list else parameters[n] for n, is_list in names]
    )


def postgresql_statement(text: str) -> Statement:
    """Lay out a query for PostgreSQL: `$n`, with lists as arrays and tables as one array per column."""
    steps: list[Callable[[Mapping[str, Any]], Iterable[Any]]] = []
    count = 0

    def replace_parameter(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        if name := match["one"]:
            steps.append(lambda parameters: (parameters[name],))
            return f"${count}"
        if name := match["list"]:
            steps.append(lambda parameters: (parameters[name],))
            return f"= ANY(${count}::text[])"
        table, fields = match["table"], _fields(match["columns"])
        arrays = ", ".join(f"${count + n}::{field.split()[1]}[]" for n, field in enumerate(fields))
        names = ", ".join(field.split()[0] for field in fields)
        steps.append(lambda parameters: zip(*parameters[table], strict=True))
        count += len(fields) - 1
        return f"(SELECT * FROM unnest({arrays}) AS _({names}))"  # noqa: S608 - no user input

    rendered = _PARAMETER.sub(replace_parameter, POSTGRESQL.render(text))
    return Statement(
        rendered,
        lambda parameters: [list(v) if isinstance(v, tuple) else v for step in steps for v in step(parameters)],
    )


def _fields(text: str) -> list[str]:
    return [field.strip() for field in text.split(",")]
