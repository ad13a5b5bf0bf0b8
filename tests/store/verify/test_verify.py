"""`verify` finds no violation in a consistent database and reports every planted fault under its rule."""

import json
from collections.abc import Callable

import pytest

from callsheet.core.model.clock import SECOND
from callsheet.store import verify
from callsheet.store.connection import Connection, StoreError
from callsheet.store.dialect import queries
from tests.store.conftest import ScenarioDatabase
from tests.store.verify.corruptions_audit_log import AUDIT_FAULTS, AUDIT_LOG
from tests.store.verify.corruptions_files_and_keys import FILES, KEYS, WORKERS
from tests.store.verify.corruptions_jobs_and_stages import JOBS, STAGES
from tests.store.verify.corruptions_leases_and_calls import CALLS, LEASES, TEXTS_AND_EVENTS
from tests.store.verify.corruptions_money import MONEY, SUBMITTED
from tests.support.doubles.virtual_clock import VirtualClock, VirtualClockConnection, VirtualEngineClock
from tests.support.engine.engine_harness import EngineHarness

FAULTS = MONEY + SUBMITTED + JOBS + STAGES + LEASES + CALLS + TEXTS_AND_EVENTS + FILES + KEYS + WORKERS + AUDIT_LOG
SLICE_ROWS = 3
"""So few that groups of rows span slices and rows lie at their borders."""
OTHER_HASH = "(SELECT token_hash FROM attempt WHERE job_id = '{done}')"
TIME_DEPENDENT = {"J13", "L11"}


def find_planted(
    connection: Connection, scenario_database: ScenarioDatabase, fault: str, *names: str
) -> list[verify.Violation]:
    """Plant a fault, return the violations of the named rules or of all rules, and roll back."""
    rules = [rule for rule in verify.rules(scenario_database.database) if not names or rule.name in names]
    connection.begin()
    try:
        for statement in fault.replace("{other_hash}", OTHER_HASH).format(**scenario_database.names).split(";"):
            connection.run(statement)
        return verify.find_violations(connection, rules, scenario_database.now - 60 * SECOND, SLICE_ROWS)
    finally:
        connection.rollback()


def test_the_scenario_breaks_no_rule_at_any_step(scenario_database):
    # R270: at most one reserve and one settlement (M4, M5); R427: every status has its event (J1, J2, J5)
    assert scenario_database.steps > 150
    assert scenario_database.found == []


def test_a_database_without_constraints_breaks_no_rule(scenario_database, unconstrained_database):
    """So a violation after a planted fault comes from that fault."""
    assert verify.check(unconstrained_database, scenario_database.now) == []


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(FAULTS)])
def test_a_planted_fault_is_reported_under_its_rule_and_without_secrets(
    scenario_database, unconstrained_database, name, fault
):
    # R161: by G9 and G10
    found = find_planted(unconstrained_database, scenario_database, fault, name)
    assert [violation.name for violation in found] == [name]
    reports = verify.as_json(found) + verify.report(found)
    secrets = "SELECT token_hash FROM attempt UNION ALL SELECT secret_hash FROM api_key"
    assert not [row for row in unconstrained_database.run(secrets) if row[0] in reports]


def test_every_rule_has_a_planted_fault_and_a_description():
    assert {name for name, _ in FAULTS} == set(queries("verify"))
    for rule in verify.rules("sqlite"):
        assert rule.description.endswith(".")
        assert len(rule.columns) > 1


@pytest.mark.parametrize("name", AUDIT_FAULTS)
def test_the_first_wrong_line_of_the_audit_log_is_named(scenario_database, unconstrained_database, name):
    fault = AUDIT_FAULTS[name]
    (found,) = find_planted(unconstrained_database, scenario_database, fault.statements, "A3")
    assert {"tenant": fault.tenant, "line": fault.line, "problem": fault.problem} in found.rows
    assert found.count == (2 if "another tenant" in name else 1)


