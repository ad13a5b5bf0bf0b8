"""Running limits per kind, workflow and provider: counted from live rows, so that nothing can leak."""

from typing import Any

from callsheet.config import Settings
from callsheet.core.limits import Limits
from tests.support.studio import Studio, stage


def limited(**limits: Any) -> Settings:
    return Settings(patience_seconds=5, limits=Limits(**limits))


def test_a_kind_runs_at_most_so_many_tasks(open_studio: Any) -> None:
    # R156, L8
    studio: Studio = open_studio(limited(kind_running_max={"draw": 2}))
    studio.workflow("poster")
    for _ in range(3):
        studio.ask()
        studio.ask("poster")
    first, second = studio.claim(count=9)
    assert studio.claim(count=9) == []
    studio.complete(first.lease)
    assert len(studio.claim(count=9)) == 1
    studio.requeue(second.lease)
    assert len(studio.claim(count=9)) == 1


def test_other_kinds_are_not_held_up(open_studio: Any) -> None:
    # R197
    studio: Studio = open_studio(limited(kind_running_max={"draw": 1}))
    studio.workflow("film", stages=[stage("cut")])
    for _ in range(2):
        studio.ask(priority=90)
        studio.ask("film")
    assert sorted(leased.kind for leased in studio.claim("draw", "cut", count=9)) == ["cut", "cut", "draw"]


def test_a_workflow_runs_at_most_so_many_tasks_over_all_its_kinds(studio: Studio) -> None:
    # R197
    studio.workflow("film", running_max=2, stages=[stage("draw"), stage("cut")])
    jobs = [studio.ask("film") for _ in range(3)]
    studio.ask()
    leased = studio.claim("draw", "cut", count=9)
    assert sorted(one.workflow for one in leased) == ["film", "film", "sketch"]
    mine = next(one.lease for one in leased if one.lease.job_id == jobs[0])
    studio.complete(mine)
    assert [one.workflow for one in studio.claim("draw", "cut", count=9)] == ["film"]
    assert studio.claim("draw", "cut", count=9) == []


def test_a_new_limit_of_a_workflow_counts_at_once(studio: Studio) -> None:
    studio.workflow("film", running_max=1)
    for _ in range(4):
        studio.ask("film")
    assert len(studio.claim(count=9)) == 1
    studio.workflow("film", running_max=3)
    assert len(studio.claim(count=9)) == 2
    studio.workflow("film", running_max=0)
    assert len(studio.claim(count=9)) == 1


def test_a_provider_runs_at_most_so_many_tasks_over_all_workflows(open_studio: Any) -> None:
    # R157
    studio: Studio = open_studio(limited(provider_running_max={"cloud": 2}))
    for name in ("one", "two"):
        studio.workflow(name, stages=[stage("render", provider="cloud")])
        studio.ask(name)
        studio.ask(name)
    studio.workflow("three", stages=[stage("render", provider="own")])
    studio.ask("three")
    leased = studio.claim("render", count=9)
    assert sorted(one.workflow == "three" for one in leased) == [False, False, True]
    assert studio.claim("render", count=9) == []


def test_a_place_is_freed_however_the_task_ended(open_studio: Any) -> None:
    # L1, L2: a counter would leak, live rows cannot
    studio: Studio = open_studio(limited(kind_running_max={"draw": 1}))
    for _ in range(6):
        studio.ask()
    studio.fail(studio.take())
    studio.fail(studio.take(), retryable=True)
    studio.cancel(studio.take().job_id, grace_seconds=0)
    studio.delete(studio.take().job_id)
    studio.take(lease_seconds=5)
    assert studio.claim() == []
    studio.advance(5)
    assert len(studio.claim()) == 1


def test_a_limit_of_none_stops_a_kind(open_studio: Any) -> None:
    studio: Studio = open_studio(limited(kind_running_max={"draw": 0}))
    studio.ask()
    assert studio.claim(count=9) == []


def test_two_servers_share_one_limit(open_studio: Any) -> None:
    # L8
    one: Studio = open_studio(limited(kind_running_max={"draw": 2}))
    two: Studio = open_studio(limited(kind_running_max={"draw": 2}), clock=one.clock)
    for _ in range(5):
        one.ask()
    assert len(one.claim()) + len(two.claim(count=9)) == 2
    assert one.claim() == two.claim() == []


def test_priority_holds_among_limited_queues(open_studio: Any) -> None:
    # R190
    studio: Studio = open_studio(limited(kind_running_max={"draw": 2}))
    studio.workflow("poster")
    jobs = {p: studio.ask("poster" if p % 20 else "sketch", priority=p) for p in (10, 20, 30, 40)}
    assert [leased.lease.job_id for leased in studio.claim(count=9)] == [jobs[40], jobs[30]]
