"""Many workers ask many servers for work at once: every task is leased once, and no limit is passed."""

from functools import partial
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.model.commands import Callback, Claim, HandOff, Lease, LeasedTask, Outcome, RecordIntent
from callsheet.core.model.workflow_definition import StageSpec
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine.loops.relay import Relay
from callsheet.engine.reads.synchronous import PositionedEvent
from tests.support.engine.concurrency import refusals, run_concurrently, servers
from tests.support.engine.engine_harness import WORKER, EngineHarness, stage


def set_up(harness: EngineHarness, *stages: StageSpec, **definition: Any) -> None:
    harness.tenant()
    harness.workflow(price=0, stages=list(stages) or [stage()], **definition)


def claim_until(harness: EngineHarness, worker: str, taken: list[LeasedTask], enough: int) -> None:
    """Claim in small lots until the common list is full; a claim may come back empty while others hold the rows."""
    while len(taken) < enough:
        taken.extend(harness.claim(count=3, worker=worker))


def test_two_hundred_tasks_claimed_by_twenty_four_workers_are_each_leased_once(database_url):
    """R150, R184, R304, R412, L1, L3."""
    with servers(database_url, 3) as harnesses:
        one = harnesses[0]
        set_up(one, stage(tasks=5))
        jobs = [answer.job_id for answer in one.engine.execute_many([one.submission()] * 40)]
        taken: list[LeasedTask] = []
        run_concurrently(*[partial(claim_until, harnesses[n % 3], f"w{n}", taken, 200) for n in range(24)])
        assert len(taken) == 200
        assert len({leased.lease.task_id for leased in taken}) == 200
        assert {leased.lease.attempt for leased in taken} == {1}
        assert len({leased.lease.token for leased in taken}) == 200
        tasks = [task for job in jobs for task in one.tasks(job)]
        assert {(task.status, task.attempts) for task in tasks} == {("running", 1)}


def work(harness: EngineHarness, worker: str, done: list[str], enough: int) -> list[int]:
    """Claim, look how many run, complete; return the counts that were seen."""
    seen = []
    while len(done) < enough:
        for leased in harness.claim(count=2, worker=worker):
            seen.append(running(harness))
            harness.complete(leased.lease)
            done.append(leased.lease.task_id)
    return seen


def running(harness: EngineHarness) -> int:
    queues = [row[0] for row in harness.reads.fetch("queues_sharing", kinds=[], workflows=["sketch"], providers=[])]
    return int(harness.reads.fetch("count_running", ids=queues, most=1_000)[0][0])


def test_a_workflows_running_limit_holds_under_sixteen_claimers_on_two_servers(database_url):
    """L8, R156 for a workflow: counted from live rows."""
    with servers(database_url, 2) as harnesses:
        one = harnesses[0]
        set_up(one, stage(tasks=5), running_max=3)
        one.engine.execute_many([one.submission()] * 16)
        done: list[str] = []
        seen = run_concurrently(*[partial(work, harnesses[n % 2], f"w{n}", done, 80) for n in range(16)])
        assert len(set(done)) == len(done) == 80
        assert max(count for counts in seen for count in counts) <= 3
        assert running(one) == 0


def test_a_kinds_running_limit_holds_over_workflows_under_sixteen_claimers(database_url):
    """Two workflows share one kind; every grant is kept, so what runs at the end is what was ever granted."""
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


def test_two_claims_of_one_batch_share_a_workflows_running_limit(database_url):
    """A limit over two queues, asked for by two claims that the same transaction answers."""
    with servers(database_url, 1, Settings(lanes=1)) as (one,):
        set_up(one, stage("draw"), stage("cut"), running_max=1)
        one.submit_job()
        one.complete(one.claim_one())
        one.submit_job()
        claims = [Claim(worker_id=WORKER, kinds=(kind,)) for kind in ("draw", "cut")]
        assert sorted(map(len, one.engine.execute_many(claims))) == [0, 1]


