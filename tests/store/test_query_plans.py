"""Feeds and queues are read in order from an index; the database sorts nothing."""

import re
from typing import Any

import pytest

from callsheet.engine import Engine
from callsheet.store.connection import Connection
from callsheet.store.dialect import postgresql_statement, queries, sqlite_statement


def plan(connection: Connection, name: str, query: str, parameters: dict[str, Any]) -> str:
    """Return the plan of a query on an empty database."""
    if name == "sqlite":
        statement = sqlite_statement(queries()[query], str)
        text = statement.text
        for value in statement.layout(parameters):
            text = text.replace("?", value, 1)
        return "\n".join(str(row[-1]) for row in connection.run(f"EXPLAIN QUERY PLAN {text}"))
    statement = postgresql_statement(queries()[query])
    for off in ("seqscan", "bitmapscan", "sort"):  # the plan for a large table, although this one is empty
        connection.run(f"SET enable_{off} = off")
    connection.run(f"PREPARE explained AS {statement.text}")
    values = ", ".join("".join(value) for value in statement.layout(parameters))
    arguments = f"({values})" if values else ""
    return "\n".join(row[0] for row in connection.run(f"EXPLAIN EXECUTE explained{arguments}"))


FEED = {"tenant": "'acme'", "position": "0", "tx": "0", "count": "500"}
LINE = {"queue": "'draw/sketch'", "priority": "50", "tenant": "'acme'", "count": "8"}
PLANS = [
    ("events_of_tenant", "event_tenant", FEED),
    ("first_turns", "task_ready", LINE), ("candidates", "task_user_order", LINE), ("last_turns", "task_tail", LINE),
]  # fmt: skip


@pytest.mark.parametrize(("query", "index", "parameters"), PLANS, ids=[query for query, _, _ in PLANS])
def test_a_list_is_read_from_its_index_without_sorting(
    blank: str, query: str, index: str, parameters: dict[str, str]
) -> None:
    with Engine.open(blank) as engine:
        connection = engine.database.connect(reading=True)
        found = plan(connection, engine.database.name, query, parameters)
        connection.close()
    assert index in found
    assert "Sort" not in found
    assert "TEMP B-TREE" not in found


AHEAD = {**LINE, "user_rank": "5", "id": "'x'", "most": "9"}
AHEAD_RANGES = {
    "sqlite": (
        "task_ready (queue=? AND priority=? AND rank<?)",
        "task_user_order (queue=? AND priority=? AND tenant=?",
    ),
    "postgresql": ("ROW(rank, id) < ROW", "ROW(user_rank, id) < ROW"),
}


def test_the_tasks_ahead_are_read_up_to_the_position_and_no_further(blank: str) -> None:
    with Engine.open(blank) as engine:
        connection = engine.database.connect(reading=True)
        name = engine.database.name
        found = plan(connection, name, "count_tasks_ahead", AHEAD)
        connection.close()
    assert [text for text in AHEAD_RANGES[name] if text not in found] == [], found
    assert "task_tail" in found
    assert "Filter" not in found


COUNTS = [
    ("running_by_queue", "task_(running|held)", {"sqlite": {"ids": "'[]'"}, "postgresql": {"ids": "ARRAY[]::text[]"}}),
    ("starts_by_queue", "attempt_rate_queue", {"sqlite": {"keys": "'[]'"}, "postgresql": {"keys": [("'{}'", "'{}'")]}}),
]


@pytest.mark.parametrize(("query", "index", "lists"), COUNTS, ids=[query for query, _, _ in COUNTS])
def test_the_use_of_limits_is_counted_in_an_index(
    blank: str, query: str, index: str, lists: dict[str, dict[str, Any]]
) -> None:
    with Engine.open(blank) as engine:
        connection = engine.database.connect(reading=True)
        name = engine.database.name
        found = plan(connection, name, query, {"most": "9", **lists[name]})
        connection.close()
    assert re.search(rf"Scan using {index} |COVERING INDEX {index} ", found), found  # tied on an empty PostgreSQL
    assert re.search(r"Seq Scan on (task|attempt)|SCAN [ta]\b", found) is None, found
