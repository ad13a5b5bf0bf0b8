"""A claim sends the same queries however many limits there are, and locks only the limits of the tasks it leases."""

from collections.abc import Iterator
from typing import Any

import pytest

from callsheet.core.policy.engine_limits import Limits
from callsheet.engine.engine import database_for
from callsheet.settings import Settings
from callsheet.store.connection import Connection
from tests.support.engine.engine_harness import EngineHarness, stage
from tests.support.engine.query_log import QueryLog

MANY = 40
RATE = {"rate_max": "2/hour"}
LIMITS: tuple[dict[str, Any], ...] = ({"running_max": 2}, RATE, {"running_max": 2, **RATE})


def add_limited_workflows(harness: EngineHarness, count: int, jobs: int = 1, **limits: Any) -> None:
    """Create workflows of one kind with jobs that wait."""
    for n in range(count):
        harness.workflow(f"film-{n:02}", price=0, **limits)
        for _ in range(jobs):
            harness.submit_job(f"film-{n:02}")


def names_of_claim(harness: EngineHarness, expected: int = 1, count: int = 1) -> list[list[str]]:
    """Claim, and return the names of the queries by round trip."""
    with pytest.MonkeyPatch.context() as patch:
        log = QueryLog(patch)
        assert len(harness.claim(count=count)) == expected
    return log.names()


@pytest.mark.parametrize("limits", LIMITS, ids="+".join)
def test_a_claim_sends_the_same_queries_for_one_and_for_many_limits(
    harness: EngineHarness, limits: dict[str, Any]
) -> None:
    add_limited_workflows(harness, 1, jobs=2, **limits)
    with_one = names_of_claim(harness)
    add_limited_workflows(harness, MANY, jobs=2, **limits)
    assert names_of_claim(harness) == with_one


@pytest.mark.parametrize("limits", LIMITS, ids="+".join)
def test_a_claim_skips_any_number_of_exhausted_limits_with_one_more_estimate(
    harness: EngineHarness, limits: dict[str, Any]
) -> None:
    add_limited_workflows(harness, 1, jobs=3, **limits)
    harness.claim()
    below_its_limit = names_of_claim(harness)
    add_limited_workflows(harness, MANY, jobs=3, **limits)
    while len(harness.claim(count=50)):
        continue
    harness.workflow("last", price=0, **limits)
    harness.submit_job("last", priority=1)
    names = names_of_claim(harness)
    assert len(names) == len(below_its_limit) + 1
    assert sum(map(len, names)) == sum(map(len, below_its_limit)) + len(limits)


def test_a_claim_locks_only_the_limits_of_the_tasks_that_it_leases(
    open_harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness: EngineHarness = open_harness(Settings(limits=Limits(kind_running_max={"draw": 100})))
    add_limited_workflows(harness, MANY, running_max=1)
    log = QueryLog(monkeypatch)
    [leased] = harness.claim()
    expected = [("limit of kind draw",), (f"limit of workflow {leased.workflow}",)]
    assert [call["keys"] for call in log.parameters("lock_refs")] == [expected]


@pytest.fixture
def holder(harness: EngineHarness) -> Iterator[Connection]:
    """Another server's connection, in a transaction."""
    connection = database_for(harness.database_url, Settings()).connect()
    if harness.database.name == "postgresql":  # on SQLite nothing runs next to another write transaction
        connection.begin()
    yield connection
    connection.rollback()
    connection.close()


def test_a_claim_does_not_wait_for_limits_that_it_does_not_need(harness: EngineHarness, holder: Connection) -> None:
    add_limited_workflows(harness, 3, running_max=1)
    [first] = harness.claim()
    others = [(f"limit of workflow film-{n:02}",) for n in range(3)]
    kept = ("limit of workflow film-01",)
    holder.fetch("lock_refs", keys=[key for key in others if key != kept])
    assert first.workflow == "film-00"
    assert [leased.workflow for leased in harness.claim()] == ["film-01"]


def test_a_claim_whose_estimate_was_wrong_gets_a_task_of_another_queue(harness: EngineHarness) -> None:
    """The estimate of a workflow's limit does not include its tasks of other kinds; the exact count does."""
    harness.workflow("film", price=0, running_max=1, stages=[stage("cut"), stage("draw")])
    ahead, _ = harness.submit_job("film"), harness.submit_job("film")
    harness.complete(harness.claim_one("cut"))
    assert harness.claim("cut")[0].workflow == "film"
    add_limited_workflows(harness, 1, running_max=1)
    assert harness.tasks(ahead)[1].ready
    names = names_of_claim(harness)
    assert ["lock_refs", "queues_sharing"] in names
    assert ["try_lock_refs", "queues_sharing"] in names
    assert harness.claim() == []
