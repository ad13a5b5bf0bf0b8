"""Two servers change one job at the same moment: one command comes first, and rows and credits agree with it."""

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


def test_of_a_concurrent_cancel_and_completion_one_wins_and_the_ledger_agrees(database_url):
    """R27, H10, M5, M9."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        statuses = set()
        for n in range(ROUNDS):
            job = one.submit_job()
            lease = one.claim_one()
            first, second = (one, two) if n % 2 else (two, one)
            completed, canceled = run_concurrently(
                partial(first.complete, lease), partial(second.cancel, job, grace_seconds=0)
            )
            status = one.status(job)
            statuses.add(status)
            assert isinstance(completed, TaskState)
            if status == "completed":
                assert refusals([canceled]) == ["illegal_transition"]
                assert completed.skipped is None
                assert one.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5)]
            else:
                assert status == "canceled"
                assert isinstance(canceled, JobState)
                assert completed.skipped is not None
                assert one.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]
        assert statuses <= {"completed", "canceled"}


def test_of_a_concurrent_cancel_and_claim_one_comes_first(database_url):
    """R127, R122: no worker has a lease of a job whose status is canceled."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        for n in range(ROUNDS):
            job = one.submit_job()
            first, second = (one, two) if n % 2 else (two, one)
            leased, canceled = run_concurrently(first.claim, partial(second.cancel, job))
            row = one.job(job)
            assert (canceled.status, canceled.cancel_requested) == (row.status, True)
            if leased:
                assert (row.status, row.started_at is not None) == ("running", True)
                assert first.heartbeat(leased[0].lease).cancel is True
                assert first.fail(leased[0].lease).job_status == "canceled"
            else:
                assert (row.status, row.started_at) == ("canceled", None)
            assert one.reads.attempts(one.tasks(job)[0].id) != [] or not leased
            assert one.claim() == two.claim() == []
            assert one.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]


def test_concurrent_completions_of_the_last_two_tasks_complete_their_stage_once(database_url):
    """R424, R406, G2."""
    with servers(database_url, 2) as (one, two):
        set_up(one, stage("draw", tasks=2), stage("cut"))
        for _ in range(ROUNDS):
            job = one.submit_job()
            first, second = (leased.lease for leased in one.claim(count=2))
            run_concurrently(partial(one.complete, first), partial(two.complete, second))
            assert [s.status for s in one.stages(job)] == ["completed", "pending"]
            types = one.events(job)
            assert (types.count("stage.completed"), types.count("stage.opened")) == (1, 1)
            one.complete(two.claim_one("cut"))
            assert one.status(job) == "completed"


def test_two_concurrent_retries_open_one_run_and_reserve_once(database_url):
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


def test_two_concurrent_approvals_open_the_stage_once(database_url):
    """F25, G6."""
    with servers(database_url, 2) as (one, two):
        set_up(one, stage("draw", approval=True))
        for _ in range(ROUNDS):
            job = one.submit_job()
            answers = run_concurrently(partial(one.approve, job, 1, "bea"), partial(two.approve, job, 1, "cyd"))
            assert sorted(answer.changed for answer in answers) == [False, True]
            assert one.events(job).count("stage.approved") == 1
            assert len(one.claim(count=5)) == 1


def test_a_concurrent_delete_and_completion_settle_once_and_leave_no_documents(database_url):
    """H20, O5, M5, F25."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        for _ in range(ROUNDS):
            job = one.submit_job(input={"prompt": "a cat"})
            lease = one.claim_one()
            completed, deleted = run_concurrently(partial(one.complete, lease, {"seen": 1}), partial(two.delete, job))
            assert isinstance(completed, TaskState)
            assert isinstance(deleted, JobState)
            kinds = [kind for kind, _, _ in one.ledger(job)]
            assert kinds in (["reserve", "consume"], ["reserve", "refund"])
            assert (kinds[1] == "refund") == (completed.skipped is not None)
            assert one.reads.documents(job) == []


def test_no_task_is_leased_after_a_pause_was_answered(database_url):
    """R388, H16, L9: a claim that races with the pause comes before it or gets nothing."""
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


def test_a_heartbeat_that_races_with_two_sweepers_keeps_the_lease_or_loses_it(database_url):
    """L2, H7, F30: a late heartbeat and two sweepers, at the moment at which the lease expires."""
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


def test_stages_added_concurrently_by_two_servers_are_numbered_without_gaps(database_url):
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


def test_tasks_added_concurrently_by_two_servers_are_numbered_without_gaps(database_url):
    """Also while a worker claims and completes tasks of the stage."""
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
        leases = before + [leased.lease for leased in chain.from_iterable(added.pop())]
        assert sorted(a.first_task_no for a in added) == list(range(2, 38, 3))
        assert [task.no for task in one.tasks(job)] == list(range(1, 38))
        leases += [leased.lease for leased in one.claim(count=100)]
        assert len({lease.task_id for lease in leases}) == len(leases) == 37
        run_concurrently(*[partial(harnesses[n % 2].complete, lease) for n, lease in enumerate(leases)])
        assert one.status(job) == "completed"
        assert one.events(job).count("stage.completed") == 1


def test_a_repeated_submit_that_races_with_the_delete_of_its_job_creates_no_second_job(database_url):
    """H2: the key of a deleted job stays reserved."""
    with servers(database_url, 2) as (one, two):
        set_up(one)
        for n in range(ROUNDS):
            job = one.submit_job(idempotency_key=f"k{n}")
            repeated, _ = run_concurrently(partial(two.submit, idempotency_key=f"k{n}"), partial(one.delete, job))
            if isinstance(repeated, SubmitResult):
                assert (repeated.job_id, repeated.replay) == (job, True)
            else:
                assert refusals([repeated]) == ["job_deleted"]
