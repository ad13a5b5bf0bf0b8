"""Rules read their slices, and the rows that belong to them, by an index: their time does not depend on table sizes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.core.model.rows import ROWS, Event
from callsheet.engine import Engine
from callsheet.store import verify
from callsheet.store.connection import Connection
from callsheet.store.dialect import CURRENT_TRANSACTION, column_types, columns, postgresql_statement
from callsheet.store.verify.rule_check import PLAN_SETTINGS
from callsheet.store.verify.rule_files import QueryPart
from callsheet.store.verify.slices import border_query, last_query
from tests.support.databases.postgres import Cluster

VALUES = {"first": "a", "last": "b", "value": "a", "before": 1}
WHOLE_TABLE = {"L10", "M2", "M14", "O10"}
"""Rules that read a table once. L10 sorts the tokens of all attempts, which have no index. M2 and M14 look at each
entry alone, and PostgreSQL does not store the ledger in the order of its index. O10 adds up all files of a tenant."""
ROWS_PER_TABLE = 5_000
PARTIAL = {
    "kind": "(ARRAY['reserve', 'consume', 'refund', 'adjust', 'topup'])[n % 5 + 1]",
    "status": "(ARRAY['running', 'waiting', 'failed', 'blocked'])[n % 4 + 1]",
}
"""Values of columns that partial indexes depend on."""
Query = tuple[str, str]
"""The name of a rule, and one of its queries."""


def queries_of(database: str) -> Iterator[Query]:
    for rule in verify.rules(database):
        for part in rule.parts:
            if isinstance(part, QueryPart):
                yield rule.name, part.text
            if part.key is not None:
                yield from ((rule.name, border_query(part.key, operator, 10)) for operator in (">=", ">"))
                yield rule.name, last_query(part.key)


def scans_of_sqlite(connection: Connection, text: str) -> list[str]:
    """Return the steps of a plan that read a whole table."""
    plan = [str(row[-1]) for row in connection.run(f"EXPLAIN QUERY PLAN {text}", **VALUES)]
    derived = {match[1] for step in plan if (match := re.match(r"(?:CO-ROUTINE|MATERIALIZE) (\w+)", step))}
    tables = [step for step in plan if not re.search("CONSTANT ROW|VALUES CLAUSE", step)]
    return [
        step for step in tables
        if (match := re.match(r"SCAN (\w+)", step)) and match[1] not in derived and "VIRTUAL TABLE" not in step
    ]  # fmt: skip


def scans_of_postgresql(connection: Connection, text: str) -> list[str]:
    """Return the steps of a plan that read a whole table: a sequential scan, or an index without a condition."""
    statement = postgresql_statement(text)
    connection.run(f"PREPARE explained AS {statement.text}")
    values = ", ".join(f"'{value}'" for value in statement.layout(VALUES))
    plan = [row[0] for row in connection.run(f"EXPLAIN EXECUTE explained{f'({values})' if values else ''}")]
    connection.run("DEALLOCATE explained")
    return [
        step for step, next_step in zip(plan, [*plan[1:], ""], strict=True)
        if "Seq Scan" in step or (re.search(r"Index (Only )?Scan", step) and "Index Cond" not in next_step)
    ]  # fmt: skip


def fill_tables(connection: Connection) -> None:
    """Fill all tables, without statistics: the plans of PostgreSQL depend on the number of pages."""
    checks = "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'c' AND conrelid > 0"
    for table, name in connection.run(checks):
        connection.run(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    for row in ROWS:
        values = [
            PARTIAL.get(name, "n" if kind == "bigint" else "lpad(n::text, 36, '0')")
            for name, kind in zip(columns(row), column_types(row), strict=True)
        ]
        names = list(columns(row))
        if row is Event:
            names.append("tx")
            values.append(CURRENT_TRANSACTION)
        connection.run(
            f"INSERT INTO {row.TABLE} ({', '.join(names)}) "
            f"SELECT {', '.join(values)} FROM generate_series(1, {ROWS_PER_TABLE}) AS s(n)"
        )


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that no other test has used: statistics of other tests would change the plans."""
    if request.param == "sqlite":
        return str(tmp_path / "callsheet.db")
    cluster: Cluster = request.getfixturevalue("migrated_postgres")
    return cluster.create_database()


def test_every_rule_reads_its_slices_by_an_index(new_database_url: str) -> None:
    postgresql = "://" in new_database_url
    with Engine.open(new_database_url) as engine:
        connection = engine.database.connect()
    connection.begin()
    if postgresql:
        fill_tables(connection)
        for setting in PLAN_SETTINGS:
            connection.run(f"SET LOCAL {setting}")
    find_scans = scans_of_postgresql if postgresql else scans_of_sqlite
    found = {
        (name, scan) for name, text in queries_of("postgresql" if postgresql else "sqlite")
        for scan in find_scans(connection, text)
    }  # fmt: skip
    connection.rollback()
    connection.close()
    assert {name for name, _ in found} == WHOLE_TABLE, "\n".join(f"{name} {scan}" for name, scan in sorted(found))
