"""Waiting for work: a claim that finds nothing is woken by the next job; asyncio and threads see the same engine."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.model.commands import Claim, Complete, PutTenant, PutWorkflow, Submit, SubmitResult, TopUp
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.engine import Engine, Unavailable
from tests.support.engine.engine_harness import EngineHarness, stage
from tests.support.wait import wait_until

PATIENT = Settings(poll_seconds=60)


def test_a_waiting_claim_is_woken_by_a_submit(open_harness: Any) -> None:
    # R216, V5: with a poll of a minute, only the hint can have woken it
    harness: EngineHarness = open_harness(PATIENT)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(harness.engine.claim, Claim(worker_id="w1", kinds=("draw",)), 30)
        wait_until(lambda: harness.engine.hints._callbacks.get("draw"))  # noqa: SLF001 - seen to wait, not slept for
        job = harness.submit_job()
        (leased,) = waiting.result(20)
    assert leased.lease.job_id == job


def test_a_claim_that_does_not_wait_answers_at_once(harness: EngineHarness) -> None:
    # R216
    assert harness.engine.claim(Claim(worker_id="w1", kinds=("draw",))) == []


def test_asyncio_and_threads_see_the_same_engine(harness: EngineHarness) -> None:
    async def scenario() -> list[str]:
        made = await asyncio.gather(*(harness.engine.aexecute(harness.submission()) for _ in range(5)))
        leased = await harness.engine.aexecute(Claim(worker_id="w1", kinds=("draw",), count=9))
        await harness.engine.aexecute_many([Complete(lease=one.lease) for one in leased])
        return [submitted.job_id for submitted in made]

    jobs = asyncio.run(scenario())
    assert [harness.status(job) for job in jobs] == ["completed"] * 5


def test_a_refusal_is_raised_to_whoever_awaits(harness: EngineHarness) -> None:
    with pytest.raises(Exception, match="whole number"):
        asyncio.run(harness.engine.aexecute(TopUp(tenant="acme", user="ada", amount=0)))


def test_another_server_hears_of_new_work(database_url: str) -> None:
    # V5: PostgreSQL tells it; on a file the other one looks by itself
    settings = PATIENT if "://" in database_url else Settings(poll_seconds=0.05)
    claim = Claim(worker_id="w1", kinds=("draw",))
    with Engine.open(database_url, settings) as one, Engine.open(database_url) as two, ThreadPoolExecutor(1) as threads:
        two.execute(PutTenant(tenant="acme"))
        two.execute(PutWorkflow(definition=WorkflowDefinition(name="sketch", stages=[stage()])))
        waiting = threads.submit(one.claim, claim, 30)
        wait_until(lambda: one.hints._callbacks.get("draw"))  # noqa: SLF001 - seen to wait, not slept for
        made: list[str] = []

        def woken_kinds() -> bool:
            """Submit again and again, because nobody listens yet while the listener is still connecting."""
            made.append(_free_job(two))
            return waiting.done()

        wait_until(woken_kinds)
        assert waiting.result()[0].lease.job_id in made


def _free_job(engine: Engine) -> str:
    submitted: SubmitResult = engine.execute(Submit(tenant="acme", user="ada", workflow="sketch"))
    return submitted.job_id


def test_a_closed_engine_says_so(database_url: str) -> None:
    # R432
    engine = Engine.open(database_url)
    engine.close()
    with pytest.raises(Unavailable):
        engine.execute(TopUp(tenant="acme", user="ada", amount=1))
