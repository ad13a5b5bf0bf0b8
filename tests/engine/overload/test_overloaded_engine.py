"""An engine whose lane is held up: callers are refused at once, reports go first, and nothing accepted is lost."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from callsheet.core.model.commands import Claim, Heartbeat, PutTenant, PutWorkflow, Submit
from callsheet.core.model.errors import Overloaded
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.admission import QueueLimits, WorkClass
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine import Engine
from callsheet.engine.queue_stats import merge_refused
from callsheet.engine.reads.batched import BatchedReader
from callsheet.settings import Settings
from tests.support.engine.held_lane import hold_lane
from tests.support.wait import wait_until

SUBMIT = Submit(tenant="acme", user="ann", workflow="sketch")
WAITING_MAX = 3
SETTINGS = Settings(
    writes_waiting_max=WAITING_MAX, claims_waiting_max=1, limits=Limits(batch_commands_max=1), lanes=1
)  # fmt: skip


@contextmanager
def open_engine(database_url: str, settings: Settings = SETTINGS, **options: Any) -> Iterator[Engine]:
    with Engine.open(database_url, settings, **options) as engine:
        engine.execute(PutTenant(tenant="acme"))
        stages = [StageSpec(name="draw", kind="draw")]
        engine.execute(PutWorkflow(definition=WorkflowDefinition(name="sketch", stages=stages)))
        yield engine


@contextmanager
def overload(engine: Engine) -> Iterator[list[Future[Any]]]:
    """Hold up the lane, and fill its queue with submits from threads. At the end, they are executed."""
    with ThreadPoolExecutor(WAITING_MAX) as threads, hold_lane(engine):
        futures = [threads.submit(engine.execute, SUBMIT) for _ in range(WAITING_MAX)]
        wait_until(lambda: engine.is_overloaded(WorkClass.WRITE))
        yield futures


def test_the_submit_over_the_limit_is_refused_at_once_and_the_others_are_executed(database_url: str) -> None:
    with open_engine(database_url) as engine:
        with overload(engine) as futures:
            with pytest.raises(Overloaded):
                engine.execute(SUBMIT)
            with pytest.raises(Overloaded):
                asyncio.run(engine.aexecute(SUBMIT))
            assert not any(future.done() for future in futures)
        accepted = [future.result().job_id for future in futures]
        assert [engine.reads.job("acme", job_id).status for job_id in accepted] == ["queued"] * WAITING_MAX
        assert merge_refused(engine.queue_stats) == {WorkClass.WRITE: 2}
        assert engine.execute(SUBMIT).status == "queued"


def test_a_bulk_that_is_refused_has_the_refusal_in_the_place_of_each_result(database_url: str) -> None:
    with open_engine(database_url) as engine, overload(engine):
        assert [type(result) for result in engine.execute_many([SUBMIT, SUBMIT])] == [Overloaded, Overloaded]


def test_a_heartbeat_and_a_claim_are_accepted_by_a_full_lane_and_executed_before_its_submits(database_url: str) -> None:
    with open_engine(database_url) as engine:
        engine.execute(SUBMIT)
        (task,) = engine.execute(Claim(worker_id="w1", kinds=("draw",)))
        with ThreadPoolExecutor(2) as threads:
            with overload(engine):
                heartbeat = threads.submit(engine.execute, Heartbeat(lease=task.lease))
                claim = threads.submit(engine.execute, Claim(worker_id="w2", kinds=("draw",)))
                wait_until(lambda: engine.is_overloaded(WorkClass.CLAIM))
            assert not heartbeat.result(30).cancel
            assert claim.result(30) == []  # the submits came earlier, but were not executed yet


def test_gates_are_not_called_for_submits_that_the_lane_would_refuse(database_url: str) -> None:
    called: list[Submit] = []
    with open_engine(database_url, gates=[called.append]) as engine:
        with overload(engine), pytest.raises(Overloaded):
            asyncio.run(engine.aexecute(SUBMIT))
        assert len(called) == WAITING_MAX


def test_submits_that_wait_for_slow_gates_are_limited(database_url: str) -> None:
    release = threading.Event()

    async def submit_too_many(engine: Engine) -> list[Any]:
        waiting = [asyncio.ensure_future(engine.aexecute(SUBMIT)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        refused = await asyncio.gather(engine.aexecute(SUBMIT), return_exceptions=True)
        release.set()
        return [*refused, *await asyncio.gather(*waiting)]

    def gate(_: Submit) -> None:
        release.wait(30)

    with open_engine(database_url, gates=[gate]) as engine:
        refused, *accepted = asyncio.run(submit_too_many(engine))
    assert isinstance(refused, Overloaded)
    assert [one.status for one in accepted] == ["queued"] * WAITING_MAX


def test_a_reader_refuses_reads_over_its_limit_and_answers_the_others(database_url: str) -> None:
    async def read_too_many(engine: Engine) -> list[Any]:
        reader = BatchedReader(engine.database, "test", QueueLimits(waiting_max=2, wait_seconds_max=60.0, batch_max=8))
        waiting = [reader.fetch_all([("clock", {})]) for _ in range(2)]
        await asyncio.sleep(0)  # they wait for the thread, which has not started
        with pytest.raises(Overloaded):
            reader.fetch_all([("clock", {})])
        reader.start()
        answers = await asyncio.gather(*waiting)
        reader.stop()
        assert (reader.stats.refused[WorkClass.READ], sum(reader.stats.waits[WorkClass.READ].counts)) == (1, 2)
        return answers

    with open_engine(database_url) as engine:
        assert len(asyncio.run(read_too_many(engine))) == 2
