"""Who comes next: priority, then tenants by their share, then the older; and no tenant starves another."""

from typing import Any

from callsheet.core.model.commands import Update
from tests.support.engine.engine_harness import EngineHarness, stage


def claimed_jobs(harness: EngineHarness, count: int) -> list[str]:
    """Claim one by one, as a single worker does, and return the jobs in their order."""
    return [harness.claim_one().job_id for _ in range(count)]


def tenants(harness: EngineHarness, count: int) -> list[str]:
    return [harness.claim()[0].tenant for _ in range(count)]


def flood(harness: EngineHarness, tenant: str, count: int, **fields: Any) -> list[str]:
    harness.top_up(5 * count, user="boss", tenant=tenant)
    many = [harness.submission(tenant=tenant, user="boss", **fields) for _ in range(count)]
    return [result.job_id for result in harness.engine.execute_many(many)]


def test_within_a_tenant_the_older_job_comes_first(harness: EngineHarness) -> None:
    # R149, R190
    jobs = [harness.submit_job() for _ in range(6)]
    assert claimed_jobs(harness, 6) == jobs


def test_one_claim_leases_in_the_same_order(harness: EngineHarness) -> None:
    # R149, R190
    jobs = [harness.submit_job() for _ in range(6)]
    assert [leased.lease.job_id for leased in harness.claim(count=6)] == jobs


def test_a_higher_priority_comes_first(harness: EngineHarness) -> None:
    # R190, R392, C22
    low, high, middle, also_high = (harness.submit_job(priority=p) for p in (0, 100, 50, 100))
    assert claimed_jobs(harness, 4) == [high, also_high, middle, low]


def test_the_definition_has_a_priority_of_its_own(harness: EngineHarness) -> None:
    # R190
    harness.workflow("urgent", priority=90)
    later, sooner = harness.submit_job(), harness.submit_job("urgent")
    assert claimed_jobs(harness, 2) == [sooner, later]


def test_priority_holds_over_all_workflows_of_a_kind(harness: EngineHarness) -> None:
    # R190, R197
    harness.workflow("poster")
    jobs = {p: harness.submit_job("poster" if p % 20 else "sketch", priority=p) for p in (10, 20, 30, 40)}
    assert claimed_jobs(harness, 4) == [jobs[40], jobs[30], jobs[20], jobs[10]]


def test_a_new_priority_moves_a_waiting_job(harness: EngineHarness) -> None:
    # R190
    first, second, third = harness.submit_job(), harness.submit_job(), harness.submit_job()
    harness.do(Update(tenant="acme", job_id=third, priority=90))
    harness.do(Update(tenant="acme", job_id=first, priority=10))
    assert claimed_jobs(harness, 3) == [third, second, first]


def test_a_job_that_is_moved_queues_behind_those_of_its_tenant_that_were_there(harness: EngineHarness) -> None:
    # R190
    moved = harness.submit_job(priority=50)
    there = [harness.submit_job(priority=90) for _ in range(3)]
    harness.do(Update(tenant="acme", job_id=moved, priority=90))
    assert claimed_jobs(harness, 4) == [*there, moved]


def test_a_new_priority_counts_for_later_stages_and_later_attempts(harness: EngineHarness) -> None:
    # R190
    harness.workflow("film", stages=[stage("plan"), stage("draw")])
    film = harness.submit_job("film", priority=10)
    harness.do(Update(tenant="acme", job_id=film, priority=90))
    harness.complete(harness.claim_one("plan"))
    harness.submit_job(priority=50)
    assert harness.claim_one().job_id == film
    assert {task.priority for task in harness.tasks(film)} == {90}


def test_a_flooding_tenant_does_not_starve_another(harness: EngineHarness) -> None:
    # V6
    harness.tenant("quiet")
    flood(harness, "acme", 100)
    (mine,) = flood(harness, "quiet", 1)
    assert mine in claimed_jobs(harness, 2), "its wait is at most twice what it would be alone"


def test_equal_tenants_share_equally(harness: EngineHarness) -> None:
    # V6
    harness.tenant("quiet")
    flood(harness, "acme", 30)
    flood(harness, "quiet", 10)
    order = tenants(harness, 20)
    assert order.count("quiet") == 10
    for n in range(2, 20, 2):
        assert abs(order[:n].count("acme") - n // 2) <= 1, order


def test_a_tenant_of_double_weight_gets_double(harness: EngineHarness) -> None:
    # V6
    harness.tenant("big", weight=2)
    flood(harness, "acme", 30)
    flood(harness, "big", 30)
    order = tenants(harness, 30)
    assert 19 <= order.count("big") <= 21, order


def test_a_tenant_that_comes_back_has_no_credit_from_its_absence(harness: EngineHarness) -> None:
    # V6
    harness.tenant("quiet")
    flood(harness, "acme", 60)
    tenants(harness, 30)
    flood(harness, "quiet", 20)
    order = tenants(harness, 20)
    assert 9 <= order.count("quiet") <= 11, order


def test_a_tenant_that_submits_one_by_one_is_served_as_soon(harness: EngineHarness) -> None:
    # V6
    harness.tenant("quiet")
    flood(harness, "acme", 40)
    for _ in range(10):
        (mine,) = flood(harness, "quiet", 1)
        assert mine in claimed_jobs(harness, 2)


def test_a_queue_that_nobody_serves_does_not_block_others(harness: EngineHarness) -> None:
    # R197
    harness.workflow("rare", stages=[stage("paint")], priority=100)
    for _ in range(5):
        harness.submit_job("rare")
    job = harness.submit_job(priority=0)
    assert harness.claim_one().job_id == job
