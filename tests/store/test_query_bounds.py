"""Every query reads a bounded number of rows, however large the tables are and however few of their rows it needs."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import apsw
import msgspec
import pytest

from callsheet.engine.engine import database_for
from callsheet.settings import Settings
from callsheet.store.connection import Connection
from callsheet.store.dialect import SQLITE_CLOCK, postgresql_statement, queries, sqlite_statement
from callsheet.store.migrate import dialect_of, migrate
from tests.store.query_bounds import BOUNDS, COUNT, Bound
from tests.support.databases.postgres import Cluster
from tests.support.databases.skewed_tables import ROWS, fill_tables

STEPS_PER_ROW, STEPS_PER_COUNTED_ROW, STEPS_BASE = 350, 50, 2_000
"""Steps of SQLite's virtual machine: a row has up to 40 columns, a count reads few of them, and a statement has some
fixed work."""
BLOCKS_PER_ROW, BLOCKS_BASE = 5, 25
"""Blocks that PostgreSQL reads: those of the index and of the table."""


class Cost(NamedTuple):
    """What one query cost, in the units of its database, and its plan."""

    measured: Mapping[str, int]
    plan: str

    def within(self, allowed: Mapping[str, int]) -> bool:
        return all(amount <= allowed[unit] for unit, amount in self.measured.items())


class Measure(Protocol):
    """Runs queries on large tables and returns their cost."""

    def __call__(self, text: str, parameters: Mapping[str, Any]) -> Cost: ...


def allowed_for(rows: int, steps_per_row: int = STEPS_PER_ROW) -> dict[str, int]:
    """Return the allowed cost of reading so many rows, in all units."""
    return {
        "rows": rows,
        "blocks": BLOCKS_PER_ROW * rows + BLOCKS_BASE,
        "steps": steps_per_row * rows + STEPS_BASE,
    }


# -- PostgreSQL: rows and blocks, from EXPLAIN ANALYZE of the generic plan that a server uses


class PostgresMeasure:
    """Measures on a connection with the settings of a server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, text: str, parameters: Mapping[str, Any]) -> Cost:
        statement = postgresql_statement(text)
        values = ", ".join(_literal(value) for value in statement.layout(parameters))
        self._connection.begin()
        try:
            self._connection.run(f"PREPARE measured AS {statement.text}")
            explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE measured"
            found = self._connection.run(f"{explain}({values})" if values else explain)[0][0]
            self._connection.run("DEALLOCATE measured")
        finally:
            self._connection.rollback()
        plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
        rows = sum(_rows_read(node) for node in _nodes(plan))
        blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return Cost({"rows": rows, "blocks": blocks}, "\n".join(map(_describe, _nodes(plan))))


def _literal(value: Any) -> str:
    if isinstance(value, list):
        kind = "bigint" if value and all(isinstance(item, int) for item in value) else "text"
        return f"ARRAY[{', '.join(_literal(item) for item in value)}]::{kind}[]"
    return str(value) if isinstance(value, int) else f"'{value}'"


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _describe(node: Mapping[str, Any]) -> str:
    name = node.get("Index Name") or node.get("Relation Name") or ""
    return f"{node['Node Type']} {name}: {node['Actual Rows']} rows, {node['Actual Loops']} times"


def _rows_read(node: Mapping[str, Any]) -> int:
    if "Relation Name" not in node:
        return 0
    fields = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    per_loop: float = sum(node.get(field, 0) for field in fields)
    return int(per_loop * node["Actual Loops"])


# -- SQLite: steps of the virtual machine


class SqliteMeasure:
    """Measures with the counters of the statement."""

    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path)
        self._connection.create_scalar_function(SQLITE_CLOCK, lambda *_: 0, 0)
        self._steps = 0
        self._connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._count_steps)

    def _count_steps(self, event: Mapping[str, Any]) -> None:
        self._steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def __call__(self, text: str, parameters: Mapping[str, Any]) -> Cost:
        statement = sqlite_statement(text, lambda value: msgspec.json.encode(value).decode())
        values = statement.layout(parameters)
        found = self._connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", values).fetchall()
        self._connection.execute("BEGIN")
        self._steps = 0
        self._connection.execute(statement.text, values).fetchall()
        steps = self._steps
        self._connection.execute("ROLLBACK")
        return Cost({"steps": steps}, "\n".join(str(row[-1]) for row in found))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def measure(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Return a function that measures queries on large tables with skewed owners."""
    if request.param == "sqlite":
        url = str(tmp_path_factory.mktemp("skewed") / "callsheet.db")
    else:
        cluster: Cluster = request.getfixturevalue("migrated_postgres")
        url = cluster.create_database()
    connection = database_for(url, Settings()).connect()
    migrate(connection, dialect_of(request.param))
    fill_tables(connection, request.param)
    yield PostgresMeasure(connection) if request.param == "postgresql" else SqliteMeasure(url)
    connection.close()


def test_every_query_states_its_bound() -> None:
    assert set(BOUNDS) == set(queries())


@pytest.mark.parametrize("query", BOUNDS)
def test_a_query_reads_no_more_rows_than_its_bound(measure: Measure, query: str) -> None:
    bound: Bound = BOUNDS[query]
    allowed = allowed_for(bound.rows, STEPS_PER_COUNTED_ROW if bound.by == COUNT else STEPS_PER_ROW)
    for sample in bound.samples:
        cost = measure(queries()[query], sample)
        assert cost.within(allowed), f"{cost.measured} exceeds {allowed} for {sample}:\n{cost.plan}"
        assert bound.uses in cost.plan, f"{bound.uses} is not used for {sample}:\n{cost.plan}"


UNBOUNDED = {
    "counts all": ("SELECT count(*) FROM task t WHERE t.ready = 1", {}),
    "filters without an index": (
        (
            "SELECT {job j} FROM job j WHERE j.tenant = :tenant AND (:workflow = '' OR j.workflow = :workflow) "
            "ORDER BY j.created_at DESC LIMIT :count"
        ),
        {"tenant": "big", "workflow": "none", "count": 50},
    ),
    "reads the key although the tenant is small": (
        (
            "SELECT {audit a} FROM audit a WHERE (a.tenant = :tenant OR :all = 1) AND a.id < :before "
            "ORDER BY a.id DESC LIMIT :count"
        ),
        {"tenant": "none", "all": 0, "before": "~", "count": 50},
    ),
}


@pytest.mark.parametrize("case", UNBOUNDED)
def test_a_query_that_scans_a_table_is_found(measure: Measure, case: str) -> None:
    text, parameters = UNBOUNDED[case]
    assert not measure(text, parameters).within(allowed_for(100))
    assert ROWS > 100 * 100
