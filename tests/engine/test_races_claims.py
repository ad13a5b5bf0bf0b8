"""Many workers ask many servers for work at once: every task is leased once, and no limit is passed."""

from functools import partial
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.commands import Callback, Claim, Hand, Intend, Lease, Leased, Outcome
from callsheet.core.limits import Limits
from callsheet.core.recipe import StageSpec
from callsheet.engine.loops import Relay
from callsheet.engine.reading import Placed
from tests.support.racing import at_once, refusals, servers
from tests.support.studio import WORKER, Studio, stage


def furnish(studio: Studio, *stages: StageSpec, **recipe: Any) -> None:
    studio.tenant()
    studio.workflow(price=0, stages=list(stages) or [stage()], **recipe)


def claim_until(studio: Studio, worker: str, taken: list[Leased], enough: int) -> None:
    """Claim in small lots until the common list is full; a claim may come back empty while others hold the rows."""
    while len(taken) < enough:
        taken.extend(studio.claim(count=3, worker=worker))


def test_two_hundred_tasks_claimed_by_twenty_four_workers_are_each_leased_once(place):
    """R150, R184, R304, R412, L1, L3."""
    with servers(place, 3) as studios:
        one = studios[0]
        furnish(one, stage(tasks=5))
        jobs = [answer.job_id for answer in one.engine.execute_many([one.submission()] * 40)]
        taken: list[Leased] = []
        at_once(*[partial(claim_until, studios[n % 3], f"w{n}", taken, 200) for n in range(24)])
        assert len(taken) == 200
        assert len({leased.lease.task_id for leased in taken}) == 200
        assert {leased.lease.attempt for leased in taken} == {1}
        assert len({leased.lease.token for leased in taken}) == 200
        tasks = [task for job in jobs for task in one.tasks(job)]
        assert {(task.status, task.attempts) for task in tasks} == {("running", 1)}


def work(studio: Studio, worker: str, done: list[str], enough: int) -> list[int]:
    """Claim, look how many run, complete; return the counts that were seen."""
    seen = []
    while len(done) < enough:
        for leased in studio.claim(count=2, worker=worker):
            seen.append(running(studio))
            studio.complete(leased.lease)
            done.append(leased.lease.task_id)
    return seen


def running(studio: Studio) -> int:
    queues = [row[0] for row in studio.read.fetch("queues_sharing", kinds=[], workflows=["sketch"], providers=[])]
    return int(studio.read.fetch("running_in", ids=queues, most=1_000)[0][0])


def test_a_workflows_running_limit_holds_under_sixteen_claimers_on_two_servers(place):
    """L8, R156 for a workflow: counted from live rows."""
    with servers(place, 2) as studios:
        one = studios[0]
        furnish(one, stage(tasks=5), running_max=3)
        one.engine.execute_many([one.submission()] * 16)
        done: list[str] = []
        seen = at_once(*[partial(work, studios[n % 2], f"w{n}", done, 80) for n in range(16)])
        assert len(set(done)) == len(done) == 80
        assert max(count for counts in seen for count in counts) <= 3
        assert running(one) == 0


def test_a_kinds_running_limit_holds_over_workflows_under_sixteen_claimers(place):
    """Two workflows share one kind; every grant is kept, so what runs at the end is what was ever granted."""
    settings = Settings(limits=Limits(kind_running_max={"draw": 7}))
    with servers(place, 2, settings) as studios:
        one = studios[0]
        furnish(one)
        one.workflow("film", price=0, stages=[stage()])
        one.engine.execute_many([one.submission(), one.submission("film")] * 20)
        granted = at_once(*[partial(studios[n % 2].claim, count=2, worker=f"w{n}") for n in range(16)])
        assert 1 <= sum(map(len, granted)) <= 7
        while more := one.claim(count=9):
            granted.append(more)
        assert sum(map(len, granted)) == 7


def test_two_claims_of_one_batch_share_a_workflows_running_limit(place):
    """A limit over two queues, asked for by two claims that the same transaction answers."""
    with servers(place, 1, Settings(lanes=1)) as (one,):
        furnish(one, stage("draw"), stage("cut"), running_max=1)
        one.ask()
        one.complete(one.take())
        one.ask()
        claims = [Claim(worker_id=WORKER, kinds=(kind,)) for kind in ("draw", "cut")]
        assert sorted(map(len, one.engine.execute_many(claims))) == [0, 1]


