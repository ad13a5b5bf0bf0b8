"""Waiting claims: a claim without work is woken by the next job; asyncio and threads share one engine."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from callsheet.core.model.commands import Claim, Complete, PutTenant, PutWorkflow, Submit, SubmitResult, TopUp
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.engine import Engine, Unavailable
from callsheet.engine.engine import database_for
from callsheet.settings import Settings
from tests.support.engine.engine_harness import EngineHarness, stage
from tests.support.wait import wait_until

SLOW_POLLS = Settings(poll_seconds=60)


def test_a_waiting_claim_is_woken_by_a_submit(open_harness: Any) -> None:
    # With a poll interval of a minute, only the hint can wake the claim.
    harness: EngineHarness = open_harness(SLOW_POLLS)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(harness.engine.claim, Claim(worker_id="w1", kinds=("draw",)), 30)
        wait_until(lambda: harness.engine.hints._callbacks.get("draw"))  # noqa: SLF001 - wait for the subscription without a sleep
        job = harness.submit_job()
        (leased,) = waiting.result(20)
    assert leased.lease.job_id == job


def test_a_waiting_claim_gets_tasks_that_another_server_has_locked_when_it_unlocks_them(open_harness: Any) -> None:
    """A server that reports on a large job has locked all its tasks. Nothing announces the end of the lock."""
    harness: EngineHarness = open_harness(SLOW_POLLS)
    job = harness.submit_job()
    other = database_for(harness.database_url, SLOW_POLLS).connect()
    if harness.database.name == "postgresql":  # on SQLite nothing runs next to another write transaction
        other.begin()
    other.fetch("jobs", ids=[job])
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(harness.engine.claim, Claim(worker_id="w1", kinds=("draw",)), 30)
        wait_until(lambda: waiting.done() or harness.engine.hints._work_expected_at)  # noqa: SLF001 - it was skipped once
        other.rollback()
        (leased,) = waiting.result(20)
    other.close()
    assert leased.lease.job_id == job


def test_a_claim_that_does_not_wait_returns_at_once(harness: EngineHarness) -> None:
    # R216
    assert harness.engine.claim(Claim(worker_id="w1", kinds=("draw",))) == []


def test_asyncio_and_threads_share_one_engine(harness: EngineHarness) -> None:
    async def scenario() -> list[str]:
        submitted = await asyncio.gather(*(harness.engine.aexecute(harness.submission()) for _ in range(5)))
        leased = await harness.engine.aexecute(Claim(worker_id="w1", kinds=("draw",), count=9))
        await harness.engine.aexecute_many([Complete(lease=one.lease) for one in leased])
        return [one.job_id for one in submitted]

    jobs = asyncio.run(scenario())
    assert [harness.status(job) for job in jobs] == ["completed"] * 5


def test_a_refusal_is_raised_in_the_awaiting_coroutine(harness: EngineHarness) -> None:
    with pytest.raises(Exception, match="whole number"):
        asyncio.run(harness.engine.aexecute(TopUp(tenant="acme", user="ada", amount=0)))


def test_a_submit_wakes_a_claim_that_waits_at_another_server(database_url: str) -> None:
    # PostgreSQL notifies the other server; with SQLite it polls.
    settings = SLOW_POLLS if "://" in database_url else Settings(poll_seconds=0.05)
    claim = Claim(worker_id="w1", kinds=("draw",))
    with Engine.open(database_url, settings) as one, Engine.open(database_url) as two, ThreadPoolExecutor(1) as threads:
        two.execute(PutTenant(tenant="acme"))
        two.execute(PutWorkflow(definition=WorkflowDefinition(name="sketch", stages=[stage()])))
        waiting = threads.submit(one.claim, claim, 30)
        wait_until(lambda: one.hints._callbacks.get("draw"))  # noqa: SLF001 - wait for the subscription without a sleep
        job_ids: list[str] = []

        def submit_until_claimed() -> bool:
            """Submit repeatedly: the first notifications are lost if the listener is still connecting."""
            job_ids.append(_submit_free_job(two))
            return waiting.done()

        wait_until(submit_until_claimed)
        assert waiting.result()[0].lease.job_id in job_ids


def _submit_free_job(engine: Engine) -> str:
    submitted: SubmitResult = engine.execute(Submit(tenant="acme", user="ada", workflow="sketch"))
    return submitted.job_id


def test_a_closed_engine_refuses_commands(database_url: str) -> None:
    engine = Engine.open(database_url)
    engine.close()
    with pytest.raises(Unavailable):
        engine.execute(TopUp(tenant="acme", user="ada", amount=1))
