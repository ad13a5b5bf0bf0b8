"""Workers of a fleet: registration, claims, timeouts and their races between two servers."""

from functools import partial
from threading import Thread

import psycopg
import pytest

from callsheet.core.model import commands
from callsheet.core.model.commands import (
    Claim,
    Deregister,
    RecordHeartbeats,
    Register,
    RevokeWorker,
    UpdateWorker,
    WorkerState,
)
from callsheet.core.model.errors import InvalidWorkerToken, Refusal
from callsheet.core.model.rows import Worker
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine.loops.worker_timeouts import WorkerTimeouts
from callsheet.settings import Settings
from tests.support.databases.database_pool import DatabasePool
from tests.support.engine.concurrency import run_concurrently, servers
from tests.support.engine.engine_harness import EngineHarness, stage
from tests.support.wait import wait_until

ENDS = [
    RevokeWorker(worker_id="gpu"),
    Deregister(worker_id="gpu", token_hash=f"{1:064x}"),
    Register(worker_id="gpu", kinds=("draw",), token_hash=f"{2:064x}"),
]
"""Commands by which a worker loses its leases."""


def token(no: int) -> str:
    return f"{no:064x}"


def register(harness: EngineHarness, no: int, name: str | None = None, concurrency: int = 1) -> WorkerState | Refusal:
    """Register a worker; return the answer or the refusal."""
    command = Register(worker_id=name or f"gpu-{no}", kinds=("draw",), token_hash=token(no), concurrency=concurrency)
    (answer,) = harness.engine.execute_many([command])
    result: WorkerState | Refusal = answer
    return result


def _has_count(connection: psycopg.Connection, query: str, count: int) -> bool:
    return connection.execute(query.encode()).fetchone() == (count,)