def test_two_claims_of_one_batch_that_share_a_kind_both_get_work(place):
    """Nobody goes away empty while tasks wait: the second claim gets those behind the first one's."""
    with servers(place, 1, Settings(lanes=1)) as (one,):
        furnish(one)
        one.engine.execute_many([one.submission()] * 4)
        claims = [Claim(worker_id=WORKER, kinds=kinds, count=2) for kinds in (("draw",), ("draw", "cut"))]
        got = one.engine.execute_many(claims)
        assert [len(leased) for leased in got] == [2, 2]
        assert len({each.lease.task_id for leased in got for each in leased}) == 4


def called(studio: Studio) -> tuple[str, Lease, str]:
    """Take a task and write its call down; return job, lease and call."""
    job = studio.ask()
    lease = studio.take()
    return job, lease, studio.do(Intend(lease=lease, provider="prov")).call_id


def test_callbacks_sent_many_times_at_once_take_effect_once(place):
    """R54, P4, H11, H12: duplicates of two contradicting callbacks; the first one counts."""
    with servers(place, 2) as studios:
        one = studios[0]
        furnish(one)
        one.workflow(price=5, stages=[stage(provider="prov")])
        one.top_up(100)
        for n in range(10):
            job, lease, _ = called(one)
            one.do(Hand(lease=lease, ref=f"ref-{n}"))
            good = Callback(provider="prov", webhook_id=f"good-{n}", ref=f"ref-{n}", outcome=Outcome("completed"))
            bad = Callback(provider="prov", webhook_id=f"bad-{n}", ref=f"ref-{n}", outcome=Outcome("failed"))
            answers = at_once(*[partial(s.do, letter) for letter in (good, bad) for s in studios * 3])
            assert refusals(answers) == []
            assert [answer.skipped for answer in answers].count(None) == 1
            status = one.status(job)
            assert [kind for kind, _, _ in one.ledger(job)] == ["reserve", _SETTLED[status]]
            assert one.events(job).count(f"task.{status}") == 1


_SETTLED = {"completed": "consume", "failed": "refund"}


@pytest.mark.parametrize("by", ["call", "reference"])
def test_a_callback_against_the_hand_over_of_its_task_is_not_missed_and_ends_it_once(place, by):
    """H13: the provider is faster than the answer to our own call; neither may wait for the other for ever."""
    with servers(place, 2) as (one, two):
        furnish(one, stage(provider="prov"))
        for n in range(20):
            job, lease, call = called(one)
            named = {"call_id": call} if by == "call" else {}
            letter = Callback(
                provider="prov", webhook_id=f"w-{n}", ref=f"ref-{n}", outcome=Outcome("completed"), **named
            )
            at_once(partial(one.do, Hand(lease=lease, ref=f"ref-{n}")), partial(two.do, letter))
            assert one.status(job) == "completed"
            assert one.events(job).count("task.completed") == 1


def test_two_relays_at_once_hand_on_every_event_once_and_in_order(place):
    """R140, H21: while servers write more of them."""
    with servers(place, 3) as studios:
        furnish(studios[0])
        heard: list[tuple[str, int]] = []

        def relay(studio: Studio, holder: str) -> None:
            reader = Relay(
                studio.engine, "stream", holder, lambda events: heard.extend(key_of(one) for one in events), page=7
            )
            while len(heard) < 90:
                reader.run_once(0)

        def write(studio: Studio) -> None:
            for _ in range(15):
                studio.ask()
                studio.complete(studio.take())

        at_once(partial(relay, studios[0], "a"), partial(relay, studios[1], "b"), partial(write, studios[2]))
        assert len(heard) == len(set(heard)) >= 90
        for subject in {subject for subject, _ in heard}:
            numbers = [seq for name, seq in heard if name == subject]
            assert numbers == list(range(1, len(numbers) + 1))


def key_of(placed: Placed) -> tuple[str, int]:
    return placed.event.subject, placed.event.seq
