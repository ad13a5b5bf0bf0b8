"""The sweeper: everything due is looked at, by any number of sweepers, past whatever cannot move on."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from callsheet.core.model.commands import TickJob, TickTask
from callsheet.core.model.errors import IllegalTransition
from callsheet.engine.loops.runner import LoopRunner
from callsheet.engine.loops.sweeper import Sweeper
from callsheet.store.connection import Connection
from tests.support.engine.engine_harness import EngineHarness
from tests.support.wait import wait_until


@contextlib.contextmanager
def direct_write(harness: EngineHarness) -> Iterator[Connection]:
    """Write to the database behind the engine's back."""
    connection = harness.database.connect()
    try:
        connection.begin()
        yield connection
        connection.commit()
    finally:
        connection.close()


def test_a_sweep_finds_everything_page_by_page(harness: EngineHarness) -> None:
    # V2
    jobs = [harness.submit_job(deadline_seconds=10 + n % 3) for n in range(11)]
    harness.clock.advance(12)
    assert Sweeper(harness.engine, page=2).run_once(harness.clock.now()) == 11
    assert {harness.status(job) for job in jobs} == {"expired"}
    assert Sweeper(harness.engine, page=2).run_once(harness.clock.now()) == 0


def test_what_came_due_while_no_server_ran_is_found_by_the_next_one(database_url: str) -> None:
    # R37, R58, R153: when to look is in the rows, and in no process
    with EngineHarness(database_url) as gone:
        gone.tenant()
        gone.workflow()
        gone.top_up(100)
        lost = gone.submit_job()
        gone.claim_one(lease_seconds=30)
        late, ending = gone.submit_job(start_in_seconds=60), gone.submit_job(deadline_seconds=60)
        told = {job: gone.events(job) for job in (late, ending, lost)}
    with EngineHarness(database_url, clock=gone.clock) as harness:
        assert {job: harness.events(job) for job in told} == told
        assert harness.advance(3_600) == 3
        assert [harness.status(job) for job in (late, ending, lost)] == ["queued", "expired", "running"]
        assert (harness.tasks(lost)[0].status, harness.ledger(ending)[-1]) == ("retried", ("refund", 5, 0))


def test_rows_that_cannot_move_on_do_not_hide_those_behind_them(harness: EngineHarness) -> None:
    # V7
    stuck = [harness.submit_job() for _ in range(5)]
    harness.claim(count=5)
    with direct_write(harness) as connection:
        connection.run("UPDATE job SET due_at = 1")
    real = harness.submit_job(deadline_seconds=10)
    harness.clock.advance(10)
    with pytest.raises(IllegalTransition):
        Sweeper(harness.engine, page=2).run_once(harness.clock.now())
    assert harness.status(real) == "expired", "the fault is told, after everybody has had their turn"
    with direct_write(harness) as connection:
        connection.run("UPDATE job SET due_at = deadline_at WHERE due_at = 1")
    assert {harness.status(job) for job in stuck} == {"running"}


def test_a_tick_before_its_time_does_nothing(harness: EngineHarness) -> None:
    # R196: the rules look again, so a hint may be early, late, doubled or about nothing
    job = harness.submit_job(deadline_seconds=60)
    lease = harness.claim_one(lease_seconds=30)
    before = harness.snapshot()
    harness.clock.advance(29)
    harness.do(TickJob(job_id=job))
    harness.do(TickTask(job_id=job, task_id=lease.task_id))
    harness.do(TickJob(job_id="nothing"))
    harness.do(TickTask(job_id=job, task_id="nothing"))
    assert harness.snapshot() == before


def test_a_doubled_tick_takes_effect_once(harness: EngineHarness) -> None:
    # R316
    job = harness.submit_job()
    lease = harness.claim_one(lease_seconds=30)
    harness.clock.advance(30)
    harness.engine.execute_many([TickTask(job_id=job, task_id=lease.task_id)] * 5)
    assert len(harness.reads.attempts(lease.task_id)) == 1
    assert harness.events(job).count("task.retried") == 1


def test_two_sweepers_at_once_do_no_harm(open_harness: Any) -> None:
    # R27, F30
    one: EngineHarness = open_harness()
    two: EngineHarness = open_harness(clock=one.clock)
    jobs = [one.submit_job() for _ in range(16)]
    one.claim(count=8, lease_seconds=5)
    one.top_up(40, user="bea")
    ending = [one.submit_job(user="bea", deadline_seconds=5) for _ in range(8)]
    one.clock.advance(5)
    together = Barrier(2)

    def sweep(harness: EngineHarness) -> None:
        together.wait()
        Sweeper(harness.engine, page=3).run_once(harness.clock.now())

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(sweep, harness) for harness in (one, two)]:
            done.result()
    assert [one.events(job).count("task.retried") for job in jobs] == [1] * 8 + [0] * 8
    assert [one.events(job).count("job.expired") for job in ending] == [1] * 8
    assert one.balance("bea") == 40


def test_a_pulse_runs_its_loop_and_tells_its_faults(harness: EngineHarness) -> None:
    # R58
    faults: list[Exception] = []

    class FailingLoop:
        def __init__(self) -> None:
            self.runs = 0

        def run_once(self, now: int) -> int:
            self.runs += 1
            if self.runs == 1:
                raise RuntimeError("once")
            return harness.sweeper.run_once(now)

    job = harness.submit_job(deadline_seconds=10)
    harness.clock.advance(10)
    pulse = LoopRunner(FailingLoop(), harness.clock.now, 0.01, lambda _, error: faults.append(error))
    pulse.start()
    wait_until(lambda: harness.status(job) == "expired")
    pulse.stop()
    assert [str(fault) for fault in faults] == ["once"]
