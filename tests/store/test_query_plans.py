"""Lists and queues are read in their order by an index, whatever else is in the table; nothing is sorted."""

import pytest

from callsheet.engine import Engine
from callsheet.store.connection import Connection
from callsheet.store.dialect import postgresql_statement, queries, sqlite_statement


def plan(connection: Connection, name: str, query: str, given: dict[str, str]) -> str:
    """Return how a database would run a query, without knowing its tables or its parameters."""
    if name == "sqlite":
        statement = sqlite_statement(queries()[query], str)
        text = statement.text
        for value in statement.layout(given):
            text = text.replace("?", value, 1)
        return "\n".join(str(row[-1]) for row in connection.run(f"EXPLAIN QUERY PLAN {text}"))
    statement = postgresql_statement(queries()[query])
    for off in ("seqscan", "bitmapscan", "sort"):  # what a planner makes of a small table says nothing of a large one
        connection.run(f"SET enable_{off} = off")
    connection.run(f"PREPARE looked AS {statement.text}")
    values = ", ".join(str(value) for value in statement.layout(given))
    given_to = f"({values})" if values else ""
    return "\n".join(row[0] for row in connection.run(f"EXPLAIN EXECUTE looked{given_to}"))


FEED = {"tenant": "'acme'", "position": "0", "tx": "0", "count": "500"}
LIST = {
    "tenant": "'acme'", "before": "'~'", "status": "'failed'", "phase": "''", "workflow": "''", "since": "0",
    "until": "9", "label": "''", "label_value": "''", "count": "50",
}  # fmt: skip
PLANS = [
    ("events_of_tenant", "event_tenant", FEED), ("jobs_of_tenant", "job_newest", LIST), ("jobs_open", "job_open", LIST),
    ("jobs_failed", "job_failed", LIST), ("jobs_waiting", "job_waiting", LIST),
    ("candidates", "task_ready", {"queue": "'draw/sketch'", "count": "8"}),
]  # fmt: skip


@pytest.mark.parametrize(("query", "index", "given"), PLANS, ids=[query for query, _, _ in PLANS])
def test_a_list_is_read_by_its_index(blank: str, query: str, index: str, given: dict[str, str]) -> None:
    with Engine.open(blank) as engine:
        connection = engine.database.connect(reading=True)
        found = plan(connection, engine.database.name, query, given)
        connection.close()
    assert index in found
    assert "Sort" not in found
    assert "TEMP B-TREE" not in found
