"""The sweeper: it processes every due row, with any number of sweepers, and past rows that cannot progress."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from callsheet.core.model.commands import TickJob, TickTask
from callsheet.core.model.errors import IllegalTransition
from callsheet.engine.loops.loop_thread import LoopRunner
from callsheet.engine.loops.sweeper import Sweeper
from callsheet.store.connection import Connection
from tests.support.engine.engine_harness import EngineHarness
from tests.support.wait import wait_until


@contextlib.contextmanager
def direct_write(harness: EngineHarness) -> Iterator[Connection]:
    """Write to the database without the engine."""
    connection = harness.database.connect()
    try:
        connection.begin()
        yield connection
        connection.commit()
    finally:
        connection.close()


def test_a_sweep_reads_all_due_rows_page_by_page(harness: EngineHarness) -> None:
    # V2
    jobs = [harness.submit_job(deadline_seconds=10 + n % 3) for n in range(11)]
    harness.clock.advance(12)
    assert Sweeper(harness.engine, page=2).run_once(harness.clock.now()) == 11
    assert {harness.status(job) for job in jobs} == {"expired"}
    assert Sweeper(harness.engine, page=2).run_once(harness.clock.now()) == 0


def test_rows_that_became_due_while_no_server_ran_are_processed_by_the_next_one(database_url: str) -> None:
    # R37, R58, R153: the due times are in the rows, not in a process
    with EngineHarness(database_url) as first:
        first.tenant()
        first.workflow()
        first.top_up(100)
        lost = first.submit_job()
        first.claim_one(lease_seconds=30)
        scheduled, expiring = first.submit_job(start_in_seconds=60), first.submit_job(deadline_seconds=60)
        events = {job: first.events(job) for job in (scheduled, expiring, lost)}
    with EngineHarness(database_url, clock=first.clock) as second:
        assert {job: second.events(job) for job in events} == events
        assert second.advance(3_600) == 3
        assert [second.status(job) for job in (scheduled, expiring, lost)] == ["queued", "expired", "running"]
        assert (second.tasks(lost)[0].status, second.ledger(expiring)[-1]) == ("retried", ("refund", 5, 0))


def test_rows_that_cannot_progress_do_not_block_later_rows(harness: EngineHarness) -> None:
    # V7
    stuck = [harness.submit_job() for _ in range(5)]
    harness.claim(count=5)
    with direct_write(harness) as connection:
        connection.run("UPDATE job SET due_at = 1")
    due = harness.submit_job(deadline_seconds=10)
    harness.clock.advance(10)
    with pytest.raises(IllegalTransition):
        Sweeper(harness.engine, page=2).run_once(harness.clock.now())
    assert harness.status(due) == "expired", "the error is raised after all rows were processed"
    with direct_write(harness) as connection:
        connection.run("UPDATE job SET due_at = deadline_at WHERE due_at = 1")
    assert {harness.status(job) for job in stuck} == {"running"}


def test_a_tick_before_the_due_time_does_nothing(harness: EngineHarness) -> None:
    # R196: the decision checks the time again, so a tick may be early, late, repeated or about an unknown row
    job = harness.submit_job(deadline_seconds=60)
    lease = harness.claim_one(lease_seconds=30)
    before = harness.snapshot()
    harness.clock.advance(29)
    harness.do(TickJob(job_id=job))
    harness.do(TickTask(job_id=job, task_id=lease.task_id))
    harness.do(TickJob(job_id="unknown"))
    harness.do(TickTask(job_id=job, task_id="unknown"))
    assert harness.snapshot() == before


def test_a_repeated_tick_takes_effect_once(harness: EngineHarness) -> None:
    # R316
    job = harness.submit_job()
    lease = harness.claim_one(lease_seconds=30)
    harness.clock.advance(30)
    harness.engine.execute_many([TickTask(job_id=job, task_id=lease.task_id)] * 5)
    assert len(harness.reads.attempts(lease.task_id)) == 1
    assert harness.events(job).count("task.retried") == 1


def test_two_concurrent_sweepers_process_each_row_once(open_harness: Any) -> None:
    # R27, F30
    one: EngineHarness = open_harness()
    two: EngineHarness = open_harness(clock=one.clock)
    jobs = [one.submit_job() for _ in range(16)]
    one.claim(count=8, lease_seconds=5)
    one.top_up(40, user="bea")
    expiring = [one.submit_job(user="bea", deadline_seconds=5) for _ in range(8)]
    one.clock.advance(5)
    start = Barrier(2)

    def sweep(harness: EngineHarness) -> None:
        start.wait()
        Sweeper(harness.engine, page=3).run_once(harness.clock.now())

    with ThreadPoolExecutor(2) as threads:
        for future in [threads.submit(sweep, harness) for harness in (one, two)]:
            future.result()
    assert [one.events(job).count("task.retried") for job in jobs] == [1] * 8 + [0] * 8
    assert [one.events(job).count("job.expired") for job in expiring] == [1] * 8
    assert one.balance("bea") == 40


def test_the_loop_runner_reports_an_error_and_continues(harness: EngineHarness) -> None:
    errors: list[Exception] = []

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
    runner = LoopRunner(FailingLoop(), harness.clock.now, 0.01, lambda _, error: errors.append(error))
    runner.start()
    wait_until(lambda: harness.status(job) == "expired")
    runner.stop()
    assert [str(error) for error in errors] == ["once"]