def count_deadlocks(url: str) -> object:
    """Count the deadlocks of a database so far."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return found.fetchone()


def worker_row(harness: EngineHarness, name: str) -> Worker:
    return Worker(*harness.reads.fetch("worker_of", id=name)[0])


def test_the_limit_of_workers_holds_for_concurrent_registrations_at_two_servers(database_url):
    """R201: the workers are counted under a lock."""
    settings = Settings(limits=Limits(workers_max=5), database_retry_seconds=20)
    with servers(database_url, 2, settings) as harnesses:
        answers = run_concurrently(*[partial(register, harnesses[n % 2], n) for n in range(16)])
        registered = [answer for answer in answers if isinstance(answer, WorkerState)]
        assert len(registered) == 5
        assert {answer.code for answer in answers if isinstance(answer, Refusal)} == {"fleet_full"}


def test_after_concurrent_registrations_of_one_worker_one_token_is_valid(database_url):
    with servers(database_url, 2) as harnesses:
        one = harnesses[0]
        answers = run_concurrently(*[partial(register, harnesses[n % 2], n, "gpu") for n in range(8)])
        assert all(isinstance(answer, WorkerState) for answer in answers)
        last = worker_row(one, "gpu")
        assert last.starts == 8
        valid = [n for n in range(8) if last.token_hash == token(n)]
        assert len(valid) == 1
        one.tenant()
        one.workflow()
        claims = [Claim(worker_id="gpu", kinds=("draw",), token_hash=token(n)) for n in range(8)]
        results = one.engine.execute_many(claims)
        assert [n for n, result in enumerate(results) if not isinstance(result, InvalidWorkerToken)] == valid


def test_of_a_completion_and_a_concurrent_restart_of_its_worker_the_first_wins(database_url):
    """F21: two processes use one worker id, and nothing is done twice."""
    with servers(database_url, 2) as harnesses:
        one, two = harnesses
        one.tenant()
        one.workflow(price=0, stages=[stage()])
        for round_no in range(10):
            register(one, round_no, "gpu")
            job = one.submit_job()
            (leased,) = one.engine.execute(Claim(worker_id="gpu", kinds=("draw",), token_hash=token(round_no)))
            complete = commands.Complete(lease=leased.lease, worker_id="gpu")
            results = run_concurrently(
                partial(one.engine.execute_many, [complete]), partial(register, two, 100 + round_no, "gpu")
            )
            (report,) = results[0]
            if isinstance(report, Refusal):
                assert (report.code, one.status(job)) == ("lease_lost", "running")
                one.cancel(job)
            else:
                assert one.status(job) == "completed"
        assert not one.find_violations()


def test_a_worker_that_is_revoked_while_it_claims_keeps_no_lease(database_url):
    """R195, L6: a claim comes before the revocation or after it."""
    with servers(database_url, 2) as harnesses:
        one, two = harnesses
        one.tenant()
        one.workflow(price=0, stages=[stage()])
        register(one, 1, "gpu", concurrency=500)
        one.engine.execute_many([one.submission()] * 60)

        def claim() -> int:
            leased = 0
            for _ in range(40):
                (answer,) = one.engine.execute_many([Claim(worker_id="gpu", kinds=("draw",), token_hash=token(1))])
                leased += 0 if isinstance(answer, Refusal) else len(answer)
            return leased

        run_concurrently(claim, partial(two.engine.execute, RevokeWorker(worker_id="gpu")))
        assert len(one.reads.fetch("leases_of_workers", ids=["gpu"], most=9)) == 0
        assert not one.find_violations()


@pytest.mark.parametrize(
    "end",
    [*ENDS, Claim(worker_id="gpu", kinds=("draw",), token_hash=token(1), held_task_ids=())],
    ids=lambda end: type(end).__name__,
)
def test_a_completion_that_races_with_the_end_of_its_worker_is_kept(database_pool: DatabasePool, end):
    """The leases of a worker are read after its jobs are locked: before that, another server may accept a result."""
    url = database_pool.acquire()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with servers(url, 2) as (one, two), psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as watch:
        one.tenant()
        one.workflow(price=0, stages=[stage(tasks=2)])
        job = one.submit_job()
        for no, name in ((1, "gpu"), (7, "other")):
            register(one, no, name, concurrency=2)
        (leased,) = one.do(Claim(worker_id="gpu", kinds=("draw",), token_hash=token(1)))
        one.do(Claim(worker_id="other", kinds=("draw",), token_hash=token(7)))
        holder.execute("SELECT 1 FROM job WHERE id = %s FOR UPDATE", [job])
        complete = commands.Complete(lease=leased.lease, worker_id="gpu")
        threads = [Thread(target=one.do, args=(complete,)), Thread(target=two.engine.execute_many, args=([end],))]
        for count, thread in enumerate(threads, 1):
            thread.start()
            wait_until(partial(_has_count, watch, waiting, count))
        holder.rollback()
        for thread in threads:
            thread.join()
        assert [(task.status, task.attempts) for task in one.tasks(job)] == [("completed", 1), ("running", 1)]
    database_pool.release(url)


def test_concurrent_revocations_at_two_servers_never_deadlock(database_pool: DatabasePool):
    """The jobs that a worker works on are locked with the other jobs of the batch, in one order."""
    url = database_pool.acquire()
    before = count_deadlocks(url)
    with servers(url, 2) as (one, two):
        one.tenant()
        one.workflow(price=0, stages=[stage()])
        for no in range(0, 60, 3):
            register(one, no, "gpu")
            one.engine.execute_many([one.submission()] * 2)
            (first,) = one.do(Claim(worker_id="gpu", kinds=("draw",), token_hash=token(no)))
            register(one, no + 1, "other")
            (second,) = one.do(Claim(worker_id="other", kinds=("draw",), token_hash=token(no + 1)))
            ends = [
                [commands.Complete(lease=second.lease), RevokeWorker(worker_id="gpu")],
                [commands.Complete(lease=first.lease), RevokeWorker(worker_id="other")],
            ]
            run_concurrently(partial(one.engine.execute_many, ends[0]), partial(two.engine.execute_many, ends[1]))
            one.engine.execute_many([UpdateWorker(worker_id=name, approved=True) for name in ("gpu", "other")])
    assert count_deadlocks(url) == before
    database_pool.release(url)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_a_task_claimed_in_the_batch_that_ends_its_worker_is_requeued(harness, end):
    job = harness.submit_job()
    register(harness, 1, "gpu")
    leased, state = harness.engine.execute_many([Claim(worker_id="gpu", kinds=("draw",), token_hash=token(1)), end])
    assert (len(leased), state.requeued) == (1, 1)
    (task,) = harness.tasks(job)
    assert (task.status, task.attempts_counted, task.ready) == ("retried", 0, 1)


def test_the_last_contact_of_many_workers_is_recorded_by_one_command(harness):
    for no in range(20):
        register(harness, no)
    harness.clock.advance(90)
    names = tuple(f"gpu-{no}" for no in range(20))
    assert harness.do(RecordHeartbeats(workers=names)) == 20
    assert {worker_row(harness, name).last_seen_at for name in names} == {harness.clock.now()}


def test_the_timeout_loop_sets_silent_workers_offline(harness):
    register(harness, 1)
    register(harness, 2)
    timeouts = WorkerTimeouts(harness.engine, 7_200)
    harness.clock.advance(7_000)
    harness.do(RecordHeartbeats(workers=("gpu-1",)))
    assert timeouts.run_once(harness.clock.now()) == 0
    harness.clock.advance(300)
    assert timeouts.run_once(harness.clock.now()) == 1
    assert [worker_row(harness, f"gpu-{no}").status for no in (1, 2)] == ["approved", "offline"]


def test_a_deregistered_worker_can_register_again_and_is_counted_once(harness):
    register(harness, 1)
    harness.do(Deregister(worker_id="gpu-1", token_hash=token(1)))
    assert harness.reads.fetch("worker_count")[0][0] == 0
    register(harness, 1)
    assert harness.reads.fetch("worker_count")[0][0] == 1


def test_heartbeats_keep_a_lease_of_ten_seconds_for_seven_minutes(harness):
    """R227: while its worker sends heartbeats, no other worker gets the task."""
    harness.workflow("long", lease_seconds=10)
    job = harness.submit_job("long")
    register(harness, 1, "gpu")
    register(harness, 2, "rival")
    (leased,) = harness.do(Claim(worker_id="gpu", kinds=("draw",), token_hash=token(1)))
    expiries = []
    for second in range(0, 420, 7):
        harness.advance(7)
        heartbeat = harness.do(commands.Heartbeat(lease=leased.lease, worker_id="gpu", progress=second * 100 // 420))
        expiries.append(heartbeat.lease_seconds)
        assert harness.do(Claim(worker_id="rival", kinds=("draw",), token_hash=token(2))) == []
    assert set(expiries) == {10.0}  # counted from the heartbeat, never added up
    harness.do(commands.Complete(lease=leased.lease, worker_id="gpu"))
    (task,) = harness.tasks(job)
    assert (harness.status(job), task.attempts, task.requeues) == ("completed", 1, 0)


def test_a_worker_without_heartbeats_loses_its_task_when_the_lease_expires(harness):
    harness.workflow("long", lease_seconds=10)
    job = harness.submit_job("long")
    register(harness, 1, "gpu")
    (leased,) = harness.do(Claim(worker_id="gpu", kinds=("draw",), token_hash=token(1)))
    harness.advance(10)
    assert harness.expect_refusal(commands.Heartbeat(lease=leased.lease, worker_id="gpu")).code == "lease_lost"
    assert harness.tasks(job)[0].attempts_counted == 1


def test_a_job_whose_workers_all_die_fails_and_is_refunded(harness):
    """R192, R255: no task stays leased forever."""
    before = harness.wallet().balance
    job = harness.submit_job()
    for no in range(3):
        register(harness, no)
        (leased,) = harness.do(Claim(worker_id=f"gpu-{no}", kinds=("draw",), token_hash=token(no)))
        harness.advance(leased.lease_seconds)
        harness.advance(30)  # the backoff before the next attempt
    assert (harness.status(job), harness.job(job).error_code) == ("failed", "lease_expired")
    assert (harness.wallet().balance, harness.wallet().reserved) == (before, 0)
    assert [attempt.outcome for attempt in harness.reads.attempts(harness.tasks(job)[0].id)] == ["lost"] * 3
    assert not harness.find_violations()
