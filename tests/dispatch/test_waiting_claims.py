"""The room in which workers wait: an idle fleet asks as one, nobody waits beside work, nothing is lost on the way."""

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
    """The engine, with its claims counted; the next answers can be held back."""

    def __init__(self, harness: EngineHarness) -> None:
        self._engine = harness.engine
        self.hints = harness.engine.hints
        self.claims = 0
        self.held: asyncio.Event | None = None

    async def aexecute_many(self, many: Sequence[Command]) -> list[Any]:
        self.claims += sum(isinstance(command, Claim) for command in many)
        answers = await self._engine.aexecute_many(many)
        if self.held is not None and any(isinstance(command, Claim) for command in many):
            await self.held.wait()
        return answers


def claim(no: int = 0, *, kinds: tuple[str, ...] = ("draw",)) -> Claim:
    return Claim(worker_id=f"w{no}", kinds=kinds)


async def until(condition: Callable[[], object]) -> None:
    """Wait in a thread, so that the loop goes on."""
    await asyncio.to_thread(wait_until, condition, WAIT)


def test_a_hundred_waiting_workers_ask_as_one_and_each_task_wakes_one_of_them(harness: EngineHarness) -> None:
    async def scene() -> None:
        engine = RecordingEngine(harness)
        room = WaitingClaims(engine, poll_seconds=3_600)
        waiting = [asyncio.ensure_future(room.claim(claim(n), WAIT)) for n in range(100)]
        await until(lambda: room.count == 100 and engine.claims == 1)
        for _ in range(3):
            await asyncio.to_thread(harness.submit_job)
        await until(lambda: sum(task.done() for task in waiting) == 3 and room.count == 97)
        assert engine.claims <= 20
        room.end()
        got = [leased for task in waiting for leased in await task]
        assert len({leased.lease.task_id for leased in got}) == 3

    asyncio.run(scene())


def test_a_burst_of_work_reaches_everybody_who_waits(harness: EngineHarness) -> None:
    harness.workflow(price=0)

    async def scene() -> None:
        engine = RecordingEngine(harness)
        room = WaitingClaims(engine, poll_seconds=3_600)
        waiting = [asyncio.ensure_future(room.claim(claim(n), WAIT)) for n in range(40)]
        await until(lambda: room.count == 40)
        await harness.engine.aexecute_many([harness.submission()] * 40)
        got = [leased for task in waiting for leased in await task]
        assert len({leased.lease.task_id for leased in got}) == 40
        assert room.count == 0

    asyncio.run(scene())


def test_work_that_came_without_a_hint_is_found_by_the_poll(harness: EngineHarness) -> None:
    async def scene() -> None:
        room = WaitingClaims(RecordingEngine(harness), poll_seconds=0.05)
        waiting = asyncio.ensure_future(room.claim(claim(), WAIT))
        await until(lambda: room.count == 1)
        with EngineHarness(harness.database_url, clock=harness.clock) as other:
            await asyncio.to_thread(other.submit_job)
        assert len(await waiting) == 1

    asyncio.run(scene())


def test_a_client_that_disconnects_while_it_is_served_loses_no_task_and_no_attempt(harness: EngineHarness) -> None:
    async def scene() -> None:
        engine = RecordingEngine(harness)
        room = WaitingClaims(engine, poll_seconds=3_600)
        job = await asyncio.to_thread(harness.submit_job)
        engine.held = asyncio.Event()
        waiting = asyncio.ensure_future(room.claim(claim(), WAIT))
        await until(lambda: harness.status(job) == "running")
        waiting.cancel()
        engine.held.set()
        await until(lambda: harness.tasks(job)[0].status == "retried")
        (task,) = harness.tasks(job)
        assert (task.attempts_counted, task.ready) == (0, 1)
        assert len(await room.claim(claim(1), WAIT)) == 1

    asyncio.run(scene())


def test_one_that_may_take_nothing_hears_why_and_holds_up_nobody(harness: EngineHarness) -> None:
    async def scene() -> list[LeasedTask]:
        room = WaitingClaims(RecordingEngine(harness), poll_seconds=3_600)
        refused = asyncio.ensure_future(room.claim(Claim(worker_id="x", kinds=("draw",), session="0" * 64), WAIT))
        with pytest.raises(Refusal, match="register again"):
            await refused
        waiting = asyncio.ensure_future(room.claim(claim(), WAIT))
        await until(lambda: room.count == 1)
        await asyncio.to_thread(harness.submit_job)
        return await waiting

    assert len(asyncio.run(scene())) == 1


