"""Running limits per kind, workflow and provider, counted from live rows."""

from typing import Any

from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from tests.support.engine.engine_harness import EngineHarness, stage


def settings_with(**limits: Any) -> Settings:
    return Settings(database_retry_seconds=5, limits=Limits(**limits))


def test_a_kind_has_at_most_its_limit_of_running_tasks(open_harness: Any) -> None:
    harness: EngineHarness = open_harness(settings_with(kind_running_max={"draw": 2}))
    harness.workflow("poster")
    for _ in range(3):
        harness.submit_job()
        harness.submit_job("poster")
    first, second = harness.claim(count=9)
    assert harness.claim(count=9) == []
    harness.complete(first.lease)
    assert len(harness.claim(count=9)) == 1
    harness.requeue(second.lease)
    assert len(harness.claim(count=9)) == 1


def test_the_limit_of_a_kind_does_not_block_other_kinds(open_harness: Any) -> None:
    harness: EngineHarness = open_harness(settings_with(kind_running_max={"draw": 1}))
    harness.workflow("film", stages=[stage("cut")])
    for _ in range(2):
        harness.submit_job(priority=90)
        harness.submit_job("film")
    assert sorted(leased.kind for leased in harness.claim("draw", "cut", count=9)) == ["cut", "cut", "draw"]


def test_a_workflow_has_at_most_its_limit_of_running_tasks_over_all_its_kinds(harness: EngineHarness) -> None:
    harness.workflow("film", running_max=2, stages=[stage("draw"), stage("cut")])
    jobs = [harness.submit_job("film") for _ in range(3)]
    harness.submit_job()
    leased = harness.claim("draw", "cut", count=9)
    assert sorted(one.workflow for one in leased) == ["film", "film", "sketch"]
    first = next(one.lease for one in leased if one.lease.job_id == jobs[0])
    harness.complete(first)
    assert [one.workflow for one in harness.claim("draw", "cut", count=9)] == ["film"]
    assert harness.claim("draw", "cut", count=9) == []


def test_a_new_limit_of_a_workflow_applies_at_once(harness: EngineHarness) -> None:
    harness.workflow("film", running_max=1)
    for _ in range(4):
        harness.submit_job("film")
    assert len(harness.claim(count=9)) == 1
    harness.workflow("film", running_max=3)
    assert len(harness.claim(count=9)) == 2
    harness.workflow("film", running_max=None)
    assert len(harness.claim(count=9)) == 1


def test_a_provider_has_at_most_its_limit_of_running_tasks_over_all_workflows(open_harness: Any) -> None:
    harness: EngineHarness = open_harness(settings_with(provider_running_max={"cloud": 2}))
    for name in ("one", "two"):
        harness.workflow(name, stages=[stage("render", provider="cloud")])
        harness.submit_job(name)
        harness.submit_job(name)
    harness.workflow("three", stages=[stage("render", provider="own")])
    harness.submit_job("three")
    leased = harness.claim("render", count=9)
    assert sorted(one.workflow == "three" for one in leased) == [False, False, True]
    assert harness.claim("render", count=9) == []


def test_every_end_of_a_task_frees_its_place(open_harness: Any) -> None:
    # A stored counter could leak; the live rows cannot.
    harness: EngineHarness = open_harness(settings_with(kind_running_max={"draw": 1}))
    for _ in range(6):
        harness.submit_job()
    harness.fail(harness.claim_one())
    harness.fail(harness.claim_one(), retryable=True)
    harness.cancel(harness.claim_one().job_id, grace_seconds=0)
    harness.delete(harness.claim_one().job_id)
    harness.claim_one(lease_seconds=5)
    assert harness.claim() == []
    harness.advance(5)
    assert len(harness.claim()) == 1


def test_a_limit_of_zero_stops_a_kind(open_harness: Any) -> None:
    harness: EngineHarness = open_harness(settings_with(kind_running_max={"draw": 0}))
    harness.submit_job()
    assert harness.claim(count=9) == []


def test_two_servers_share_one_limit(open_harness: Any) -> None:
    one: EngineHarness = open_harness(settings_with(kind_running_max={"draw": 2}))
    two: EngineHarness = open_harness(settings_with(kind_running_max={"draw": 2}), clock=one.clock)
    for _ in range(5):
        one.submit_job()
    assert len(one.claim()) + len(two.claim(count=9)) == 2
    assert one.claim() == two.claim() == []


def test_priority_holds_among_limited_queues(open_harness: Any) -> None:
    # R190
    harness: EngineHarness = open_harness(settings_with(kind_running_max={"draw": 2}))
    harness.workflow("poster")
    jobs = {p: harness.submit_job("poster" if p % 20 else "sketch", priority=p) for p in (10, 20, 30, 40)}
    assert [leased.lease.job_id for leased in harness.claim(count=9)] == [jobs[40], jobs[30]]
