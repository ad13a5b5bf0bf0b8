"""Stages: strictly one after another, each opened when the one before it completes, held by approvals."""

import pytest

from callsheet.core.model.commands import Approve, Complete, RequireApproval
from tests.support.engine.engine_harness import EngineHarness, stage

FILM = [stage("draw", tasks=2), stage("cut"), stage("mix")]


def statuses(harness: EngineHarness, job: str) -> list[str]:
    return [s.status for s in harness.stages(job)]


def require_approval(harness: EngineHarness, job: str, no: int) -> RequireApproval:
    return RequireApproval(tenant="acme", job_id=job, stage_id=harness.stages(job)[no - 1].id)


def test_stages_run_one_after_the_other(harness: EngineHarness) -> None:
    # R306, R385, R398, R400, R401, R404, R406, R418, R420, R421, G1
    harness.workflow("film", stages=FILM)
    job = harness.submit_job("film")
    assert statuses(harness, job) == ["pending", "created", "created"]
    first, second = harness.claim("draw", "cut", "mix", count=9)
    assert statuses(harness, job) == ["running", "created", "created"]
    harness.complete(first.lease)
    assert statuses(harness, job) == ["running", "created", "created"]
    harness.complete(second.lease)
    assert statuses(harness, job) == ["completed", "pending", "created"]
    assert harness.claim("draw", "mix") == []
    harness.complete(harness.claim_one("cut"))
    assert statuses(harness, job) == ["completed", "completed", "pending"]
    assert harness.complete(harness.claim_one("mix")).job_status == "completed"


def test_tasks_of_one_stage_run_in_parallel_on_several_workers(harness: EngineHarness) -> None:
    # R393
    harness.workflow("film", stages=FILM)
    job = harness.submit_job("film")
    harness.claim_one(worker="w1")
    harness.claim_one(worker="w2")
    assert [(task.status, task.worker_id) for task in harness.tasks(job)[:2]] == [("running", "w1"), ("running", "w2")]


def test_two_last_tasks_completed_in_one_call_complete_their_stage_once(harness: EngineHarness) -> None:
    # R424
    harness.workflow("film", stages=FILM)
    job = harness.submit_job("film")
    harness.engine.execute_many([Complete(lease=leased.lease) for leased in harness.claim(count=2)])
    assert statuses(harness, job) == ["completed", "pending", "created"]
    assert harness.events(job).count("stage.completed") == 1
    assert len(harness.claim("cut", count=9)) == 1


def test_a_stage_waits_for_an_approval_with_a_named_approver(harness: EngineHarness) -> None:
    # R395, R399, R406, R407, R418, G6
    harness.workflow("film", stages=[stage("draw"), stage("cut", approval=True)])
    job = harness.submit_job("film")
    harness.complete(harness.claim_one())
    assert statuses(harness, job) == ["completed", "waiting"]
    assert harness.claim("cut") == []
    part = harness.stages(job)[1].id
    before = harness.snapshot()
    for blank in ("", "   "):
        refusal = harness.expect_refusal(Approve(tenant="acme", job_id=job, stage_id=part, approver=blank))
        assert refusal.code == "approver_required"
    assert harness.snapshot() == before
    assert harness.approve(job, 2, "bea").changed is True
    approved = harness.stages(job)[1]
    assert (approved.status, approved.approved_by, approved.approved_at) == ("pending", "bea", harness.clock.now())
    assert harness.approve(job, 2, "cem").changed is False, "a repeated approval has no effect"
    assert harness.stages(job)[1].approved_by == "bea"
    assert harness.complete(harness.claim_one("cut")).job_status == "completed"


def test_the_first_stage_can_wait_for_approval(harness: EngineHarness) -> None:
    # R399, R407
    harness.workflow("film", stages=[stage("draw", approval=True)])
    job = harness.submit_job("film")
    assert (harness.status(job), statuses(harness, job), harness.claim()) == ("queued", ["waiting"], [])
    harness.approve(job, 1)
    assert harness.claim_one().job_id == job


@pytest.mark.parametrize("no", [1, 2, 3])
def test_only_a_waiting_stage_can_be_approved(harness: EngineHarness, no: int) -> None:
    # R395, R397, R405
    harness.workflow("film", stages=[stage("draw"), stage("cut", approval=True), stage("mix")])
    job = harness.submit_job("film")
    before = harness.snapshot()
    part = harness.stages(job)[no - 1].id
    refusal = harness.expect_refusal(Approve(tenant="acme", job_id=job, stage_id=part, approver="bea"))
    assert refusal.code == "illegal_transition"
    assert harness.snapshot() == before


