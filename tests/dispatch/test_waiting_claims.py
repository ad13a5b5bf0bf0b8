"""Waiting claims: idle workers share one query, work wakes them, and no task is lost."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from callsheet.core.model.commands import Claim, Command, LeasedTask
from callsheet.core.model.errors import Refusal
from callsheet.dispatch.waiting_claims import WaitingClaims
from tests.support.engine.engine_harness import EngineHarness
from tests.support.wait import wait_until

WAIT = 30.0


class RecordingEngine:
    """An engine that counts its claims and can delay their answers."""

    def __init__(self, harness: EngineHarness) -> None:
        self._engine = harness.engine
        self.hints = harness.engine.hints
        self.claim_count = 0
        self.release_answers: asyncio.Event | None = None

    async def aexecute_many(self, many: Sequence[Command]) -> list[Any]:
        self.claim_count += sum(isinstance(command, Claim) for command in many)
        answers = await self._engine.aexecute_many(many)
        if self.release_answers is not None and any(isinstance(command, Claim) for command in many):
            await self.release_answers.wait()
        return answers


def claim(no: int = 0, *, kinds: tuple[str, ...] = ("draw",)) -> Claim:
    return Claim(worker_id=f"w{no}", kinds=kinds)


async def until(condition: Callable[[], object]) -> None:
    """Wait in a thread, so that the event loop keeps running."""
    await asyncio.to_thread(wait_until, condition, WAIT)


def test_a_hundred_waiting_workers_share_one_claim_and_each_task_wakes_one(harness: EngineHarness) -> None:
    async def scenario() -> None:
        engine = RecordingEngine(harness)
        claims = WaitingClaims(engine, poll_seconds=3_600)
        waiting = [asyncio.ensure_future(claims.claim(claim(n), WAIT)) for n in range(100)]
        await until(lambda: claims.count == 100 and engine.claim_count == 1)
        for _ in range(3):
            await asyncio.to_thread(harness.submit_job)
        await until(lambda: sum(task.done() for task in waiting) == 3 and claims.count == 97)
        assert engine.claim_count <= 20
        claims.end()
        got = [leased for task in waiting for leased in await task]
        assert len({leased.lease.task_id for leased in got}) == 3

    asyncio.run(scenario())


def test_many_tasks_at_once_reach_all_waiting_workers(harness: EngineHarness) -> None:
    harness.workflow(price=0)

    async def scenario() -> None:
        engine = RecordingEngine(harness)
        claims = WaitingClaims(engine, poll_seconds=3_600)
        waiting = [asyncio.ensure_future(claims.claim(claim(n), WAIT)) for n in range(40)]
        await until(lambda: claims.count == 40)
        await harness.engine.aexecute_many([harness.submission()] * 40)
        got = [leased for task in waiting for leased in await task]
        assert len({leased.lease.task_id for leased in got}) == 40
        assert claims.count == 0

    asyncio.run(scenario())


def test_a_task_without_a_hint_is_found_by_the_poll(harness: EngineHarness) -> None:
    async def scenario() -> None:
        claims = WaitingClaims(RecordingEngine(harness), poll_seconds=0.05)
        waiting = asyncio.ensure_future(claims.claim(claim(), WAIT))
        await until(lambda: claims.count == 1)
        with EngineHarness(harness.database_url, clock=harness.clock) as other:
            await asyncio.to_thread(other.submit_job)
        assert len(await waiting) == 1

    asyncio.run(scenario())


def test_a_client_that_disconnects_during_its_claim_loses_no_task_and_no_attempt(harness: EngineHarness) -> None:
    async def scenario() -> None:
        engine = RecordingEngine(harness)
        claims = WaitingClaims(engine, poll_seconds=3_600)
        job = await asyncio.to_thread(harness.submit_job)
        engine.release_answers = asyncio.Event()
        waiting = asyncio.ensure_future(claims.claim(claim(), WAIT))
        await until(lambda: harness.status(job) == "running")
        waiting.cancel()
        engine.release_answers.set()
        await until(lambda: harness.tasks(job)[0].status == "retried")
        (task,) = harness.tasks(job)
        assert (task.attempts_counted, task.ready) == (0, 1)
        assert len(await claims.claim(claim(1), WAIT)) == 1

    asyncio.run(scenario())


def test_a_refused_claim_gets_its_refusal_and_does_not_block_others(harness: EngineHarness) -> None:
    async def scenario() -> list[LeasedTask]:
        claims = WaitingClaims(RecordingEngine(harness), poll_seconds=3_600)
        refused = asyncio.ensure_future(claims.claim(Claim(worker_id="x", kinds=("draw",), token_hash="0" * 64), WAIT))
        with pytest.raises(Refusal, match="register again"):
            await refused
        waiting = asyncio.ensure_future(claims.claim(claim(), WAIT))
        await until(lambda: claims.count == 1)
        await asyncio.to_thread(harness.submit_job)
        return await waiting

    assert len(asyncio.run(scenario())) == 1


def test_a_claim_returns_nothing_after_its_wait_and_one_without_a_wait_claims_once(harness: EngineHarness) -> None:
    async def scenario() -> None:
        engine = RecordingEngine(harness)
        claims = WaitingClaims(engine, poll_seconds=3_600)
        assert await claims.claim(claim(), 0) == []
        assert await claims.claim(claim(), 0.01) == []
        job = await asyncio.to_thread(harness.submit_job)
        (leased,) = await claims.claim(claim(), 0)
        assert leased.lease.job_id == job

    asyncio.run(scenario())


def test_a_task_wakes_only_workers_of_its_kind(harness: EngineHarness) -> None:
    harness.workflow("song", price=0)

    async def scenario() -> None:
        claims = WaitingClaims(RecordingEngine(harness), poll_seconds=3_600)
        draw = asyncio.ensure_future(claims.claim(claim(1), WAIT))
        sing = asyncio.ensure_future(claims.claim(claim(2, kinds=("sing",)), WAIT))
        await until(lambda: claims.count == 2)
        await asyncio.to_thread(harness.submit_job)
        assert len(await draw) == 1
        assert not sing.done()
        claims.end()
        assert await sing == []

    asyncio.run(scenario())


def test_a_client_that_disconnects_during_a_claim_without_a_wait_loses_no_task_and_no_attempt(
    harness: EngineHarness,
) -> None:
    async def scenario() -> None:
        engine = RecordingEngine(harness)
        claims = WaitingClaims(engine, poll_seconds=3_600)
        job = await asyncio.to_thread(harness.submit_job)
        engine.release_answers = asyncio.Event()
        waiting = asyncio.ensure_future(claims.claim(claim(), 0))
        await until(lambda: harness.status(job) == "running")
        waiting.cancel()
        engine.release_answers.set()
        await until(lambda: harness.tasks(job)[0].status == "retried")
        assert harness.tasks(job)[0].attempts_counted == 0

    asyncio.run(scenario())


def test_waiting_claims_that_end_during_a_claim_release_it_too(harness: EngineHarness) -> None:
    async def scenario() -> None:
        engine = RecordingEngine(harness)
        claims = WaitingClaims(engine, poll_seconds=3_600)
        engine.release_answers = asyncio.Event()
        waiting = asyncio.ensure_future(claims.claim(claim(), 3_600))
        idle = asyncio.ensure_future(claims.wait_idle(3_600))
        await until(lambda: engine.claim_count == 1)
        claims.end()
        engine.release_answers.set()
        async with asyncio.timeout(WAIT):
            assert await waiting == []
            await idle

    asyncio.run(scenario())


def test_an_error_of_the_engine_reaches_all_waiting_claims(harness: EngineHarness) -> None:
    class ClosedEngine(RecordingEngine):
        async def aexecute_many(self, many: Sequence[Command]) -> list[Any]:
            await super().aexecute_many(many)
            raise OSError("closed")

    async def scenario() -> list[Any]:
        claims = WaitingClaims(ClosedEngine(harness), poll_seconds=3_600)
        waiting = [claims.claim(claim(n), 3_600) for n in range(5)]
        async with asyncio.timeout(WAIT):
            return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(scenario())] == [OSError] * 5


def test_the_number_of_claims_in_one_batch_is_limited(harness: EngineHarness) -> None:
    class EndlessEngine:
        """An engine with a task for every claim."""

        hints = harness.engine.hints
        batch_max = 0

        async def aexecute_many(self, many: Sequence[Command]) -> list[Any]:
            self.batch_max = max(self.batch_max, len(many))
            return [["work"] for _ in many]

    async def scenario() -> None:
        engine = EndlessEngine()
        claims = WaitingClaims(engine, poll_seconds=3_600)
        answers = await asyncio.gather(*[claims.claim(claim(n), WAIT) for n in range(3_000)])
        assert len(answers) == 3_000
        assert engine.batch_max <= harness.settings.limits.bulk_items_max

    asyncio.run(scenario())


def test_releasing_a_worker_ends_its_waiting_claim_at_once(harness: EngineHarness) -> None:
    """Also while a claim for it is executed."""

    async def scenario() -> None:
        engine = RecordingEngine(harness)
        engine.release_answers = asyncio.Event()
        claims = WaitingClaims(engine, poll_seconds=3_600)
        waiting = [asyncio.ensure_future(claims.claim(claim(n), WAIT)) for n in range(2)]
        await until(lambda: engine.claim_count == 1)
        claims.release_worker("w0")
        assert await asyncio.wait_for(waiting[0], WAIT / 2) == []
        engine.release_answers.set()
        await until(lambda: engine.claim_count == 2)
        assert (claims.count, waiting[1].done()) == (1, False)
        claims.end()
        assert await waiting[1] == []

    asyncio.run(scenario())
