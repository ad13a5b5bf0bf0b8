"""The sweeper: everything due is looked at, by any number of sweepers, past whatever cannot move on."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from callsheet.core.commands import TickJob, TickTask
from callsheet.core.errors import IllegalMove
from callsheet.engine.loops import Pulse, Sweeper
from callsheet.store.connection import Connection
from tests.support.studio import Studio
from tests.support.waiting import wait_until


@contextlib.contextmanager
def by_hand(studio: Studio) -> Iterator[Connection]:
    """Write to the database behind the engine's back."""
    connection = studio.database.connect()
    try:
        connection.begin()
        yield connection
        connection.commit()
    finally:
        connection.close()


def test_a_sweep_finds_everything_page_by_page(studio: Studio) -> None:
    # V2
    jobs = [studio.ask(deadline_seconds=10 + n % 3) for n in range(11)]
    studio.clock.advance(12)
    assert Sweeper(studio.engine, page=2).run_once(studio.clock.now()) == 11
    assert {studio.status(job) for job in jobs} == {"expired"}
    assert Sweeper(studio.engine, page=2).run_once(studio.clock.now()) == 0


def test_what_came_due_while_no_server_ran_is_found_by_the_next_one(place: str) -> None:
    # R37, R58, R153: when to look is in the rows, and in no process
    with Studio(place) as gone:
        gone.tenant()
        gone.workflow()
        gone.top_up(100)
        lost = gone.ask()
        gone.take(lease_seconds=30)
        late, ending = gone.ask(start_in_seconds=60), gone.ask(deadline_seconds=60)
        told = {job: gone.events(job) for job in (late, ending, lost)}
    with Studio(place, clock=gone.clock) as studio:
        assert {job: studio.events(job) for job in told} == told
        assert studio.advance(3_600) == 3
        assert [studio.status(job) for job in (late, ending, lost)] == ["queued", "expired", "running"]
        assert (studio.tasks(lost)[0].status, studio.ledger(ending)[-1]) == ("retried", ("refund", 5, 0))


def test_rows_that_cannot_move_on_do_not_hide_those_behind_them(studio: Studio) -> None:
    # V7
    stuck = [studio.ask() for _ in range(5)]
    studio.claim(count=5)
    with by_hand(studio) as connection:
        connection.run("UPDATE job SET due_at = 1")
    real = studio.ask(deadline_seconds=10)
    studio.clock.advance(10)
    with pytest.raises(IllegalMove):
        Sweeper(studio.engine, page=2).run_once(studio.clock.now())
    assert studio.status(real) == "expired", "the fault is told, after everybody has had their turn"
    with by_hand(studio) as connection:
        connection.run("UPDATE job SET due_at = deadline_at WHERE due_at = 1")
    assert {studio.status(job) for job in stuck} == {"running"}


def test_a_tick_before_its_time_does_nothing(studio: Studio) -> None:
    # R196: the rules look again, so a hint may be early, late, doubled or about nothing
    job = studio.ask(deadline_seconds=60)
    lease = studio.take(lease_seconds=30)
    before = studio.snapshot()
    studio.clock.advance(29)
    studio.do(TickJob(job_id=job))
    studio.do(TickTask(job_id=job, task_id=lease.task_id))
    studio.do(TickJob(job_id="nothing"))
    studio.do(TickTask(job_id=job, task_id="nothing"))
    assert studio.snapshot() == before


def test_a_doubled_tick_takes_effect_once(studio: Studio) -> None:
    # R316
    job = studio.ask()
    lease = studio.take(lease_seconds=30)
    studio.clock.advance(30)
    studio.engine.execute_many([TickTask(job_id=job, task_id=lease.task_id)] * 5)
    assert len(studio.read.attempts(lease.task_id)) == 1
    assert studio.events(job).count("task.retried") == 1


def test_two_sweepers_at_once_do_no_harm(open_studio: Any) -> None:
    # R27, F30
    one: Studio = open_studio()
    two: Studio = open_studio(clock=one.clock)
    jobs = [one.ask() for _ in range(16)]
    one.claim(count=8, lease_seconds=5)
    one.top_up(40, user="bea")
    ending = [one.ask(user="bea", deadline_seconds=5) for _ in range(8)]
    one.clock.advance(5)
    together = Barrier(2)

    def sweep(studio: Studio) -> None:
        together.wait()
        Sweeper(studio.engine, page=3).run_once(studio.clock.now())

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(sweep, studio) for studio in (one, two)]:
            done.result()
    assert [one.events(job).count("task.retried") for job in jobs] == [1] * 8 + [0] * 8
    assert [one.events(job).count("job.expired") for job in ending] == [1] * 8
    assert one.balance("bea") == 40


def test_a_pulse_runs_its_loop_and_tells_its_faults(studio: Studio) -> None:
    # R58
    faults: list[Exception] = []

    class Stumbling:
        def __init__(self) -> None:
            self.runs = 0

        def run_once(self, now: int) -> int:
            self.runs += 1
            if self.runs == 1:
                raise RuntimeError("once")
            return studio.sweeper.run_once(now)

    job = studio.ask(deadline_seconds=10)
    studio.clock.advance(10)
    pulse = Pulse(Stumbling(), studio.clock.now, 0.01, lambda _, error: faults.append(error))
    pulse.start()
    wait_until(lambda: studio.status(job) == "expired")
    pulse.stop()
    assert [str(fault) for fault in faults] == ["once"]
