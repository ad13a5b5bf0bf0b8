"""The order of claims: priority, then the fair share of tenants, then age; no tenant starves another."""

from typing import Any

from callsheet.core.model.commands import Update
from tests.support.engine.engine_harness import EngineHarness, stage


def claimed_jobs(harness: EngineHarness, count: int) -> list[str]:
    """Claim one task after another and return their jobs in order."""
    return [harness.claim_one().job_id for _ in range(count)]


def claimed_tenants(harness: EngineHarness, count: int) -> list[str]:
    return [harness.claim()[0].tenant for _ in range(count)]


def submit_many(harness: EngineHarness, tenant: str, count: int, **fields: Any) -> list[str]:
    harness.top_up(5 * count, user="bea", tenant=tenant)
    many = [harness.submission(tenant=tenant, user="bea", **fields) for _ in range(count)]
    return [result.job_id for result in harness.engine.execute_many(many)]


def test_within_a_tenant_the_oldest_job_is_claimed_first(harness: EngineHarness) -> None:
    # R149, R190
    jobs = [harness.submit_job() for _ in range(6)]
    assert claimed_jobs(harness, 6) == jobs


def test_one_claim_of_many_tasks_has_the_same_order(harness: EngineHarness) -> None:
    # R149, R190
    jobs = [harness.submit_job() for _ in range(6)]
    assert [leased.lease.job_id for leased in harness.claim(count=6)] == jobs


def test_a_higher_priority_is_claimed_first(harness: EngineHarness) -> None:
    # R190, C22
    low, high, middle, also_high = (harness.submit_job(priority=p) for p in (0, 100, 50, 100))
    assert claimed_jobs(harness, 4) == [high, also_high, middle, low]


def test_the_workflow_sets_the_default_priority(harness: EngineHarness) -> None:
    # R190
    harness.workflow("urgent", priority=90)
    later, sooner = harness.submit_job(), harness.submit_job("urgent")
    assert claimed_jobs(harness, 2) == [sooner, later]


def test_priority_holds_across_all_workflows_of_a_kind(harness: EngineHarness) -> None:
    # R190
    harness.workflow("poster")
    jobs = {p: harness.submit_job("poster" if p % 20 else "sketch", priority=p) for p in (10, 20, 30, 40)}
    assert claimed_jobs(harness, 4) == [jobs[40], jobs[30], jobs[20], jobs[10]]


def test_a_new_priority_moves_a_queued_job(harness: EngineHarness) -> None:
    # R190
    first, second, third = harness.submit_job(), harness.submit_job(), harness.submit_job()
    harness.do(Update(tenant="acme", job_id=third, priority=90))
    harness.do(Update(tenant="acme", job_id=first, priority=10))
    assert claimed_jobs(harness, 3) == [third, second, first]


def test_a_job_with_a_new_priority_queues_after_the_jobs_that_had_it_before(harness: EngineHarness) -> None:
    # R190
    moved = harness.submit_job(priority=50)
    earlier = [harness.submit_job(priority=90) for _ in range(3)]
    harness.do(Update(tenant="acme", job_id=moved, priority=90))
    assert claimed_jobs(harness, 4) == [*earlier, moved]


def test_a_new_priority_applies_to_later_stages(harness: EngineHarness) -> None:
    # R190
    harness.workflow("film", stages=[stage("plan"), stage("draw")])
    film = harness.submit_job("film", priority=10)
    harness.do(Update(tenant="acme", job_id=film, priority=90))
    harness.complete(harness.claim_one("plan"))
    harness.submit_job(priority=50)
    assert harness.claim_one().job_id == film
    assert {task.priority for task in harness.tasks(film)} == {90}


def test_a_tenant_with_many_jobs_does_not_starve_another(harness: EngineHarness) -> None:
    # V6
    harness.tenant("quiet")
    submit_many(harness, "acme", 100)
    (job,) = submit_many(harness, "quiet", 1)
    assert job in claimed_jobs(harness, 2), "it waits at most twice as long as it would alone"


def test_equal_tenants_share_equally(harness: EngineHarness) -> None:
    # V6
    harness.tenant("quiet")
    submit_many(harness, "acme", 30)
    submit_many(harness, "quiet", 10)
    order = claimed_tenants(harness, 20)
    assert order.count("quiet") == 10
    for n in range(2, 20, 2):
        assert abs(order[:n].count("acme") - n // 2) <= 1, order


def test_a_tenant_with_double_weight_gets_a_double_share(harness: EngineHarness) -> None:
    # V6
    harness.tenant("big", weight=2)
    submit_many(harness, "acme", 30)
    submit_many(harness, "big", 30)
    order = claimed_tenants(harness, 30)
    assert 19 <= order.count("big") <= 21, order


def test_a_tenant_saves_no_share_while_it_is_idle(harness: EngineHarness) -> None:
    # V6
    harness.tenant("quiet")
    submit_many(harness, "acme", 60)
    claimed_tenants(harness, 30)
    submit_many(harness, "quiet", 20)
    order = claimed_tenants(harness, 20)
    assert 9 <= order.count("quiet") <= 11, order


def test_a_tenant_that_submits_one_by_one_is_not_at_a_disadvantage(harness: EngineHarness) -> None:
    # V6
    harness.tenant("quiet")
    submit_many(harness, "acme", 40)
    for _ in range(10):
        (job,) = submit_many(harness, "quiet", 1)
        assert job in claimed_jobs(harness, 2)


def test_a_queue_without_workers_does_not_block_others(harness: EngineHarness) -> None:
    # R197
    harness.workflow("rare", stages=[stage("paint")], priority=100)
    for _ in range(5):
        harness.submit_job("rare")
    job = harness.submit_job(priority=0)
    assert harness.claim_one().job_id == job
