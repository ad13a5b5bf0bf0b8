"""Workers of a fleet on real databases: several servers at once, the same rules."""

from functools import partial
from threading import Thread

import psycopg
import pytest

from callsheet.config import Settings
from callsheet.core import commands
from callsheet.core.commands import Claim, Deregister, Register, RevokeWorker, Seen, SetWorker, WorkerState
from callsheet.core.errors import NotAdmitted, Refusal
from callsheet.core.limits import Limits
from callsheet.core.rows import Worker
from callsheet.engine.loops import Rollcall
from tests.support.places import Places
from tests.support.racing import at_once, servers
from tests.support.studio import Studio, stage
from tests.support.waiting import wait_until

ENDS = [
    RevokeWorker(worker_id="gpu"),
    Deregister(worker_id="gpu", session=f"{1:064x}"),
    Register(worker_id="gpu", kinds=("draw",), token_hash=f"{2:064x}"),
]
"""Ways in which a worker loses what it holds."""


def token(no: int) -> str:
    return f"{no:064x}"


def come(studio: Studio, no: int, name: str | None = None, concurrency: int = 1) -> WorkerState | Refusal:
    """Register; a refusal is an answer here."""
    command = Register(worker_id=name or f"gpu-{no}", kinds=("draw",), token_hash=token(no), concurrency=concurrency)
    (answer,) = studio.engine.execute_many([command])
    result: WorkerState | Refusal = answer
    return result


def _is(connection: psycopg.Connection, question: str, count: int) -> bool:
    return connection.execute(question.encode()).fetchone() == (count,)


