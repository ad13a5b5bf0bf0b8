"""Stages: strictly one after the other, opened in the step that completes the one before, held back by gates."""

import pytest

from callsheet.core.commands import Approve, Complete, Hold
from tests.support.studio import Studio, stage

FILM = [stage("draw", tasks=2), stage("cut"), stage("mix")]


def statuses(studio: Studio, job: str) -> list[str]:
    return [s.status for s in studio.stages(job)]


def hold(studio: Studio, job: str, no: int) -> Hold:
    return Hold(tenant="acme", job_id=job, stage_id=studio.stages(job)[no - 1].id)


def test_stages_run_one_after_the_other(studio: Studio) -> None:
    # R385, R398, R400, R401, R404, R406, R418, R420, R421, G1
    studio.workflow("film", stages=FILM)
    job = studio.ask("film")
    assert statuses(studio, job) == ["pending", "created", "created"]
    first, second = studio.claim("draw", "cut", "mix", count=9)
    assert statuses(studio, job) == ["running", "created", "created"]
    studio.complete(first.lease)
    assert statuses(studio, job) == ["running", "created", "created"]
    studio.complete(second.lease)
    assert statuses(studio, job) == ["completed", "pending", "created"]
    assert studio.claim("draw", "mix") == []
    studio.complete(studio.take("cut"))
    assert statuses(studio, job) == ["completed", "completed", "pending"]
    assert studio.complete(studio.take("mix")).job_status == "completed"


def test_two_last_tasks_at_once_complete_their_stage_once(studio: Studio) -> None:
    # R424
    studio.workflow("film", stages=FILM)
    job = studio.ask("film")
    studio.engine.execute_many([Complete(lease=leased.lease) for leased in studio.claim(count=2)])
    assert statuses(studio, job) == ["completed", "pending", "created"]
    assert studio.events(job).count("stage.completed") == 1
    assert len(studio.claim("cut", count=9)) == 1


def test_a_gate_waits_for_an_approval_that_has_a_name(studio: Studio) -> None:
    # R395, R399, R406, R407, R418, G6
    studio.workflow("film", stages=[stage("draw"), stage("cut", gate=True)])
    job = studio.ask("film")
    studio.complete(studio.take())
    assert statuses(studio, job) == ["completed", "waiting"]
    assert studio.claim("cut") == []
    part = studio.stages(job)[1].id
    before = studio.snapshot()
    for nobody in ("", "   "):
        refusal = studio.refused(Approve(tenant="acme", job_id=job, stage_id=part, approver=nobody))
        assert refusal.code == "approver_required"
    assert studio.snapshot() == before
    assert studio.approve(job, 2, "bea").changed is True
    approved = studio.stages(job)[1]
    assert (approved.status, approved.approved_by, approved.approved_at) == ("pending", "bea", studio.clock.now())
    assert studio.approve(job, 2, "cem").changed is False, "an approval twice is one"
    assert studio.stages(job)[1].approved_by == "bea"
    assert studio.complete(studio.take("cut")).job_status == "completed"


def test_a_first_stage_may_wait_too(studio: Studio) -> None:
    # R399, R407
    studio.workflow("film", stages=[stage("draw", gate=True)])
    job = studio.ask("film")
    assert (studio.status(job), statuses(studio, job), studio.claim()) == ("queued", ["waiting"], [])
    studio.approve(job, 1)
    assert studio.take().job_id == job


@pytest.mark.parametrize("no", [1, 2, 3])
def test_only_a_waiting_stage_can_be_approved(studio: Studio, no: int) -> None:
    # R396, R397, R405
    studio.workflow("film", stages=[stage("draw"), stage("cut", gate=True), stage("mix")])
    job = studio.ask("film")
    before = studio.snapshot()
    part = studio.stages(job)[no - 1].id
    refusal = studio.refused(Approve(tenant="acme", job_id=job, stage_id=part, approver="bea"))
    assert refusal.code == "illegal_transition"
    assert studio.snapshot() == before


def test_a_stage_of_another_job_is_not_found(studio: Studio) -> None:
    # R159
    studio.workflow("film", stages=[stage("draw", gate=True)])
    mine, other = studio.ask("film"), studio.ask("film")
    foreign = studio.stages(other)[0].id
    command = Approve(tenant="acme", job_id=mine, stage_id=foreign, approver="bea")
    assert studio.refused(command).code == "stage_not_found"