def test_two_claims_of_one_batch_that_share_a_kind_both_get_work(database_url):
    """Nobody goes away empty while tasks wait: the second claim gets those behind the first one's."""
    with servers(database_url, 1, Settings(lanes=1)) as (one,):
        set_up(one)
        one.engine.execute_many([one.submission()] * 4)
        claims = [Claim(worker_id=WORKER, kinds=kinds, count=2) for kinds in (("draw",), ("draw", "cut"))]
        got = one.engine.execute_many(claims)
        assert [len(leased) for leased in got] == [2, 2]
        assert len({each.lease.task_id for leased in got for each in leased}) == 4


def claim_and_intend(harness: EngineHarness) -> tuple[str, Lease, str]:
    """Take a task and write its call down; return job, lease and call."""
    job = harness.submit_job()
    lease = harness.claim_one()
    return job, lease, harness.do(RecordIntent(lease=lease, provider="prov")).call_id


def test_callbacks_sent_many_times_at_once_take_effect_once(database_url):
    """R54, P4, H11, H12: duplicates of two contradicting callbacks; the first one counts."""
    with servers(database_url, 2) as harnesses:
        one = harnesses[0]
        set_up(one)
        one.workflow(price=5, stages=[stage(provider="prov")])
        one.top_up(100)
        for n in range(10):
            job, lease, _ = claim_and_intend(one)
            one.do(HandOff(lease=lease, ref=f"ref-{n}"))
            good = Callback(provider="prov", webhook_id=f"good-{n}", ref=f"ref-{n}", outcome=Outcome("completed"))
            bad = Callback(provider="prov", webhook_id=f"bad-{n}", ref=f"ref-{n}", outcome=Outcome("failed"))
            answers = run_concurrently(*[partial(s.do, letter) for letter in (good, bad) for s in harnesses * 3])
            assert refusals(answers) == []
            assert [answer.skipped for answer in answers].count(None) == 1
            status = one.status(job)
            assert [kind for kind, _, _ in one.ledger(job)] == ["reserve", _SETTLED[status]]
            assert one.events(job).count(f"task.{status}") == 1


_SETTLED = {"completed": "consume", "failed": "refund"}


@pytest.mark.parametrize("by", ["call", "reference"])
def test_a_callback_against_the_hand_off_of_its_task_is_not_missed_and_ends_it_once(database_url, by):
    """H13: the provider is faster than the answer to our own call; neither may wait for the other for ever."""
    with servers(database_url, 2) as (one, two):
        set_up(one, stage(provider="prov"))
        for n in range(20):
            job, lease, call = claim_and_intend(one)
            named = {"call_id": call} if by == "call" else {}
            letter = Callback(
                provider="prov", webhook_id=f"w-{n}", ref=f"ref-{n}", outcome=Outcome("completed"), **named
            )
            run_concurrently(partial(one.do, HandOff(lease=lease, ref=f"ref-{n}")), partial(two.do, letter))
            assert one.status(job) == "completed"
            assert one.events(job).count("task.completed") == 1


def test_two_relays_at_once_deliver_every_event_once_and_in_order(database_url):
    """R140, H21: while servers write more of them."""
    with servers(database_url, 3) as harnesses:
        set_up(harnesses[0])
        heard: list[tuple[str, int]] = []

        def relay(harness: EngineHarness, holder: str) -> None:
            reader = Relay(
                harness.engine, "stream", holder, lambda events: heard.extend(key_of(one) for one in events), page=7
            )
            while len(heard) < 90:
                reader.run_once(0)

        def write(harness: EngineHarness) -> None:
            for _ in range(15):
                harness.submit_job()
                harness.complete(harness.claim_one())

        run_concurrently(
            partial(relay, harnesses[0], "a"), partial(relay, harnesses[1], "b"), partial(write, harnesses[2])
        )
        assert len(heard) == len(set(heard)) >= 90
        for subject in {subject for subject, _ in heard}:
            numbers = [seq for name, seq in heard if name == subject]
            assert numbers == list(range(1, len(numbers) + 1))


def key_of(placed: PositionedEvent) -> tuple[str, int]:
    return placed.event.subject, placed.event.seq