def test_a_stage_of_another_job_is_not_found(harness: EngineHarness) -> None:
    harness.workflow("film", stages=[stage("draw", approval=True)])
    mine, other = harness.submit_job("film"), harness.submit_job("film")
    foreign = harness.stages(other)[0].id
    command = Approve(tenant="acme", job_id=mine, stage_id=foreign, approver="bea")
    assert harness.expect_refusal(command).code == "stage_not_found"


def test_approval_can_be_required_before_a_stage_opens(harness: EngineHarness) -> None:
    # R399
    harness.workflow("film", stages=FILM)
    job = harness.submit_job("film")
    assert harness.do(require_approval(harness, job, 2)).changed is True
    assert harness.do(require_approval(harness, job, 2)).changed is False
    for leased in harness.claim(count=2):
        harness.complete(leased.lease)
    assert statuses(harness, job) == ["completed", "waiting", "created"]


def test_a_held_stage_leases_no_tasks_and_its_running_tasks_continue(harness: EngineHarness) -> None:
    # R399, R407, R418
    harness.workflow("film", stages=FILM)
    job = harness.submit_job("film")
    lease = harness.claim_one()
    harness.do(require_approval(harness, job, 1))
    assert statuses(harness, job)[0] == "waiting"
    assert harness.claim() == []
    assert harness.complete(lease).job_status == "running"
    harness.approve(job, 1)
    assert harness.complete(harness.claim_one()).job_status == "running"
    assert statuses(harness, job) == ["completed", "pending", "created"]


def test_a_held_stage_with_completed_tasks_completes_with_its_approval(harness: EngineHarness) -> None:
    # R401, R406: the approval can be repeated, if its answer was lost after the commit
    harness.workflow("film", stages=[stage("draw"), stage("cut")])
    job = harness.submit_job("film")
    lease = harness.claim_one()
    harness.do(require_approval(harness, job, 1))
    harness.complete(lease)
    assert statuses(harness, job) == ["waiting", "created"]
    assert harness.approve(job, 1).changed is True
    assert statuses(harness, job) == ["completed", "pending"]
    assert harness.approve(job, 1).changed is False


def test_a_task_requeued_to_a_held_stage_is_leased_after_the_approval(harness: EngineHarness) -> None:
    # R407
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.do(require_approval(harness, job, 1))
    harness.requeue(lease)
    assert harness.claim() == []
    harness.approve(job, 1)
    assert harness.claim_one().attempt == 2


def test_a_user_cannot_hold_a_stage(harness: EngineHarness) -> None:
    # R396
    job = harness.submit_job()
    command = RequireApproval(tenant="acme", job_id=job, stage_id=harness.stages(job)[0].id, actor="user")
    assert harness.expect_refusal(command).code == "illegal_transition"


def test_an_abort_cancels_the_open_stages_and_keeps_completed_ones(harness: EngineHarness) -> None:
    # R403, R419, R423, R425, G5
    harness.workflow("film", stages=FILM)
    job = harness.submit_job("film")
    for leased in harness.claim(count=2):
        harness.complete(leased.lease, {"kept": True})
    lease = harness.claim_one("cut")
    harness.cancel(job, grace_seconds=0)
    assert statuses(harness, job) == ["completed", "canceled", "canceled"]
    assert [task.status for task in harness.tasks(job)] == ["completed", "completed", "canceled", "canceled"]
    assert harness.complete(lease).skipped == "The job is canceled."
    assert statuses(harness, job) == ["completed", "canceled", "canceled"]
    assert len([d for d in harness.reads.documents(job) if d.name.startswith("output")]) == 2


def test_a_failed_task_fails_its_stage_and_job_and_its_siblings_do_not_start(harness: EngineHarness) -> None:
    # R386, R402, R422, R426, G4
    harness.workflow("trio", stages=[stage("draw", tasks=3), stage("cut")])
    job = harness.submit_job("trio")
    first, second = harness.claim(count=2)
    assert harness.fail(first.lease).job_status == "failed"
    assert statuses(harness, job) == ["failed", "canceled"]
    assert harness.claim("draw", "cut") == []
    assert harness.complete(second.lease).skipped == "The job is failed."
    assert [task.status for task in harness.tasks(job)] == ["failed", "canceled", "canceled", "canceled"]
    assert harness.balance() == 100


def test_the_events_of_a_cascade_have_one_time_and_consecutive_numbers(harness: EngineHarness) -> None:
    # R406, R424
    harness.workflow("film", stages=[stage("draw"), stage("cut", approval=True)])
    job = harness.submit_job("film")
    lease = harness.claim_one()
    harness.clock.advance(1)
    harness.complete(lease)
    now = harness.clock.now()
    assert [(event.seq, event.type, event.at) for event in harness.reads.events(job)][-3:] == [
        (5, "task.completed", now), (6, "stage.completed", now), (7, "stage.waiting", now),
    ]  # fmt: skip
