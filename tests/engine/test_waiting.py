"""Waiting for work: a claim that finds nothing is woken by the next job; asyncio and threads see the same engine."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.commands import Claim, Complete, PutTenant, PutWorkflow, Submit, Submitted, TopUp
from callsheet.core.recipe import Recipe
from callsheet.engine import Engine, Unavailable
from tests.support.studio import Studio, stage
from tests.support.waiting import wait_until

PATIENT = Settings(poll_seconds=60)


def test_a_waiting_claim_is_woken_by_a_submit(open_studio: Any) -> None:
    # R216, V5: with a poll of a minute, only the hint can have woken it
    studio: Studio = open_studio(PATIENT)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(studio.engine.claim, Claim(worker_id="w1", kinds=("draw",)), 30)
        wait_until(lambda: studio.engine.hints._waiting.get("draw"))  # noqa: SLF001 - seen to wait, not slept for
        job = studio.ask()
        (leased,) = waiting.result(20)
    assert leased.lease.job_id == job


def test_a_claim_that_does_not_wait_answers_at_once(studio: Studio) -> None:
    # R216
    assert studio.engine.claim(Claim(worker_id="w1", kinds=("draw",))) == []


def test_asyncio_and_threads_see_the_same_engine(studio: Studio) -> None:
    async def scenario() -> list[str]:
        made = await asyncio.gather(*(studio.engine.aexecute(studio.submission()) for _ in range(5)))
        leased = await studio.engine.aexecute(Claim(worker_id="w1", kinds=("draw",), count=9))
        await studio.engine.aexecute_many([Complete(lease=one.lease) for one in leased])
        return [submitted.job_id for submitted in made]

    jobs = asyncio.run(scenario())
    assert [studio.status(job) for job in jobs] == ["completed"] * 5


def test_a_refusal_is_raised_to_whoever_awaits(studio: Studio) -> None:
    with pytest.raises(Exception, match="whole number"):
        asyncio.run(studio.engine.aexecute(TopUp(tenant="acme", user="ada", amount=0)))


def test_another_server_hears_of_new_work(place: str) -> None:
    # V5: PostgreSQL tells it; on a file the other one looks by itself
    settings = PATIENT if "://" in place else Settings(poll_seconds=0.05)
    claim = Claim(worker_id="w1", kinds=("draw",))
    with Engine.open(place, settings) as one, Engine.open(place) as two, ThreadPoolExecutor(1) as threads:
        two.execute(PutTenant(tenant="acme"))
        two.execute(PutWorkflow(recipe=Recipe(name="sketch", stages=[stage()])))
        waiting = threads.submit(one.claim, claim, 30)
        wait_until(lambda: one.hints._waiting.get("draw"))  # noqa: SLF001 - seen to wait, not slept for
        made: list[str] = []

        def woken() -> bool:
            """Submit again and again, because nobody listens yet while the listener is still connecting."""
            made.append(_free_job(two))
            return waiting.done()

        wait_until(woken)
        assert waiting.result()[0].lease.job_id in made


def _free_job(engine: Engine) -> str:
    submitted: Submitted = engine.execute(Submit(tenant="acme", user="ada", workflow="sketch"))
    return submitted.job_id


def test_a_closed_engine_says_so(place: str) -> None:
    # R432
    engine = Engine.open(place)
    engine.close()
    with pytest.raises(Unavailable):
        engine.execute(TopUp(tenant="acme", user="ada", amount=1))
