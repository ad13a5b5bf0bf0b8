"""Rates per kind, workflow and provider: how many tasks start in a stretch of time, over all servers."""

from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.clock import SECOND
from callsheet.core.commands import Claim
from callsheet.core.limits import Limits
from callsheet.core.rates import rate_of
from callsheet.engine import Engine
from tests.support.racing import at_once
from tests.support.studio import Studio, stage


def rated(**limits: Any) -> Settings:
    return Settings(patience_seconds=5, limits=Limits(**limits))


def test_a_kind_starts_so_many_a_minute_however_soon_they_end(open_studio: Any) -> None:
    studio: Studio = open_studio(rated(kind_rate_max={"draw": "2/minute"}))
    studio.workflow("poster")
    for _ in range(3):
        studio.ask()
        studio.ask("poster")
    studio.complete(studio.take())
    studio.advance(20)
    studio.complete(studio.take())
    assert studio.claim(count=9) == []
    studio.advance(39)
    assert studio.claim(count=9) == []
    studio.advance(1)
    assert len(studio.claim(count=9)) == 1, "a minute after the first"
    studio.advance(19)
    assert studio.claim(count=9) == []
    studio.advance(1)
    assert len(studio.claim(count=9)) == 1, "a minute after the second"


def test_a_rate_lets_all_its_starts_go_at_once(studio: Studio) -> None:
    studio.workflow("film", price=0, rate_max="3/hour")
    for _ in range(5):
        studio.ask("film")
    assert len(studio.claim(count=9)) == 3
    studio.advance(3_599)
    assert studio.claim(count=9) == []
    studio.advance(1)
    assert len(studio.claim(count=9)) == 2


def test_every_try_is_a_start(studio: Studio) -> None:
    """What a provider counts are calls, and a try that was given back has made one, or may have."""
    studio.workflow("film", price=0, rate_max="2/minute")
    studio.ask("film")
    studio.requeue(studio.take())
    studio.requeue(studio.take())
    assert studio.claim() == []
    studio.advance(60)
    assert len(studio.claim()) == 1


def test_a_provider_is_shared_by_its_workflows_and_others_are_not_held_up(open_studio: Any) -> None:
    studio: Studio = open_studio(rated(provider_rate_max={"cloud": "2/minute"}))
    studio.workflow("poster", price=0, stages=[stage(provider="cloud")])
    studio.workflow("banner", price=0, stages=[stage(provider="cloud")])
    for _ in range(2):
        for name in ("poster", "banner", "sketch"):
            studio.ask(name, priority=50 if name == "sketch" else 90)
    got = [leased.workflow for leased in studio.claim(count=9)]
    assert (len(got), got.count("sketch")) == (4, 2)


def test_a_new_rate_of_a_workflow_holds_at_once_and_counts_from_then_on(studio: Studio) -> None:
    studio.workflow("film", price=0)
    for _ in range(9):
        studio.ask("film")
    assert len(studio.claim(count=2)) == 2
    studio.workflow("film", price=0, rate_max="3/minute")
    assert len(studio.claim(count=9)) == 3
    studio.workflow("film", price=0, rate_max="4/minute")
    assert len(studio.claim(count=9)) == 1
    studio.workflow("film", price=0)
    assert len(studio.claim(count=9)) == 3


def test_a_rate_and_a_running_limit_hold_together(studio: Studio) -> None:
    studio.workflow("film", price=0, running_max=2, rate_max="3/minute")
    for _ in range(6):
        studio.ask("film")
    one, two = studio.claim(count=9)
    studio.complete(one.lease)
    assert len(studio.claim(count=9)) == 1
    studio.complete(two.lease)
    assert studio.claim(count=9) == [], "a place is free, and the minute is not over"


def test_two_claims_of_one_batch_share_a_rate(studio: Studio) -> None:
    studio.workflow("film", price=0, rate_max="1/minute", stages=[stage("draw"), stage("cut")])
    studio.ask("film")
    studio.complete(studio.take())
    studio.ask("film")
    studio.advance(60)
    claims = [Claim(worker_id="w", kinds=(kind,)) for kind in ("draw", "cut")]
    assert sorted(map(len, studio.engine.execute_many(claims))) == [0, 1]


def test_a_rate_holds_under_sixteen_claimers_on_two_servers(open_studio: Any) -> None:
    limits = rated(kind_rate_max={"draw": "7/hour"})
    one: Studio = open_studio(limits)
    two: Studio = open_studio(limits, clock=one.clock)
    one.workflow("film", price=0)
    one.engine.execute_many([one.submission("film")] * 40)
    granted = at_once(*[partial((one, two)[n % 2].claim, count=2, worker=f"w{n}") for n in range(16)])
    assert sum(map(len, granted)) == 7
    assert one.claim() == two.claim() == []


def test_whoever_waits_is_woken_when_the_rate_lets_the_next_one_start(place: str) -> None:
    """In real time, with a poll that would come far too late."""
    settings = Settings(poll_seconds=3_600, limits=Limits(kind_rate_max={"draw": "1/second"}))
    studio = Studio(place, settings)
    studio.tenant()
    studio.workflow(price=0)
    studio.close()
    with Engine.open(place, settings) as engine:
        engine.execute_many([studio.submission()] * 3)
        leased = [engine.claim(Claim(worker_id="w", kinds=("draw",)), wait_seconds=60) for _ in range(3)]
        assert [len(one) for one in leased] == [1, 1, 1]
        moments = [engine.read.attempts(one[0].lease.task_id)[0].leased_at for one in leased]
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
    assert rate_of(text) == rate


def test_limits_with_a_rate_that_cannot_be_read_are_refused_and_not_taken_for_none() -> None:
    with pytest.raises(ValueError, match=r"provider_rate_max has .60 a minute.\. Write it as 60/minute"):
        Limits(provider_rate_max={"fal": "60 a minute"})
