"""Two servers do two things to one job at the same moment: one order wins, and rows and money agree with it."""

from functools import partial
from itertools import chain
from typing import Any

from callsheet.core.model.commands import AddedTasks, AddStage, AddTasks, JobState, SubmitResult, TaskState, TickTask
from callsheet.core.model.workflow_definition import StageSpec
from tests.support.engine.concurrency import accepted, refusals, run_concurrently, servers
from tests.support.engine.engine_harness import TENANT, EngineHarness, stage

ROUNDS = 20


def set_up(harness: EngineHarness, *stages: StageSpec, **definition: Any) -> None:
    harness.tenant()
    harness.workflow(stages=list(stages) or [stage()], **definition)
    harness.top_up(1_000, key="welcome")


def test_a_cancel_against_a_complete_has_one_winner_and_the_money_is_the_winners(database_url):
    """R27, H10, M5, M9."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        won = set()
        for n in range(ROUNDS):
            job = one.submit_job()
            lease = one.claim_one()
            first, second = (one, two) if n % 2 else (two, one)
            done, stopped = run_concurrently(
                partial(first.complete, lease), partial(second.cancel, job, grace_seconds=0)
            )
            status = one.status(job)
            won.add(status)
            assert isinstance(done, TaskState)
            if status == "completed":
                assert refusals([stopped]) == ["illegal_transition"]
                assert done.skipped is None
                assert one.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5)]
            else:
                assert status == "canceled"
                assert isinstance(stopped, JobState)
                assert done.skipped is not None
                assert one.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]
        assert won <= {"completed", "canceled"}


def test_a_cancel_against_a_claim_finds_the_job_never_begun_or_begun_and_asked_to_stop(database_url):
    """R127, R122: no worker holds a task of a job whose row says canceled."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        for n in range(ROUNDS):
            job = one.submit_job()
            taker, stopper = (one, two) if n % 2 else (two, one)
            leased, stopped = run_concurrently(taker.claim, partial(stopper.cancel, job))
            row = one.job(job)
            assert (stopped.status, stopped.cancel_requested) == (row.status, True)
            if leased:
                assert (row.status, row.started_at is not None) == ("running", True)
                assert taker.heartbeat(leased[0].lease).cancel is True
                assert taker.fail(leased[0].lease).job_status == "canceled"
            else:
                assert (row.status, row.started_at) == ("canceled", None)
            assert one.reads.attempts(one.tasks(job)[0].id) != [] or not leased
            assert one.claim() == two.claim() == []
            assert one.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]


def test_the_last_two_tasks_completed_at_once_complete_their_stage_once_and_open_the_next_once(database_url):
    """R424, R406, G2."""
    with servers(database_url, 2) as (one, two):
        set_up(one, stage("draw", tasks=2), stage("cut"))
        for _ in range(ROUNDS):
            job = one.submit_job()
            mine, other = (leased.lease for leased in one.claim(count=2))
            run_concurrently(partial(one.complete, mine), partial(two.complete, other))
            assert [s.status for s in one.stages(job)] == ["completed", "pending"]
            types = one.events(job)
            assert (types.count("stage.completed"), types.count("stage.opened")) == (1, 1)
            one.complete(two.claim_one("cut"))
            assert one.status(job) == "completed"


def test_two_retries_at_once_open_one_new_run_and_reserve_once(database_url):
    """R73, H18, J10."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        for _ in range(ROUNDS):
            job = one.submit_job()
            one.fail(one.claim_one())
            answers = run_concurrently(partial(one.retry, job), partial(two.retry, job))
            assert len(accepted(answers)) == 1
            assert refusals(answers) == ["illegal_transition"]
            assert [run.no for run in one.runs(job)] == [1, 2]
            assert [kind for kind, _, _ in one.ledger(job)] == ["reserve", "refund", "reserve"]
            one.complete(two.claim_one())


def test_two_approvals_at_once_open_the_stage_once(database_url):
    """F25, G6."""
    with servers(database_url, 2) as (one, two):
        set_up(one, stage("draw", approval=True))
        for _ in range(ROUNDS):
            job = one.submit_job()
            answers = run_concurrently(partial(one.approve, job, 1, "bea"), partial(two.approve, job, 1, "cyd"))
            assert sorted(answer.changed for answer in answers) == [False, True]
            assert one.events(job).count("stage.approved") == 1
            assert len(one.claim(count=5)) == 1


def test_a_delete_against_a_complete_settles_the_money_once_and_leaves_no_text(database_url):
    """H20, M5, F25."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        for _ in range(ROUNDS):
            job = one.submit_job(input={"prompt": "a cat"})
            lease = one.claim_one()
            done, deleted = run_concurrently(partial(one.complete, lease, {"seen": 1}), partial(two.delete, job))
            assert isinstance(done, TaskState)
            assert isinstance(deleted, JobState)
            settled = [kind for kind, _, _ in one.ledger(job)]
            assert settled in (["reserve", "consume"], ["reserve", "refund"])
            assert (settled[1] == "refund") == (done.skipped is not None)
            assert one.reads.documents(job) == []


