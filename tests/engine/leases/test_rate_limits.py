"""Rates per kind, workflow and provider: how many tasks start in a stretch of time, over all servers."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import Claim
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.rate_syntax import parse_rate
from callsheet.engine import Engine
from tests.support.engine.concurrency import run_concurrently
from tests.support.engine.engine_harness import EngineHarness, stage


def rated(**limits: Any) -> Settings:
    return Settings(database_retry_seconds=5, limits=Limits(**limits))


def test_a_kind_starts_so_many_a_minute_however_soon_they_end(open_harness: Any) -> None:
    harness: EngineHarness = open_harness(rated(kind_rate_max={"draw": "2/minute"}))
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
    assert len(harness.claim(count=9)) == 1, "a minute after the first"
    harness.advance(19)
    assert harness.claim(count=9) == []
    harness.advance(1)
    assert len(harness.claim(count=9)) == 1, "a minute after the second"


def test_a_rate_lets_all_its_starts_go_at_once(harness: EngineHarness) -> None:
    harness.workflow("film", price=0, rate_max="3/hour")
    for _ in range(5):
        harness.submit_job("film")
    assert len(harness.claim(count=9)) == 3
    harness.advance(3_599)
    assert harness.claim(count=9) == []
    harness.advance(1)
    assert len(harness.claim(count=9)) == 2


def test_every_attempt_is_a_start(harness: EngineHarness) -> None:
    """What a provider counts are calls, and a try that was given back has made one, or may have."""
    harness.workflow("film", price=0, rate_max="2/minute")
    harness.submit_job("film")
    harness.requeue(harness.claim_one())
    harness.requeue(harness.claim_one())
    assert harness.claim() == []
    harness.advance(60)
    assert len(harness.claim()) == 1


def test_a_provider_is_shared_by_its_workflows_and_others_are_not_held_up(open_harness: Any) -> None:
    harness: EngineHarness = open_harness(rated(provider_rate_max={"cloud": "2/minute"}))
    harness.workflow("poster", price=0, stages=[stage(provider="cloud")])
    harness.workflow("banner", price=0, stages=[stage(provider="cloud")])
    for _ in range(2):
        for name in ("poster", "banner", "sketch"):
            harness.submit_job(name, priority=50 if name == "sketch" else 90)
    got = [leased.workflow for leased in harness.claim(count=9)]
    assert (len(got), got.count("sketch")) == (4, 2)


def test_a_new_rate_of_a_workflow_holds_at_once_and_counts_from_then_on(harness: EngineHarness) -> None:
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


def test_a_rate_and_a_running_limit_hold_together(harness: EngineHarness) -> None:
    harness.workflow("film", price=0, running_max=2, rate_max="3/minute")
    for _ in range(6):
        harness.submit_job("film")
    one, two = harness.claim(count=9)
    harness.complete(one.lease)
    assert len(harness.claim(count=9)) == 1
    harness.complete(two.lease)
    assert harness.claim(count=9) == [], "a place is free, and the minute is not over"


def test_two_claims_of_one_batch_share_a_rate(harness: EngineHarness) -> None:
    harness.workflow("film", price=0, rate_max="1/minute", stages=[stage("draw"), stage("cut")])
    harness.submit_job("film")
    harness.complete(harness.claim_one())
    harness.submit_job("film")
    harness.advance(60)
    claims = [Claim(worker_id="w", kinds=(kind,)) for kind in ("draw", "cut")]
    assert sorted(map(len, harness.engine.execute_many(claims))) == [0, 1]


def test_a_rate_holds_under_sixteen_claimers_on_two_servers(open_harness: Any) -> None:
    limits = rated(kind_rate_max={"draw": "7/hour"})
    one: EngineHarness = open_harness(limits)
    two: EngineHarness = open_harness(limits, clock=one.clock)
    one.workflow("film", price=0)
    one.engine.execute_many([one.submission("film")] * 40)
    granted = run_concurrently(*[partial((one, two)[n % 2].claim, count=2, worker=f"w{n}") for n in range(16)])
    assert sum(map(len, granted)) == 7
    assert one.claim() == two.claim() == []


def test_whoever_waits_is_woken_when_the_rate_lets_the_next_one_start(database_url: str) -> None:
    """In real time, with a poll that would come far too late."""
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
def test_a_rate_is_written_in_one_way(text: str, rate: tuple[int, int] | None) -> None:
    assert parse_rate(text) == rate


def test_limits_with_a_rate_that_cannot_be_read_are_refused_and_not_taken_for_none() -> None:
    with pytest.raises(ValueError, match=r"provider_rate_max has .60 a minute.\. Write it as 60/minute"):
        Limits(provider_rate_max={"fal": "60 a minute"})
