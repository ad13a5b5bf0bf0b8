"""Who comes next: priority, then tenants by their share, then the older; and no tenant starves another."""

from typing import Any

from callsheet.core.commands import Change
from tests.support.studio import Studio, stage


def served(studio: Studio, count: int) -> list[str]:
    """Claim one by one, as a single worker does, and return the jobs in their order."""
    return [studio.take().job_id for _ in range(count)]


def tenants(studio: Studio, count: int) -> list[str]:
    return [studio.claim()[0].tenant for _ in range(count)]


def flood(studio: Studio, tenant: str, count: int, **fields: Any) -> list[str]:
    studio.top_up(5 * count, user="boss", tenant=tenant)
    many = [studio.submission(tenant=tenant, user="boss", **fields) for _ in range(count)]
    return [result.job_id for result in studio.engine.execute_many(many)]


def test_within_a_tenant_the_older_job_comes_first(studio: Studio) -> None:
    # R149, R190
    jobs = [studio.ask() for _ in range(6)]
    assert served(studio, 6) == jobs


def test_one_claim_hands_out_in_the_same_order(studio: Studio) -> None:
    # R149, R190
    jobs = [studio.ask() for _ in range(6)]
    assert [leased.lease.job_id for leased in studio.claim(count=6)] == jobs


def test_a_higher_priority_comes_first(studio: Studio) -> None:
    # R190, R392, C22
    low, high, middle, also_high = (studio.ask(priority=p) for p in (0, 100, 50, 100))
    assert served(studio, 4) == [high, also_high, middle, low]


def test_the_recipe_has_a_priority_of_its_own(studio: Studio) -> None:
    # R190
    studio.workflow("urgent", priority=90)
    later, sooner = studio.ask(), studio.ask("urgent")
    assert served(studio, 2) == [sooner, later]


def test_priority_holds_over_all_workflows_of_a_kind(studio: Studio) -> None:
    # R190, R197
    studio.workflow("poster")
    jobs = {p: studio.ask("poster" if p % 20 else "sketch", priority=p) for p in (10, 20, 30, 40)}
    assert served(studio, 4) == [jobs[40], jobs[30], jobs[20], jobs[10]]


def test_a_new_priority_moves_a_waiting_job(studio: Studio) -> None:
    # R190
    first, second, third = studio.ask(), studio.ask(), studio.ask()
    studio.do(Change(tenant="acme", job_id=third, priority=90))
    studio.do(Change(tenant="acme", job_id=first, priority=10))
    assert served(studio, 3) == [third, second, first]


def test_a_job_that_is_moved_queues_behind_those_of_its_tenant_that_were_there(studio: Studio) -> None:
    # R190
    moved = studio.ask(priority=50)
    there = [studio.ask(priority=90) for _ in range(3)]
    studio.do(Change(tenant="acme", job_id=moved, priority=90))
    assert served(studio, 4) == [*there, moved]


def test_a_new_priority_counts_for_later_stages_and_later_tries(studio: Studio) -> None:
    # R190
    studio.workflow("film", stages=[stage("plan"), stage("draw")])
    film = studio.ask("film", priority=10)
    studio.do(Change(tenant="acme", job_id=film, priority=90))
    studio.complete(studio.take("plan"))
    studio.ask(priority=50)
    assert studio.take().job_id == film
    assert {task.priority for task in studio.tasks(film)} == {90}


def test_a_flooding_tenant_does_not_starve_another(studio: Studio) -> None:
    # V6
    studio.tenant("quiet")
    flood(studio, "acme", 100)
    (mine,) = flood(studio, "quiet", 1)
    assert mine in served(studio, 2), "its wait is at most twice what it would be alone"


def test_equal_tenants_share_equally(studio: Studio) -> None:
    # V6
    studio.tenant("quiet")
    flood(studio, "acme", 30)
    flood(studio, "quiet", 10)
    order = tenants(studio, 20)
    assert order.count("quiet") == 10
    for n in range(2, 20, 2):
        assert abs(order[:n].count("acme") - n // 2) <= 1, order


def test_a_tenant_of_double_weight_gets_double(studio: Studio) -> None:
    # V6
    studio.tenant("big", weight=2)
    flood(studio, "acme", 30)
    flood(studio, "big", 30)
    order = tenants(studio, 30)
    assert 19 <= order.count("big") <= 21, order


def test_a_tenant_that_comes_back_has_no_credit_from_its_absence(studio: Studio) -> None:
    # V6
    studio.tenant("quiet")
    flood(studio, "acme", 60)
    tenants(studio, 30)
    flood(studio, "quiet", 20)
    order = tenants(studio, 20)
    assert 9 <= order.count("quiet") <= 11, order


def test_a_tenant_that_submits_one_by_one_is_served_as_soon(studio: Studio) -> None:
    # V6
    studio.tenant("quiet")
    flood(studio, "acme", 40)
    for _ in range(10):
        (mine,) = flood(studio, "quiet", 1)
        assert mine in served(studio, 2)


def test_a_queue_that_nobody_serves_does_not_block_others(studio: Studio) -> None:
    # R197
    studio.workflow("rare", stages=[stage("paint")], priority=100)
    for _ in range(5):
        studio.ask("rare")
    job = studio.ask(priority=0)
    assert studio.take().job_id == job