def test_a_wait_that_is_over_gives_nothing_and_a_claim_without_one_looks_once(harness: EngineHarness) -> None:
    async def scene() -> None:
        engine = RecordingEngine(harness)
        room = WaitingClaims(engine, poll_seconds=3_600)
        assert await room.claim(claim(), 0) == []
        assert await room.claim(claim(), 0.01) == []
        studio_job = await asyncio.to_thread(harness.submit_job)
        (leased,) = await room.claim(claim(), 0)
        assert leased.lease.job_id == studio_job

    asyncio.run(scene())


def test_kinds_wait_apart(harness: EngineHarness) -> None:
    harness.workflow("song", price=0)

    async def scene() -> None:
        room = WaitingClaims(RecordingEngine(harness), poll_seconds=3_600)
        draw = asyncio.ensure_future(room.claim(claim(1), WAIT))
        sing = asyncio.ensure_future(room.claim(claim(2, kinds=("sing",)), WAIT))
        await until(lambda: room.count == 2)
        await asyncio.to_thread(harness.submit_job)
        assert len(await draw) == 1
        assert not sing.done()
        room.end()
        assert await sing == []

    asyncio.run(scene())


def test_a_client_that_disconnects_without_waiting_loses_no_task_and_no_attempt(harness: EngineHarness) -> None:
    async def scene() -> None:
        engine = RecordingEngine(harness)
        room = WaitingClaims(engine, poll_seconds=3_600)
        job = await asyncio.to_thread(harness.submit_job)
        engine.held = asyncio.Event()
        asking = asyncio.ensure_future(room.claim(claim(), 0))
        await until(lambda: harness.status(job) == "running")
        asking.cancel()
        engine.held.set()
        await until(lambda: harness.tasks(job)[0].status == "retried")
        assert harness.tasks(job)[0].attempts_counted == 0

    asyncio.run(scene())


def test_waiting_claims_that_stop_during_a_claim_release_it_too(harness: EngineHarness) -> None:
    async def scene() -> None:
        engine = RecordingEngine(harness)
        room = WaitingClaims(engine, poll_seconds=3_600)
        engine.held = asyncio.Event()
        waiting = asyncio.ensure_future(room.claim(claim(), 3_600))
        resting = asyncio.ensure_future(room.wait_idle(3_600))
        await until(lambda: engine.claims == 1)
        room.end()
        engine.held.set()
        async with asyncio.timeout(WAIT):
            assert await waiting == []
            await resting

    asyncio.run(scene())


def test_when_nobody_can_ask_everybody_hears_it_and_nobody_waits_for_nothing(harness: EngineHarness) -> None:
    class Closed(RecordingEngine):
        async def aexecute_many(self, many: Sequence[Command]) -> list[Any]:
            await super().aexecute_many(many)
            raise OSError("closed")

    async def scene() -> list[Any]:
        room = WaitingClaims(Closed(harness), poll_seconds=3_600)
        waiting = [room.claim(claim(n), 3_600) for n in range(5)]
        async with asyncio.timeout(WAIT):
            return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(scene())] == [OSError] * 5


def test_however_many_wait_few_ask_together(harness: EngineHarness) -> None:
    class Endless:
        """As much work as anybody wants."""

        hints = harness.engine.hints
        most = 0

        async def aexecute_many(self, many: Sequence[Command]) -> list[Any]:
            self.most = max(self.most, len(many))
            return [["work"] for _ in many]

    async def scene() -> None:
        engine = Endless()
        room = WaitingClaims(engine, poll_seconds=3_600)
        answers = await asyncio.gather(*[room.claim(claim(n), WAIT) for n in range(3_000)])
        assert len(answers) == 3_000
        assert engine.most <= harness.settings.limits.bulk_items_max

    asyncio.run(scene())


def test_a_worker_is_let_go_while_it_asks(harness: EngineHarness) -> None:
    """It is told what was decided about it at once, and not when its wait is over."""

    async def scene() -> None:
        engine = RecordingEngine(harness)
        engine.held = asyncio.Event()
        room = WaitingClaims(engine, poll_seconds=3_600)
        waiting = [asyncio.ensure_future(room.claim(claim(n), WAIT)) for n in range(2)]
        await until(lambda: engine.claims == 1)
        room.release_worker("w0")
        assert await asyncio.wait_for(waiting[0], WAIT / 2) == []
        engine.held.set()
        await until(lambda: engine.claims == 2)
        assert (room.count, waiting[1].done()) == (1, False)
        room.end()
        assert await waiting[1] == []

    asyncio.run(scene())
