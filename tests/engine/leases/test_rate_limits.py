"""Rate limits per kind, workflow and provider: how many tasks start per time unit, over all servers."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import Claim
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.rate_syntax import parse_rate
from callsheet.engine import Engine
from callsheet.settings import Settings
from tests.support.engine.concurrency import run_concurrently
from tests.support.engine.engine_harness import EngineHarness, stage


def settings_with(**limits: Any) -> Settings:
    return Settings(database_retry_seconds=5, limits=Limits(**limits))


def test_a_kind_rate_counts_starts_also_of_tasks_that_have_ended(open_harness: Any) -> None:
    harness: EngineHarness = open_harness(settings_with(kind_rate_max={"draw": "2/minute"}))
    harness.workflow("poster")
    for _ in range(3):
        harness.submit_job()
        harness.submit_job("poster")
    harness.complete(harness.claim_one())
    harness.advance(20)
    harness.complete(harness.claim_one())
    assert harness.claim(count=9) == []
    harness.advance(39)
    assert harness.claim(count=9) == []
    harness.advance(1)
    assert len(harness.claim(count=9)) == 1, "a minute after the first start"
    harness.advance(19)
    assert harness.claim(count=9) == []
    harness.advance(1)
    assert len(harness.claim(count=9)) == 1, "a minute after the second start"


def test_a_rate_allows_all_its_starts_at_once(harness: EngineHarness) -> None:
    harness.workflow("film", price=0, rate_max="3/hour")
    for _ in range(5):
        harness.submit_job("film")
    assert len(harness.claim(count=9)) == 3
    harness.advance(3_599)
    assert harness.claim(count=9) == []
    harness.advance(1)
    assert len(harness.claim(count=9)) == 2


def test_every_attempt_counts_as_a_start(harness: EngineHarness) -> None:
    """A provider counts calls, and a requeued attempt may have made one."""
    harness.workflow("film", price=0, rate_max="2/minute")
    harness.submit_job("film")
    harness.requeue(harness.claim_one())
    harness.requeue(harness.claim_one())
    assert harness.claim() == []
    harness.advance(60)
    assert len(harness.claim()) == 1


def test_workflows_share_the_rate_of_their_provider_and_others_are_not_blocked(open_harness: Any) -> None:
    harness: EngineHarness = open_harness(settings_with(provider_rate_max={"cloud": "2/minute"}))
    harness.workflow("poster", price=0, stages=[stage(provider="cloud")])
    harness.workflow("banner", price=0, stages=[stage(provider="cloud")])
    for _ in range(2):
        for name in ("poster", "banner", "sketch"):
            harness.submit_job(name, priority=50 if name == "sketch" else 90)
    workflows = [leased.workflow for leased in harness.claim(count=9)]
    assert (len(workflows), workflows.count("sketch")) == (4, 2)


def test_a_new_rate_of_a_workflow_applies_at_once_and_counts_later_starts(harness: EngineHarness) -> None:
    harness.workflow("film", price=0)
    for _ in range(9):
        harness.submit_job("film")
    assert len(harness.claim(count=2)) == 2
    harness.workflow("film", price=0, rate_max="3/minute")
    assert len(harness.claim(count=9)) == 3
    harness.workflow("film", price=0, rate_max="4/minute")
    assert len(harness.claim(count=9)) == 1
    harness.workflow("film", price=0)
    assert len(harness.claim(count=9)) == 3


def test_a_rate_and_a_running_limit_apply_together(harness: EngineHarness) -> None:
    harness.workflow("film", price=0, running_max=2, rate_max="3/minute")
    for _ in range(6):
        harness.submit_job("film")
    one, two = harness.claim(count=9)
    harness.complete(one.lease)
    assert len(harness.claim(count=9)) == 1
    harness.complete(two.lease)
    assert harness.claim(count=9) == [], "the running limit allows another task, the rate does not"


def test_two_claims_of_one_batch_share_a_rate(harness: EngineHarness) -> None:
    harness.workflow("film", price=0, rate_max="1/minute", stages=[stage("draw"), stage("cut")])
    harness.submit_job("film")
    harness.complete(harness.claim_one())
    harness.submit_job("film")
    harness.advance(60)
    claims = [Claim(worker_id="w", kinds=(kind,)) for kind in ("draw", "cut")]
    assert sorted(map(len, harness.engine.execute_many(claims))) == [0, 1]


def test_a_rate_holds_under_sixteen_claimers_on_two_servers(open_harness: Any) -> None:
    limits = settings_with(kind_rate_max={"draw": "7/hour"})
    one: EngineHarness = open_harness(limits)
    two: EngineHarness = open_harness(limits, clock=one.clock)
    one.workflow("film", price=0)
    one.engine.execute_many([one.submission("film")] * 40)
    granted = run_concurrently(*[partial((one, two)[n % 2].claim, count=2, worker=f"w{n}") for n in range(16)])
    assert sum(map(len, granted)) == 7
    assert one.claim() == two.claim() == []


def test_a_waiting_claim_is_woken_when_the_rate_allows_the_next_start(database_url: str) -> None:
    """In real time, with a poll interval that would be far too long."""
    settings = Settings(poll_seconds=3_600, limits=Limits(kind_rate_max={"draw": "1/second"}))
    harness = EngineHarness(database_url, settings)
    harness.tenant()
    harness.workflow(price=0)
    harness.close()
    with Engine.open(database_url, settings) as engine:
        engine.execute_many([harness.submission()] * 3)
        leased = [engine.claim(Claim(worker_id="w", kinds=("draw",)), wait_seconds=60) for _ in range(3)]
        assert [len(one) for one in leased] == [1, 1, 1]
        moments = [engine.reads.attempts(one[0].lease.task_id)[0].leased_at for one in leased]
    assert all(later - sooner >= SECOND for sooner, later in pairwise(moments))


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("60/minute", (60, 60)), ("1/second", (1, 1)), ("1000000/day", (1_000_000, 86_400)), ("5/hour", (5, 3_600)),
        ("0/minute", None), ("1000001/day", None), ("60/minutes", None), ("60", None), ("-1/hour", None),
        ("1/second\n", None), ("\uff16/minute", None), ("", None),
    ],
)  # fmt: skip
def test_a_rate_has_the_form_count_per_unit(text: str, rate: tuple[int, int] | None) -> None:
    assert parse_rate(text) == rate


def test_limits_with_an_invalid_rate_are_refused() -> None:
    with pytest.raises(ValueError, match=r"provider_rate_max has .60 a minute.\. Use a rate such as 60/minute"):
        Limits(provider_rate_max={"fal": "60 a minute"})
