"""The queries of the scale signals use indexes and keys; none scans a growing table."""

import re

import pytest

from callsheet.engine import Engine
from callsheet.store.dialect import queries
from tests.store.test_query_plans import plan

PARAMETERS = {
    "most": "1000", "since": "7", "counted": "100", "floor": "'0'", "queue": "'draw/sketch'", "count": "100",
}  # fmt: skip
LISTS = {"sqlite": "'[]'", "postgresql": "ARRAY[]::text[]"}
GROWING = {"t": "task", "a": "attempt", "s": "stage", "p": "stage", "j": "job", "r": "run"}
SCANS = re.compile(rf"\bSCAN ({'|'.join(GROWING)})\b(?! USING)|Seq Scan on ({'|'.join(GROWING.values())})\b")
INDEXES = {
    "scale_queues": ("task_user_", "task_done"), "scale_backoffs": ("task_due",),
    "scale_heads": ("task_user_order",), "scale_waits": (), "scale_leases": ("attempt_live",), "scale_fleet": (),
    "scale_arrivals": (), "scale_failures": ("attempt_unsuccessful",), "scale_attempts": ("task_done",),
}  # fmt: skip


def test_every_query_of_the_scale_signals_has_a_case() -> None:
    assert set(INDEXES) == {name for name in queries() if name.startswith("scale_")}


@pytest.mark.parametrize("query", INDEXES)
def test_no_query_scans_a_growing_table(blank: str, query: str) -> None:
    with Engine.open(blank) as engine:
        connection = engine.database.connect(reading=True)
        found = plan(connection, engine.database.name, query, PARAMETERS | {"ids": LISTS[engine.database.name]})
        connection.close()
    assert SCANS.search(found) is None, found
    assert [index for index in INDEXES[query] if index not in found] == [], found


@pytest.mark.parametrize("line", ["SCAN t", "Seq Scan on attempt a", "  SCAN j\n"])
def test_a_planted_scan_is_found(line: str) -> None:
    assert SCANS.search(line)
