"""Concurrent claims, callbacks and relays: every task is leased once, and no limit is exceeded."""

from functools import partial
from typing import Any

import pytest

from callsheet.core.model.commands import Callback, Claim, HandOff, Lease, LeasedTask, Outcome, RecordIntent
from callsheet.core.model.workflow_definition import StageSpec
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.fair_order import STRIDE
from callsheet.engine.loops.sink_delivery import Relay
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.settings import Settings
from tests.support.engine.concurrency import refusals, run_concurrently, servers
from tests.support.engine.engine_harness import WORKER, EngineHarness, stage


def set_up(harness: EngineHarness, *stages: StageSpec, **definition: Any) -> None:
    harness.tenant()
    harness.workflow(price=0, stages=list(stages) or [stage()], **definition)


def claim_until(harness: EngineHarness, worker: str, leased_tasks: list[LeasedTask], enough: int) -> None:
    """Claim until the shared list is long enough; a claim may be empty while other transactions lock the rows."""
    while len(leased_tasks) < enough:
        leased_tasks.extend(harness.claim(count=3, worker=worker))


def test_each_of_two_hundred_tasks_is_leased_once_by_twenty_four_concurrent_workers(database_url):
    """R150, R184, R304, R412, L1, L3."""
    with servers(database_url, 3) as harnesses:
        one = harnesses[0]
        set_up(one, stage(tasks=5))
        jobs = [answer.job_id for answer in one.engine.execute_many([one.submission()] * 40)]
        leased_tasks: list[LeasedTask] = []
        run_concurrently(*[partial(claim_until, harnesses[n % 3], f"w{n}", leased_tasks, 200) for n in range(24)])
        assert len(leased_tasks) == 200
        assert len({leased.lease.task_id for leased in leased_tasks}) == 200
        assert {leased.lease.attempt for leased in leased_tasks} == {1}
        assert len({leased.lease.token for leased in leased_tasks}) == 200
        tasks = [task for job in jobs for task in one.tasks(job)]
        assert {(task.status, task.attempts) for task in tasks} == {("running", 1)}


def test_no_turn_of_a_tenant_is_lost_or_used_twice_by_sixteen_concurrent_workers(database_url):
    """Users submit in blocks, so that almost every claim exchanges turns, and others withdraw jobs meanwhile."""
    with servers(database_url, 3) as harnesses:
        one = harnesses[0]
        set_up(one)
        users = [user for user in ("ann", "bea", "cid", "dot") for _ in range(40)]
        jobs = [answer.job_id for answer in one.engine.execute_many([one.submission(user=user) for user in users])]
        leased_tasks: list[LeasedTask] = []
        claims = [partial(claim_until, harnesses[n % 3], f"w{n}", leased_tasks, 80) for n in range(16)]
        run_concurrently(*claims, partial(cancel_all, harnesses[1], jobs[30:40]))
        tasks = [task for job in jobs for task in one.tasks(job)]
        started = [task.rank for task in tasks if task.status == "running"]
        waiting = [task.rank for task in tasks if task.ready]
        assert len(started) == len(leased_tasks)
        assert len({*started, *waiting}) == len(started) + len(waiting)
        assert {*started, *waiting} <= {(n + 1) * STRIDE for n in range(160)}


def cancel_all(harness: EngineHarness, jobs: list[str]) -> None:
    for job in jobs:
        harness.cancel(job)


def work(harness: EngineHarness, worker: str, completed: list[str], enough: int) -> list[int]:
    """Claim, count the running tasks, complete; return the counts."""
    counts = []
    while len(completed) < enough:
        for leased in harness.claim(count=2, worker=worker):
            counts.append(count_running(harness))
            harness.complete(leased.lease)
            completed.append(leased.lease.task_id)
    return counts


def count_running(harness: EngineHarness) -> int:
    queues = [row[0] for row in harness.reads.fetch("queues_sharing", kinds=[], workflows=["sketch"], providers=[])]
    return int(harness.reads.fetch("count_running", ids=queues, most=1_000)[0][0])


def test_the_running_limit_of_a_workflow_holds_for_sixteen_concurrent_workers_at_two_servers(database_url):
    with servers(database_url, 2) as harnesses:
        one = harnesses[0]
        set_up(one, stage(tasks=5), running_max=3)
        one.engine.execute_many([one.submission()] * 16)
        completed: list[str] = []
        counts = run_concurrently(*[partial(work, harnesses[n % 2], f"w{n}", completed, 80) for n in range(16)])
        assert len(set(completed)) == len(completed) == 80
        assert max(count for several in counts for count in several) <= 3
        assert count_running(one) == 0


