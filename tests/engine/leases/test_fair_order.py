"""The order of claims: priority, then the fair share of tenants, then users in turn, then age."""

from typing import Any

from callsheet.core.model.commands import Cancel, Update
from tests.support.engine.engine_harness import EngineHarness, stage


def claimed_jobs(harness: EngineHarness, count: int) -> list[str]:
    """Claim one task after another and return their jobs in order."""
    return [harness.claim_one().job_id for _ in range(count)]


def claimed_tenants(harness: EngineHarness, count: int) -> list[str]:
    return [harness.claim()[0].tenant for _ in range(count)]


def claimed_users(harness: EngineHarness, count: int) -> list[str]:
    return [harness.job(job).user_id for job in claimed_jobs(harness, count)]


def submit_many(harness: EngineHarness, tenant: str, count: int, user: str = "bea", **fields: Any) -> list[str]:
    harness.top_up(5 * count, user=user, tenant=tenant)
    many = [harness.submission(tenant=tenant, user=user, **fields) for _ in range(count)]
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


def test_a_user_with_many_jobs_does_not_delay_another_user_of_the_tenant(harness: EngineHarness) -> None:
    # V6
    submit_many(harness, "acme", 200)
    claimed_jobs(harness, 3)
    (job,) = submit_many(harness, "acme", 1, user="cid")
    assert job in claimed_jobs(harness, 2)


def test_users_of_a_tenant_take_turns_and_their_own_jobs_stay_in_order(harness: EngineHarness) -> None:
    # V6, R149
    jobs = {user: submit_many(harness, "acme", 8, user=user) for user in ("bea", "cid", "dot")}
    order = claimed_jobs(harness, 24)
    assert [harness.job(job).user_id for job in order] == ["bea", "cid", "dot"] * 8
    for own in jobs.values():
        assert [job for job in order if job in own] == own


def test_one_claim_of_many_tasks_takes_turns_too(harness: EngineHarness) -> None:
    # V6
    for user in ("bea", "cid"):
        submit_many(harness, "acme", 6, user=user)
    users = [harness.job(leased.lease.job_id).user_id for leased in harness.claim(count=6)]
    assert users == ["bea", "cid"] * 3
    assert claimed_users(harness, 4) == ["bea", "cid"] * 2


def test_many_users_do_not_add_to_the_share_of_their_tenant(harness: EngineHarness) -> None:
    # V6
    harness.tenant("quiet")
    submit_many(harness, "quiet", 40)
    for n in range(20):
        submit_many(harness, "acme", 2, user=f"user-{n}")
    order = claimed_tenants(harness, 30)
    for n in range(2, 30, 2):
        assert abs(order[:n].count("acme") - n // 2) <= 1, order


def test_a_user_who_cancels_many_jobs_does_not_delay_others_of_the_tenant(harness: EngineHarness) -> None:
    """The canceled jobs had the early turns of the tenant. The other user's job gets one of them."""
    # V6
    harness.tenant("quiet")
    canceled = submit_many(harness, "acme", 30)
    (job,) = submit_many(harness, "acme", 1, user="cid")
    submit_many(harness, "quiet", 40)
    harness.engine.execute_many([Cancel(tenant="acme", job_id=key) for key in canceled])
    assert job in claimed_jobs(harness, 2)


def test_a_requeued_task_of_a_new_user_is_claimed_next(harness: EngineHarness) -> None:
    # R260
    submit_many(harness, "acme", 20)
    claimed_jobs(harness, 4)
    (job,) = submit_many(harness, "acme", 1, user="cid")
    leases = [harness.claim_one() for _ in range(4)]
    harness.requeue(next(lease for lease in leases if lease.job_id == job))
    assert harness.claim_one().job_id == job


def test_a_task_that_started_before_an_earlier_turn_exchanges_it(harness: EngineHarness) -> None:
    jobs = submit_many(harness, "acme", 3) + (own := submit_many(harness, "acme", 1, user="cid"))
    before = ranks(harness, jobs)
    claimed_jobs(harness, 2)
    assert ranks(harness, jobs) == before, "no turn is lost"
    assert ranks(harness, own) == before[1:2], "it used the second turn of its tenant"


def ranks(harness: EngineHarness, jobs: list[str]) -> list[int]:
    return sorted(task.rank for job in jobs for task in harness.tasks(job))


def test_a_queue_without_workers_does_not_block_others(harness: EngineHarness) -> None:
    # R197
    harness.workflow("rare", stages=[stage("paint")], priority=100)
    for _ in range(5):
        harness.submit_job("rare")
    job = harness.submit_job(priority=0)
    assert harness.claim_one().job_id == job