def test_a_stage_can_be_held_before_its_turn(studio: Studio) -> None:
    # R399, R405
    studio.workflow("film", stages=FILM)
    job = studio.ask("film")
    assert studio.do(hold(studio, job, 2)).changed is True
    assert studio.do(hold(studio, job, 2)).changed is False
    for leased in studio.claim(count=2):
        studio.complete(leased.lease)
    assert statuses(studio, job) == ["completed", "waiting", "created"]


def test_a_held_stage_hands_out_nothing_and_its_running_tasks_go_on(studio: Studio) -> None:
    # R399, R407, R418
    studio.workflow("film", stages=FILM)
    job = studio.ask("film")
    lease = studio.take()
    studio.do(hold(studio, job, 1))
    assert statuses(studio, job)[0] == "waiting"
    assert studio.claim() == []
    assert studio.complete(lease).job_status == "running"
    studio.approve(job, 1)
    assert studio.complete(studio.take()).job_status == "running"
    assert statuses(studio, job) == ["completed", "pending", "created"]


def test_a_held_stage_whose_tasks_have_all_ended_completes_with_its_approval_which_may_be_repeated(
    studio: Studio,
) -> None:
    # R401, R406, and the crash matrix: the answer to an approval was lost after its commit
    studio.workflow("film", stages=[stage("draw"), stage("cut")])
    job = studio.ask("film")
    lease = studio.take()
    studio.do(hold(studio, job, 1))
    studio.complete(lease)
    assert statuses(studio, job) == ["waiting", "created"]
    assert studio.approve(job, 1).changed is True
    assert statuses(studio, job) == ["completed", "pending"]
    assert studio.approve(job, 1).changed is False


def test_a_task_given_back_to_a_held_stage_is_handed_out_after_the_approval(studio: Studio) -> None:
    # R407
    job = studio.ask()
    lease = studio.take()
    studio.do(hold(studio, job, 1))
    studio.requeue(lease)
    assert studio.claim() == []
    studio.approve(job, 1)
    assert studio.take().attempt == 2


def test_a_user_cannot_hold_a_stage(studio: Studio) -> None:
    # R395, R396
    job = studio.ask()
    command = Hold(tenant="acme", job_id=job, stage_id=studio.stages(job)[0].id, actor="user")
    assert studio.refused(command).code == "illegal_transition"


def test_an_abort_cancels_every_stage_but_keeps_what_was_completed(studio: Studio) -> None:
    # R403, R419, R423, R425, H17, G5
    studio.workflow("film", stages=FILM)
    job = studio.ask("film")
    for leased in studio.claim(count=2):
        studio.complete(leased.lease, {"kept": True})
    lease = studio.take("cut")
    studio.cancel(job, grace_seconds=0)
    assert statuses(studio, job) == ["completed", "canceled", "canceled"]
    assert [task.status for task in studio.tasks(job)] == ["completed", "completed", "canceled", "canceled"]
    assert studio.complete(lease).skipped == "The job is canceled."
    assert statuses(studio, job) == ["completed", "canceled", "canceled"]
    assert len([d for d in studio.read.documents(job) if d.name.startswith("output")]) == 2


def test_a_failed_task_ends_stage_and_job_and_stops_its_siblings(studio: Studio) -> None:
    # R386, R402, R422, R426, G4
    studio.workflow("trio", stages=[stage("draw", tasks=3), stage("cut")])
    job = studio.ask("trio")
    first, second = studio.claim(count=2)
    assert studio.fail(first.lease).job_status == "failed"
    assert statuses(studio, job) == ["failed", "canceled"]
    assert studio.claim("draw", "cut") == []
    assert studio.complete(second.lease).skipped == "The job is failed."
    assert [task.status for task in studio.tasks(job)] == ["failed", "canceled", "canceled", "canceled"]
    assert studio.balance() == 100


def test_a_cascade_is_one_step_for_whoever_looks(studio: Studio) -> None:
    # R406, R424: the completion, the next stage and the job's end carry one moment and consecutive numbers
    studio.workflow("film", stages=[stage("draw"), stage("cut", gate=True)])
    job = studio.ask("film")
    studio.complete(studio.take())
    told = [(event.seq, event.type) for event in studio.read.events(job)][-3:]
    assert told == [(5, "task.completed"), (6, "stage.completed"), (7, "stage.waiting")]