def test_the_running_limit_of_a_kind_holds_across_workflows_for_sixteen_concurrent_workers(database_url):
    """Two workflows share one kind; no lease ends, so the number of leases is the number of running tasks."""
    settings = Settings(limits=Limits(kind_running_max={"draw": 7}))
    with servers(database_url, 2, settings) as harnesses:
        one = harnesses[0]
        set_up(one)
        one.workflow("film", price=0, stages=[stage()])
        one.engine.execute_many([one.submission(), one.submission("film")] * 20)
        granted = run_concurrently(*[partial(harnesses[n % 2].claim, count=2, worker=f"w{n}") for n in range(16)])
        assert 1 <= sum(map(len, granted)) <= 7
        while more := one.claim(count=9):
            granted.append(more)
        assert sum(map(len, granted)) == 7


def test_two_claims_in_one_batch_share_the_running_limit_of_a_workflow(database_url):
    """The limit spans two queues, and one transaction answers both claims."""
    with servers(database_url, 1, Settings(lanes=1)) as (one,):
        set_up(one, stage("draw"), stage("cut"), running_max=1)
        one.submit_job()
        one.complete(one.claim_one())
        one.submit_job()
        claims = [Claim(worker_id=WORKER, kinds=(kind,)) for kind in ("draw", "cut")]
        assert sorted(map(len, one.engine.execute_many(claims))) == [0, 1]


def test_two_claims_in_one_batch_for_one_kind_both_get_work(database_url):
    """The second claim gets the tasks after those of the first."""
    with servers(database_url, 1, Settings(lanes=1)) as (one,):
        set_up(one)
        one.engine.execute_many([one.submission()] * 4)
        claims = [Claim(worker_id=WORKER, kinds=kinds, count=2) for kinds in (("draw",), ("draw", "cut"))]
        results = one.engine.execute_many(claims)
        assert [len(leased) for leased in results] == [2, 2]
        assert len({each.lease.task_id for leased in results for each in leased}) == 4


def claim_and_record_intent(harness: EngineHarness) -> tuple[str, Lease, str]:
    """Claim a task and record its call; return job, lease and call."""
    job = harness.submit_job()
    lease = harness.claim_one()
    return job, lease, harness.do(RecordIntent(lease=lease, provider="prov")).call_id


def test_concurrent_contradictory_callbacks_take_effect_once(database_url):
    """R54, P4, H11, H12: duplicates of two contradictory callbacks; the first one wins."""
    with servers(database_url, 2) as harnesses:
        one = harnesses[0]
        set_up(one)
        one.workflow(price=5, stages=[stage(provider="prov")])
        one.top_up(100)
        for n in range(10):
            job, lease, _ = claim_and_record_intent(one)
            one.do(HandOff(lease=lease, ref=f"ref-{n}"))
            callbacks = [
                Callback(provider="prov", webhook_id=f"{outcome.status}-{n}", ref=f"ref-{n}", outcome=outcome)
                for outcome in (Outcome("completed"), Outcome("failed"))
            ]
            answers = run_concurrently(*[partial(s.do, callback) for callback in callbacks for s in harnesses * 3])
            assert refusals(answers) == []
            assert [answer.skipped for answer in answers].count(None) == 1
            status = one.status(job)
            assert [kind for kind, _, _ in one.ledger(job)] == ["reserve", _SETTLEMENT[status]]
            assert one.events(job).count(f"task.{status}") == 1


_SETTLEMENT = {"completed": "consume", "failed": "refund"}


@pytest.mark.parametrize("by", ["call", "reference"])
def test_a_callback_that_races_with_the_report_of_its_reference_completes_the_task_once(database_url, by):
    """H13: the provider calls back before its reference is stored; neither command may wait for the other."""
    with servers(database_url, 2) as (one, two):
        set_up(one, stage(provider="prov"))
        for n in range(20):
            job, lease, call = claim_and_record_intent(one)
            named = {"call_id": call} if by == "call" else {}
            callback = Callback(
                provider="prov", webhook_id=f"w-{n}", ref=f"ref-{n}", outcome=Outcome("completed"), **named
            )
            run_concurrently(partial(one.do, HandOff(lease=lease, ref=f"ref-{n}")), partial(two.do, callback))
            assert one.status(job) == "completed"
            assert one.events(job).count("task.completed") == 1


def test_two_concurrent_relays_deliver_every_event_once_and_in_order(database_url):
    """R140, H21, H22: while another server writes events."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0])
        delivered: list[tuple[str, int]] = []

        def relay(harness: EngineHarness, holder: str) -> None:
            reader = Relay(
                harness.engine, "stream", holder, lambda events: delivered.extend(key_of(one) for one in events), page=7
            )
            while len(delivered) < 90:
                reader.run_once(0)

        def write(harness: EngineHarness) -> None:
            for _ in range(15):
                harness.submit_job()
                harness.complete(harness.claim_one())

        run_concurrently(
            partial(relay, harnesses[0], "a"), partial(relay, harnesses[1], "b"), partial(write, harnesses[2])
        )
        assert len(delivered) == len(set(delivered)) >= 90
        for subject in {subject for subject, _ in delivered}:
            numbers = [seq for name, seq in delivered if name == subject]
            assert numbers == list(range(1, len(numbers) + 1))


def key_of(placed: PositionedEvent) -> tuple[str, int]:
    return placed.event.subject, placed.event.seq
