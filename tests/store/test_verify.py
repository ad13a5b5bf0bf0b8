"""`verify` finds nothing in a sound database, and every planted fault by its own name, on both databases."""

import json
from collections.abc import Callable

import pytest

from callsheet.core.model.clock import SECOND
from callsheet.store import verify
from callsheet.store.connection import Connection, StoreError
from callsheet.store.dialect import queries
from tests.store.conftest import ScenarioDatabase
from tests.store.corruptions_files_and_keys import FILES, KEYS, WORKERS
from tests.store.corruptions_jobs_and_stages import JOBS, STAGES
from tests.store.corruptions_leases_and_calls import CALLS, LEASES, TEXTS_AND_EVENTS
from tests.store.corruptions_money import MONEY, SUBMITTED
from tests.support.doubles.virtual_clock import VirtualClock, VirtualClockConnection
from tests.support.engine.engine_harness import EngineHarness

PLANTS = MONEY + SUBMITTED + JOBS + STAGES + LEASES + CALLS + TEXTS_AND_EVENTS + FILES + KEYS + WORKERS
OTHER_HASH = "(SELECT token_hash FROM attempt WHERE job_id = '{done}')"
TIMELY = {"J13", "L11"}


def planted(
    connection: Connection, scenario_database: ScenarioDatabase, fault: str, *names: str
) -> list[verify.Violation]:
    """Return which of these rules, or of all, are broken by a fault that nobody ever commits."""
    some = [rule for rule in verify.rules(scenario_database.database) if not names or rule.name in names]
    connection.begin()
    try:
        for statement in fault.replace("{other_hash}", OTHER_HASH).format(**scenario_database.names).split(";"):
            connection.run(statement)
        return verify.find_violations(connection, some, scenario_database.now - 60 * SECOND)
    finally:
        connection.rollback()


def test_a_busy_life_breaks_no_rule_at_any_step(scenario_database):
    assert scenario_database.steps > 150
    assert scenario_database.found == []


def test_a_database_without_its_constraints_is_still_sound(scenario_database, unconstrained_database):
    """So whatever a planted fault brings up, the fault alone brought it up."""
    assert verify.check(unconstrained_database, scenario_database.now) == []


@pytest.mark.parametrize(("name", "fault"), PLANTS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(PLANTS)])
def test_a_planted_fault_is_found_by_its_name(scenario_database, unconstrained_database, name, fault):
    # R161, R270, R427: M4 and M5 find a second entry, J1, J2 and J5 a status that no move of the machine wrote
    found = planted(unconstrained_database, scenario_database, fault, name)
    assert [violation.name for violation in found] == [name]
    told = verify.as_json(found) + verify.report(found)
    secrets = "SELECT token_hash FROM attempt UNION ALL SELECT secret_hash FROM api_key"
    assert not [row for row in unconstrained_database.run(secrets) if row[0] in told]


def test_every_rule_has_a_planted_fault_and_words():
    assert {name for name, _ in PLANTS} == set(queries("verify"))
    for rule in verify.rules("sqlite"):
        assert rule.description.endswith(".")
        assert len(rule.columns) > 1


def test_rules_about_time_are_left_out_unless_somebody_tells_the_time(scenario_database, unconstrained_database):
    assert {rule.name for rule in verify.rules("sqlite") if rule.time_dependent} == TIMELY
    a_week_on = scenario_database.now + 8 * 86_400 * SECOND
    assert {violation.name for violation in verify.check(unconstrained_database, a_week_on)} == TIMELY
    assert verify.check(unconstrained_database) == []


def test_what_is_due_may_wait_for_the_sweep_but_not_longer(scenario_database, unconstrained_database):
    (row,) = unconstrained_database.run(
        f"SELECT due_at FROM task WHERE job_id = '{scenario_database.names['backoff']}'"
    )
    last = row[0] + 60 * SECOND
    assert verify.check(unconstrained_database, last) == []
    assert [violation.name for violation in verify.check(unconstrained_database, last + 1)] == ["L11"]
    assert [
        violation.name for violation in verify.check(unconstrained_database, row[0] + 1, swept_within_seconds=0)
    ] == ["L11"]


def test_a_report_names_the_rule_and_shows_the_first_rows(scenario_database, unconstrained_database):
    found = planted(unconstrained_database, scenario_database, "UPDATE wallet SET reserved = reserved + 1")
    assert verify.report(found).splitlines()[0] == (
        "M3 is broken by 3 rows: A wallet's reserved amount is the sum of its open reservations."
    )
    assert "wallet=other/eve reserved=1 open_reservations=0" in verify.report(found)
    told = json.loads(verify.as_json(found))
    assert told["sound"] is False
    assert [violation["name"] for violation in told["violations"]] == ["M3"]
    assert told["violations"][0]["rows"][-1] == {"wallet": "other/eve", "reserved": 1, "open_reservations": 0}


def test_a_report_counts_the_rows_that_it_does_not_show(scenario_database, unconstrained_database):
    found = planted(unconstrained_database, scenario_database, "UPDATE entry SET balance = -1")
    (entries,) = unconstrained_database.run("SELECT count(*) FROM entry")
    negative = next(violation for violation in found if violation.name == "M2")
    assert (negative.count, len(negative.rows)) == (entries[0], verify.ROWS_SHOWN_MAX)
    assert f"    and {entries[0] - verify.ROWS_SHOWN_MAX} more" in verify.report(found).splitlines()


def test_a_sound_database_is_reported_as_such():
    assert verify.report([]) == "Every rule holds."
    assert json.loads(verify.as_json([])) == {"sound": True, "violations": []}


class Meddled(VirtualClockConnection):
    """A connection beside which somebody else commits, as soon as the first rule has been looked at."""

    def __init__(self, inner: Connection, meddling: Callable[[], object]) -> None:
        super().__init__(inner, VirtualClock())
        self.meddling = [meddling]

    def run(self, text):
        rows = super().run(text)
        if self.meddling and "FROM wallet" in text:
            self.meddling.pop()()
        return rows


def test_all_rules_look_at_one_moment(database_url):
    with EngineHarness(database_url) as harness:
        harness.tenant()
        harness.top_up(10)
        writer = harness.database.connect()
        reader = Meddled(harness.database.connect(reading=True), lambda: writer.run("UPDATE wallet SET reserved = 5"))
        try:
            assert verify.check(reader) == []
            assert reader.meddling == []
            assert [violation.name for violation in verify.check(reader)] == ["M3"]
        finally:
            reader.close()
            writer.close()


def test_a_check_that_breaks_off_leaves_no_transaction_behind(database_url):
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