def test_time_dependent_rules_are_checked_only_with_a_time(scenario_database, unconstrained_database):
    assert {rule.name for rule in verify.rules("sqlite") if rule.time_dependent} == TIME_DEPENDENT
    a_week_later = scenario_database.now + 8 * 86_400 * SECOND
    assert {violation.name for violation in verify.check(unconstrained_database, a_week_later)} == TIME_DEPENDENT
    assert verify.check(unconstrained_database) == []


def test_a_due_task_is_a_violation_only_after_the_time_for_a_sweep(scenario_database, unconstrained_database):
    (row,) = unconstrained_database.run(
        f"SELECT due_at FROM task WHERE job_id = '{scenario_database.names['backoff']}'"
    )
    last = row[0] + 60 * SECOND
    assert verify.check(unconstrained_database, last) == []
    assert [violation.name for violation in verify.check(unconstrained_database, last + 1)] == ["L11"]
    assert [
        violation.name for violation in verify.check(unconstrained_database, row[0] + 1, swept_within_seconds=0)
    ] == ["L11"]


def test_a_report_has_the_rule_and_its_first_rows(scenario_database, unconstrained_database):
    found = find_planted(unconstrained_database, scenario_database, "UPDATE wallet SET reserved = reserved + 1")
    assert verify.report(found).splitlines()[0] == (
        "M3 is broken by 3 rows: A wallet's reserved amount is the sum of its open reservations."
    )
    assert "wallet=other/eve reserved=1 open_reservations=0" in verify.report(found)
    report = json.loads(verify.as_json(found))
    assert report["sound"] is False
    assert [violation["name"] for violation in report["violations"]] == ["M3"]
    assert report["violations"][0]["rows"][-1] == {"wallet": "other/eve", "reserved": 1, "open_reservations": 0}


def test_a_report_counts_the_rows_that_it_leaves_out(scenario_database, unconstrained_database):
    found = find_planted(unconstrained_database, scenario_database, "UPDATE entry SET balance = -1")
    (entries,) = unconstrained_database.run("SELECT count(*) FROM entry")
    negative = next(violation for violation in found if violation.name == "M2")
    assert (negative.count, len(negative.rows)) == (entries[0], verify.ROWS_SHOWN_MAX)
    assert f"    and {entries[0] - verify.ROWS_SHOWN_MAX} more" in verify.report(found).splitlines()


def test_a_consistent_database_is_reported_as_sound():
    assert verify.report([]) == "Every rule holds."
    assert json.loads(verify.as_json([])) == {"sound": True, "violations": [], "rules": []}


class ConcurrentWriteConnection(VirtualClockConnection):
    """A connection next to which another one writes after the first rule was checked."""

    def __init__(self, inner: Connection, write: Callable[[], object]) -> None:
        super().__init__(inner, VirtualEngineClock(VirtualClock()))
        self.writes = [write]

    def run(self, text, /, **parameters):
        rows = super().run(text, **parameters)
        if self.writes and "FROM wallet" in text:
            self.writes.pop()()
        return rows


def test_all_rules_see_one_snapshot(database_url):
    with EngineHarness(database_url) as harness:
        harness.tenant()
        harness.top_up(10)
        writer = harness.database.connect()
        reader = ConcurrentWriteConnection(
            harness.database.connect(reading=True), lambda: writer.run("UPDATE wallet SET reserved = 5")
        )
        try:
            assert verify.check(reader) == []
            assert reader.writes == []
            assert [violation.name for violation in verify.check(reader)] == ["M3"]
        finally:
            reader.close()
            writer.close()


def test_a_failed_check_leaves_no_open_transaction(database_url):
    with EngineHarness(database_url) as harness:
        connection = harness.database.connect()
        try:
            connection.run("DROP TABLE inbox")
            with pytest.raises(StoreError):
                verify.check(connection)
            connection.begin()
            connection.rollback()
        finally:
            connection.close()