def test_no_lease_is_granted_after_a_pause_was_answered(database_url):
    """R388, H16, L9: a claim that runs into the pause has the task before it, or not at all."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        for _ in range(ROUNDS):
            job = one.submit_job()
            leased, _ = run_concurrently(two.claim, partial(one.pause, job))
            assert one.status(job) == "paused"
            assert one.claim() == two.claim() == []
            assert one.tasks(job)[0].status == ("running" if leased else "pending")
            one.resume(job)
            lease = leased[0].lease if leased else two.claim_one()
            assert two.complete(lease).job_status == "completed"


def test_a_heartbeat_against_the_sweep_keeps_the_lease_or_loses_it_whole(database_url):
    """L2, H7, F30: two sweepers and the late worker, at the moment at which the lease runs out."""
    with servers(database_url, 3) as (one, two, three):
        set_up(one, lease_seconds=10)
        for _ in range(ROUNDS):
            job = one.submit_job()
            lease = one.claim_one()
            one.clock.advance(10)
            task = one.tasks(job)[0]
            tick = TickTask(job_id=job, task_id=task.id)
            heartbeat, *_ = run_concurrently(
                partial(one.heartbeat, lease), partial(two.do, tick), partial(three.do, tick)
            )
            (attempt,) = one.reads.attempts(task.id)
            if refusals([heartbeat]):
                assert refusals([heartbeat]) == ["lease_lost"]
                assert (attempt.outcome, one.tasks(job)[0].status) == ("lost", "retried")
            else:
                assert (attempt.outcome, one.tasks(job)[0].status) == (None, "running")
            one.cancel(job, grace_seconds=0)


def test_stages_added_by_two_servers_at_once_are_numbered_without_a_gap(database_url):
    with servers(database_url, 2) as harnesses:
        one = harnesses[0]
        set_up(one, stage("draw"), inline=True)
        job = one.submit_job()
        command = AddStage(tenant=TENANT, job_id=job, stage=stage("cut", tasks=2))
        added: list[AddedTasks] = run_concurrently(*[partial(s.do, command) for s in harnesses * 8])
        assert sorted(one_.stage_no for one_ in added) == list(range(2, 18))
        stages = one.stages(job)
        assert [s.no for s in stages] == list(range(1, 18))
        assert {a.stage_id for a in added} == {s.id for s in stages[1:]}
        assert one.job(job).stages_total == 17


def test_tasks_added_by_two_servers_at_once_are_numbered_without_a_gap(database_url):
    """R393: also while a worker takes and ends the stage's tasks."""
    with servers(database_url, 2) as harnesses:
        one, two = harnesses
        set_up(one, stage("draw"), inline=True)
        job = one.submit_job()
        key = one.stages(job)[0].id
        command = AddTasks(tenant=TENANT, job_id=job, stage_id=key, inputs=[{"n": 1}, {"n": 2}, {"n": 3}])
        before = [leased.lease for leased in one.claim()]
        added = run_concurrently(
            *[partial(s.do, command) for s in harnesses * 6], lambda: [two.claim() for _ in range(4)]
        )
        taken = before + [leased.lease for leased in chain.from_iterable(added.pop())]
        assert sorted(a.first_task_no for a in added) == list(range(2, 38, 3))
        assert [task.no for task in one.tasks(job)] == list(range(1, 38))
        taken += [leased.lease for leased in one.claim(count=100)]
        assert len({lease.task_id for lease in taken}) == len(taken) == 37
        run_concurrently(*[partial(harnesses[n % 2].complete, lease) for n, lease in enumerate(taken)])
        assert one.status(job) == "completed"
        assert one.events(job).count("stage.completed") == 1


def test_a_submit_again_while_its_job_is_deleted_never_makes_a_second_job(database_url):
    """H2, H20: the key stays taken."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        for n in range(ROUNDS):
            job = one.submit_job(idempotency_key=f"k{n}")
            again, _ = run_concurrently(partial(two.submit, idempotency_key=f"k{n}"), partial(one.delete, job))
            if isinstance(again, SubmitResult):
                assert (again.job_id, again.replay) == (job, True)
            else:
                assert refusals([again]) == ["job_deleted"]