def rings(url: str) -> object:
    """Count the deadlocks of a database so far."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return found.fetchone()


def row(studio: Studio, name: str) -> Worker:
    return Worker(*studio.read.fetch("worker_of", id=name)[0])


def test_the_cap_holds_when_many_register_at_two_servers_at_once(place):
    """R201 under concurrency: counted while nobody else can come in."""
    settings = Settings(limits=Limits(workers_max=5), patience_seconds=20)
    with servers(place, 2, settings) as studios:
        answers = at_once(*[partial(come, studios[n % 2], n) for n in range(16)])
        there = [answer for answer in answers if isinstance(answer, WorkerState)]
        assert len(there) == 5
        assert {answer.code for answer in answers if isinstance(answer, Refusal)} == {"fleet_full"}


def test_a_name_that_registers_many_times_at_once_has_one_token_in_the_end(place):
    with servers(place, 2) as studios:
        one = studios[0]
        answers = at_once(*[partial(come, studios[n % 2], n, "gpu") for n in range(8)])
        assert all(isinstance(answer, WorkerState) for answer in answers)
        last = row(one, "gpu")
        assert last.starts == 8
        good = [n for n in range(8) if last.token_hash == token(n)]
        assert len(good) == 1
        one.tenant()
        one.workflow()
        claims = [Claim(worker_id="gpu", kinds=("draw",), session=token(n)) for n in range(8)]
        results = one.engine.execute_many(claims)
        assert [n for n, result in enumerate(results) if not isinstance(result, NotAdmitted)] == good


def test_a_restart_while_the_old_life_completes_leaves_one_truth(place):
    """F21: whoever is first wins, and nothing is done twice."""
    with servers(place, 2) as studios:
        one, two = studios
        one.tenant()
        one.workflow(price=0, stages=[stage()])
        for round_no in range(10):
            come(one, round_no, "gpu")
            job = one.ask()
            (leased,) = one.engine.execute(Claim(worker_id="gpu", kinds=("draw",), session=token(round_no)))
            done = commands.Complete(lease=leased.lease, worker_id="gpu")
            results = at_once(partial(one.engine.execute_many, [done]), partial(come, two, 100 + round_no, "gpu"))
            (report,) = results[0]
            if isinstance(report, Refusal):
                assert (report.code, one.status(job)) == ("lease_lost", "running")
                one.cancel(job)
            else:
                assert one.status(job) == "completed"
        assert not one.broken()


def test_a_revoked_worker_takes_nothing_while_it_claims_as_fast_as_it_can(place):
    """R195, L6: the claim and the revocation are in one order, whichever it is."""
    with servers(place, 2) as studios:
        one, two = studios
        one.tenant()
        one.workflow(price=0, stages=[stage()])
        come(one, 1, "gpu", concurrency=500)
        one.engine.execute_many([one.submission()] * 60)

        def claim() -> int:
            taken = 0
            for _ in range(40):
                (answer,) = one.engine.execute_many([Claim(worker_id="gpu", kinds=("draw",), session=token(1))])
                taken += 0 if isinstance(answer, Refusal) else len(answer)
            return taken

        at_once(claim, partial(two.engine.execute, RevokeWorker(worker_id="gpu")))
        assert len(one.read.fetch("leases_of", ids=["gpu"], most=9)) == 0
        assert not one.broken()


@pytest.mark.parametrize(
    "end",
    [*ENDS, Claim(worker_id="gpu", kinds=("draw",), session=token(1), holds=())],
    ids=lambda end: type(end).__name__,
)
def test_a_result_that_comes_while_its_worker_is_put_out_stands(places: Places, end):
    """What a worker holds is read once its jobs are locked: before that, another server may take in its result."""
    url = places.lend()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with servers(url, 2) as (one, two), psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as watch:
        one.tenant()
        one.workflow(price=0, stages=[stage(tasks=2)])
        job = one.ask()
        for no, name in ((1, "gpu"), (7, "other")):
            come(one, no, name, concurrency=2)
        (leased,) = one.do(Claim(worker_id="gpu", kinds=("draw",), session=token(1)))
        one.do(Claim(worker_id="other", kinds=("draw",), session=token(7)))
        holder.execute("SELECT 1 FROM job WHERE id = %s FOR UPDATE", [job])
        done = commands.Complete(lease=leased.lease, worker_id="gpu")
        threads = [Thread(target=one.do, args=(done,)), Thread(target=two.engine.execute_many, args=([end],))]
        for count, thread in enumerate(threads, 1):
            thread.start()
            wait_until(partial(_is, watch, waiting, count))
        holder.rollback()
        for thread in threads:
            thread.join()
        assert [(task.status, task.attempts) for task in one.tasks(job)] == [("completed", 1), ("running", 1)]
    places.give_back(url)


def test_workers_that_come_again_at_two_servers_never_wait_for_each_other_in_a_ring(places: Places):
    """Jobs of what they hold are locked with the other jobs of the batch, in one order."""
    url = places.lend()
    before = rings(url)
    with servers(url, 2) as (one, two):
        one.tenant()
        one.workflow(price=0, stages=[stage()])
        for no in range(0, 60, 3):
            come(one, no, "gpu")
            one.engine.execute_many([one.submission()] * 2)
            (mine,) = one.do(Claim(worker_id="gpu", kinds=("draw",), session=token(no)))
            come(one, no + 1, "other")
            (its,) = one.do(Claim(worker_id="other", kinds=("draw",), session=token(no + 1)))
            ends = [
                [commands.Complete(lease=its.lease), RevokeWorker(worker_id="gpu")],
                [commands.Complete(lease=mine.lease), RevokeWorker(worker_id="other")],
            ]
            at_once(partial(one.engine.execute_many, ends[0]), partial(two.engine.execute_many, ends[1]))
            one.engine.execute_many([SetWorker(worker_id=name, approved=True) for name in ("gpu", "other")])
    assert rings(url) == before
    places.give_back(url)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_a_task_that_is_claimed_in_the_very_batch_that_puts_its_worker_out_is_given_back(studio, end):
    job = studio.ask()
    come(studio, 1, "gpu")
    leased, state = studio.engine.execute_many([Claim(worker_id="gpu", kinds=("draw",), session=token(1)), end])
    assert (len(leased), state.requeued) == (1, 1)
    (task,) = studio.tasks(job)
    assert (task.status, task.attempts_charged, task.ready) == ("retried", 0, 1)


def test_the_last_contact_of_many_is_written_at_once(studio):
    for no in range(20):
        come(studio, no)
    studio.clock.advance(90)
    names = tuple(f"gpu-{no}" for no in range(20))
    assert studio.do(Seen(workers=names)) == 20
    assert {row(studio, name).seen_at for name in names} == {studio.clock.now()}


def test_the_rollcall_finds_who_was_silent_for_long(studio):
    come(studio, 1)
    come(studio, 2)
    rollcall = Rollcall(studio.engine, 7_200)
    studio.clock.advance(7_000)
    studio.do(Seen(workers=("gpu-1",)))
    assert rollcall.run_once(studio.clock.now()) == 0
    studio.clock.advance(300)
    assert rollcall.run_once(studio.clock.now()) == 1
    assert [row(studio, f"gpu-{no}").status for no in (1, 2)] == ["approved", "gone"]


def test_who_goes_may_come_again_and_is_counted_once(studio):
    come(studio, 1)
    studio.do(Deregister(worker_id="gpu-1", session=token(1)))
    assert studio.read.fetch("fleet")[0][0] == 0
    come(studio, 1)
    assert studio.read.fetch("fleet")[0][0] == 1


def test_a_job_of_seven_minutes_keeps_a_lease_of_ten_seconds(studio):
    """R227, weak point 10 of the original: as long as its worker is heard of, nobody else gets the task."""
    studio.workflow("long", lease_seconds=10)
    job = studio.ask("long")
    come(studio, 1, "gpu")
    come(studio, 2, "rival")
    (leased,) = studio.do(Claim(worker_id="gpu", kinds=("draw",), session=token(1)))
    expiries = []
    for second in range(0, 420, 7):
        studio.advance(7)
        beat = studio.do(commands.Heartbeat(lease=leased.lease, worker_id="gpu", progress=second * 100 // 420))
        expiries.append(beat.lease_seconds)
        assert studio.do(Claim(worker_id="rival", kinds=("draw",), session=token(2))) == []
    assert set(expiries) == {10.0}  # from now on, never added up
    studio.do(commands.Complete(lease=leased.lease, worker_id="gpu"))
    (task,) = studio.tasks(job)
    assert (studio.status(job), task.attempts, task.requeues) == ("completed", 1, 0)


def test_a_worker_that_falls_silent_loses_the_same_task_within_its_lease(studio):
    studio.workflow("long", lease_seconds=10)
    job = studio.ask("long")
    come(studio, 1, "gpu")
    (leased,) = studio.do(Claim(worker_id="gpu", kinds=("draw",), session=token(1)))
    studio.advance(10)
    assert studio.refused(commands.Heartbeat(lease=leased.lease, worker_id="gpu")).code == "lease_lost"
    assert studio.tasks(job)[0].attempts_charged == 1


def test_when_every_worker_dies_the_job_fails_and_its_credits_go_back(studio):
    """R192, R255, weak point 1 of the original: nothing stays leased for ever."""
    before = studio.wallet().balance
    job = studio.ask()
    for no in range(3):
        come(studio, no)
        (leased,) = studio.do(Claim(worker_id=f"gpu-{no}", kinds=("draw",), session=token(no)))
        studio.advance(leased.lease_seconds)
        studio.advance(30)  # the wait before the next try
    assert (studio.status(job), studio.job(job).error_code) == ("failed", "lease_expired")
    assert (studio.wallet().balance, studio.wallet().held) == (before, 0)
    assert [attempt.outcome for attempt in studio.read.attempts(studio.tasks(job)[0].id)] == ["lost"] * 3
    assert not studio.broken()
