"""What people do to a job: pause, resume, approve, hold, cancel, retry, delete, and change it."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.rows import Document, Job, Run
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from tests.core.rule_harness import DRAW, CoreHarness

PAIR = WorkflowDefinition(
    name="pair", price=8, stages=[StageSpec(name="one", kind="draw"), StageSpec(name="two", kind="draw")]
)


def _of(job_id: str, **more: Any) -> dict[str, Any]:
    return {"tenant": "acme", "job_id": job_id, **more}


@pytest.mark.parametrize("command", [c.Pause, c.Resume, c.Cancel, c.Retry, c.Delete, c.Update])
def test_another_tenants_job_and_an_unknown_one_look_the_same(command: type[c.JobCommand]) -> None:
    """R159, H23: nothing tells a stranger that a job exists."""
    harness = CoreHarness(DRAW)
    harness.do(c.PutTenant(tenant="other"))
    job_id = harness.submit()
    foreign = harness.expect_refusal(command(tenant="other", job_id=job_id))
    unknown = harness.expect_refusal(command(tenant="other", job_id="no-such-job"))
    assert foreign.code == unknown.code == "job_not_found"
    assert foreign.message.replace(job_id, "no-such-job") == unknown.message


def test_pause_and_resume_twice_change_once() -> None:
    """R389, R25."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    answers = [harness.do(c.Pause(**_of(job_id))).changed for _ in range(2)]
    answers += [harness.do(c.Resume(**_of(job_id))).changed for _ in range(2)]
    assert answers == [True, False, True, False]
    assert harness.event_types(job_id) == ["job.created", "job.paused", "job.resumed"]


@pytest.mark.parametrize(("begun", "status"), [(False, "queued"), (True, "running")])
def test_a_resumed_job_is_where_it_was_and_its_start_stays(begun: bool, status: str) -> None:
    """R390, R116."""
    harness = CoreHarness(PAIR)
    job_id = harness.submit("pair")
    if begun:
        harness.do(c.Complete(lease=harness.lease()))
    started = harness.job(job_id).started_at
    harness.advance(50)
    harness.do(c.Pause(**_of(job_id)))
    assert harness.do(c.Resume(**_of(job_id))).status == status
    assert harness.job(job_id).started_at == started
    assert len(harness.claim()) == 1


def test_a_job_paused_before_its_hour_goes_back_to_waiting_for_it() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit(start_in_seconds=60)
    assert harness.claim() == []
    harness.do(c.Pause(**_of(job_id)))
    assert harness.do(c.Resume(**_of(job_id))).status == "pending"
    harness.advance(60)
    harness.tick()
    assert harness.job(job_id).status == "queued"
    assert len(harness.claim()) == 1


def test_a_job_paused_over_its_hour_is_queued_when_it_is_resumed() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit(start_in_seconds=60)
    harness.do(c.Pause(**_of(job_id)))
    harness.advance(61)
    harness.tick()
    assert harness.job(job_id).status == "paused"
    assert harness.do(c.Resume(**_of(job_id))).status == "queued"
    assert len(harness.claim()) == 1


def test_a_pause_does_not_stop_the_deadline() -> None:
    """R391, H16: the choice is documented; a job that never started is shown to have begun and ended at once (C23)."""
    harness = CoreHarness(replace(DRAW, deadline_seconds=100))
    job_id = harness.submit()
    harness.do(c.Pause(**_of(job_id)))
    harness.advance(100)
    harness.tick()
    job = harness.job(job_id)
    assert (job.status, job.error_code) == ("expired", "deadline_exceeded")
    assert job.started_at == job.finished_at
    assert harness.event_types(job_id)[-3:] == ["job.started", "stage.canceled", "job.expired"]


@pytest.mark.parametrize("command", [c.Pause, c.Resume])
def test_ended_jobs_are_neither_paused_nor_resumed(command: type[c.JobCommand]) -> None:
    """R389, R24."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    harness.do(c.Cancel(**_of(job_id)))
    assert harness.expect_refusal(command(**_of(job_id))).code == "illegal_transition"


def test_a_job_that_is_being_canceled_is_not_paused() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    harness.do(c.Cancel(**_of(job_id)))
    assert harness.expect_refusal(c.Pause(**_of(job_id))).code == "cancel_requested"


# -- approval


def test_an_approval_names_a_person_and_only_a_waiting_stage_takes_it() -> None:
    """R396, R397, R405, G6."""
    harness = CoreHarness(replace(PAIR, stages=[replace(stage, approval=True) for stage in PAIR.stages]))
    job_id = harness.submit("pair")
    first, second = harness.stages(job_id)
    assert first.status == "waiting"
    nobody = c.Approve(**_of(job_id), stage_id=first.id, approver=" ")
    assert harness.expect_refusal(nobody).code == "approver_required"
    early = harness.expect_refusal(c.Approve(**_of(job_id), stage_id=second.id, approver="bo"))
    assert early.code == "illegal_transition"
    missing = harness.expect_refusal(c.Approve(**_of(job_id), stage_id="no-stage", approver="bo"))
    assert missing.code == "stage_not_found"
    approve = c.Approve(**_of(job_id), stage_id=first.id, approver="bo")
    assert harness.do(approve).changed
    assert not harness.do(approve).changed, "F25: approved twice, changed once"
    assert harness.event_types(job_id).count("stage.approved") == 1


def test_a_held_stage_hands_out_nothing_more_and_what_runs_counts() -> None:
    """R399, R407, R418."""
    harness = CoreHarness(WorkflowDefinition(name="duo", stages=[StageSpec(name="one", kind="draw", tasks=2)]))
    job_id = harness.submit("duo")
    lease = harness.lease()
    stage = harness.stages(job_id)[0]
    hold = c.RequireApproval(**_of(job_id), stage_id=stage.id)
    assert [harness.do(hold).changed, harness.do(hold).changed] == [True, False]
    assert harness.claim() == []
    harness.do(c.Complete(lease=lease))
    harness.do(c.Approve(**_of(job_id), stage_id=stage.id, approver="bo"))
    assert harness.do(c.Complete(lease=harness.lease())).job_status == "completed"


def test_a_stage_held_before_its_turn_waits_when_its_turn_comes() -> None:
    """R399."""
    harness = CoreHarness(PAIR)
    job_id = harness.submit("pair")
    second = harness.stages(job_id)[1]
    assert harness.do(c.RequireApproval(**_of(job_id), stage_id=second.id)).changed
    assert not harness.do(c.RequireApproval(**_of(job_id), stage_id=second.id)).changed
    harness.do(c.Complete(lease=harness.lease()))
    assert [stage.status for stage in harness.stages(job_id)] == ["completed", "waiting"]


@pytest.mark.parametrize("stage_no", [0, 1])
def test_a_user_cannot_make_a_stage_wait(stage_no: int) -> None:
    """R395, R396: the user's only move of a stage is to let a waiting one go on."""
    harness = CoreHarness(PAIR)
    job_id = harness.submit("pair")
    stage = harness.stages(job_id)[stage_no]
    assert (
        harness.expect_refusal(c.RequireApproval(**_of(job_id), stage_id=stage.id, actor="user")).code
        == "illegal_transition"
    )
    assert harness.do(c.RequireApproval(**_of(job_id), stage_id=stage.id, actor="admin")).changed


# -- cancel and delete


def test_a_job_that_has_not_started_is_canceled_at_once_and_never_starts() -> None:
    """R13, R16, R105, R117, R122, R66."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    assert harness.do(c.Cancel(**_of(job_id), reason="changed my mind")).status == "canceled"
    job = harness.job(job_id)
    assert (job.started_at, job.cancel_reason) == (None, "changed my mind")
    assert harness.claim() == []
    assert harness.ledger(job_id)[-1] == ("refund", 10, 0)


def test_canceling_again_and_again_is_one_request_and_one_end() -> None:
    """R120, R126, R124."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    assert [harness.do(c.Cancel(**_of(job_id))).changed for _ in range(4)] == [True, False, False, False]
    assert harness.event_types(job_id).count("job.cancel_requested") == 1
    assert harness.do(c.Heartbeat(lease=lease)).cancel, "R229: the worker hears of it"
    harness.advance(30)
    harness.tick()
    assert not harness.do(c.Cancel(**_of(job_id))).changed
    assert harness.event_types(job_id).count("job.canceled") == 1


def test_a_second_cancel_can_shorten_the_grace_and_never_lengthens_it() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    harness.do(c.Cancel(**_of(job_id), grace_seconds=20))
    harness.do(c.Cancel(**_of(job_id), grace_seconds=500))
    assert harness.job(job_id).cancel_due_at == harness.now + 20_000_000
    assert harness.do(c.Cancel(**_of(job_id), grace_seconds=0)).status == "canceled"


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_an_ended_job_is_not_canceled(end: str) -> None:
    """R23, R113."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Complete(lease=lease) if end == "completed" else c.Fail(lease=lease, retryable=False))
    assert harness.expect_refusal(c.Cancel(**_of(job_id))).code == "illegal_transition"


def test_deleting_a_running_job_cancels_it_first_and_keeps_its_money_and_evidence() -> None:
    """R302, R364, R367, R368, H20."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started(input={"prompt": "secret"}, labels={"a": "b"})
    harness.do(c.Delete(**_of(job_id)))
    job = harness.job(job_id)
    assert (job.status, job.labels, job.cancel_requested_at) == ("canceled", None, harness.now)
    assert job.deleted_at == harness.now
    assert harness.purged_job_ids == [job_id]
    assert harness.ledger(job_id) == [("reserve", -10, 0), ("refund", 10, 0)]
    assert harness.expect_refusal(c.Pause(**_of(job_id))).code == "job_not_found"
    assert not harness.do(c.Delete(**_of(job_id))).changed
    assert harness.do(c.Complete(lease=lease)).skipped


# -- retry


def _failed(harness: CoreHarness) -> str:
    job_id, lease = harness.started()
    harness.do(c.Fail(lease=lease, code="boom", message="no luck", retryable=False))
    return job_id


def test_a_retry_opens_a_second_run_beside_the_untouched_first() -> None:
    """R21, R70, R315, R430, H19, C3: the money is reserved again, the tries begin anew, attempts count on (R313)."""
    harness = CoreHarness(DRAW)
    job_id = _failed(harness)
    first = harness.get(Run, (job_id, 1))
    state = harness.do(c.Retry(**_of(job_id)))
    assert (state.status, state.run) == ("queued", 2)
    assert harness.get(Run, (job_id, 1)) == first
    assert (first.status, first.error_code, first.error_message) == ("failed", "boom", "no luck")
    lease = harness.lease()
    assert lease.attempt == 2
    harness.do(c.Complete(lease=lease))
    assert [kind for kind, *_ in harness.ledger(job_id)] == ["reserve", "refund", "reserve", "consume"]


def test_a_retry_keeps_the_results_of_completed_tasks() -> None:
    harness = CoreHarness(WorkflowDefinition(name="duo", price=6, stages=[StageSpec(name="one", kind="draw", tasks=2)]))
    job_id = harness.submit("duo")
    one, two = harness.claim(2)
    harness.do(c.Complete(lease=one.lease))
    harness.do(c.Fail(lease=two.lease, retryable=False))
    harness.do(c.Retry(**_of(job_id)))
    [retrying] = harness.claim(5)
    assert retrying.lease.task_id == two.lease.task_id
    assert harness.do(c.Complete(lease=retrying.lease)).job_status == "completed"


@pytest.mark.parametrize("status", ["queued", "running", "paused", "completed", "canceled"])
def test_only_failed_and_expired_jobs_are_retried(status: str) -> None:
    """R71."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    if status in {"running", "completed"}:
        lease = harness.lease()
        if status == "completed":
            harness.do(c.Complete(lease=lease))
    if status == "paused":
        harness.do(c.Pause(**_of(job_id)))
    if status == "canceled":
        harness.do(c.Cancel(**_of(job_id)))
    assert harness.job(job_id).status == status
    assert harness.expect_refusal(c.Retry(**_of(job_id))).code == "illegal_transition"


def test_a_retry_that_cannot_be_paid_leaves_the_job_as_it_was() -> None:
    """R72, R91."""
    harness = CoreHarness(DRAW, initial_credits=10)
    job_id = _failed(harness)
    harness.do(c.Adjust(tenant="acme", user="ann", amount=-5, reason="spent elsewhere"))
    assert harness.expect_refusal(c.Retry(**_of(job_id))).code == "insufficient_credits"
    assert harness.job(job_id).error_message == "no luck"


def test_two_retries_at_once_open_one_run() -> None:
    """R73, H18."""
    harness = CoreHarness(DRAW)
    job_id = _failed(harness)
    first, second = harness.batch(c.Retry(**_of(job_id)), c.Retry(**_of(job_id)))
    assert first.run == 2
    assert second.code == "illegal_transition"
    assert harness.wallet().reserved == 10


def test_a_retry_whose_answer_was_lost_finds_its_own_run() -> None:
    harness = CoreHarness(DRAW)
    job_id = _failed(harness)
    command = c.Retry(**_of(job_id), id=harness.new_id())
    assert harness.batch(command, command, retrying=True)[1].run == 2
    assert harness.batch(command, retrying=True)[0].run == 2
    assert harness.wallet().reserved == 10


def test_each_run_has_the_same_time_from_its_own_beginning() -> None:
    """V1: the deadline does not grow with every retry, nor with the wait for a job's hour."""
    harness = CoreHarness(replace(DRAW, deadline_seconds=100))
    job_id = harness.submit(start_in_seconds=1_000)
    harness.advance(1_000)
    harness.tick()
    for _ in range(3):
        assert harness.job(job_id).deadline_at == harness.now + 100_000_000
        harness.advance(100)
        harness.tick()
        assert harness.job(job_id).status == "expired"
        harness.advance(500)
        harness.do(c.Retry(**_of(job_id)))


def test_a_retry_as_a_new_job_leaves_the_old_one_ended() -> None:
    """R315, S5, C3."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started(input={"n": 1})
    harness.do(c.Fail(lease=lease, retryable=False))
    before = harness.job(job_id)
    state = harness.do(c.Retry(**_of(job_id), retry_as="new_job"))
    fresh = harness.job(state.job_id)
    assert (fresh.retry_of, fresh.status, fresh.run) == (job_id, "queued", 1)
    assert harness.job(job_id) == before
    [leased] = harness.claim()
    assert (leased.lease.job_id, leased.input) == (fresh.id, '{"n":1}')


def test_a_retry_as_a_new_job_has_the_stages_that_the_old_one_really_had() -> None:
    """Brought inline, and added later; the first one's results are not taken along."""
    harness = CoreHarness(WorkflowDefinition(name="open", price=2, inline=True))
    stages = [StageSpec(name="one", kind="draw", inputs=[{"n": 1}]), StageSpec(name="two", kind="draw", approval=True)]
    job_id = harness.submit("open", stages=stages)
    harness.do(c.AddStage(**_of(job_id), stage=StageSpec(name="three", kind="draw", tasks=2)))
    harness.do(c.Fail(lease=harness.lease(), retryable=False))
    fresh = harness.do(c.Retry(**_of(job_id), retry_as="new_job")).job_id
    assert [(s.name, s.approval, s.tasks_total) for s in harness.stages(fresh)] == [
        ("one", 0, 1), ("two", 1, 1), ("three", 0, 2),
    ]  # fmt: skip
    [leased] = harness.claim()
    assert (leased.lease.job_id, leased.input) == (fresh, '{"n":1}')


@pytest.mark.parametrize("retry_as", ["new_run", "new_job"])
def test_a_retry_counts_towards_the_cap(retry_as: Any) -> None:
    """R171, S3."""
    harness = CoreHarness(DRAW, limits=Limits(active_jobs_max=1))
    job_id = _failed(harness)
    harness.submit()
    assert harness.expect_refusal(c.Retry(**_of(job_id), retry_as=retry_as)).code == "too_many_active_jobs"


def test_a_blocked_job_is_a_record_without_money_work_or_retry() -> None:
    """R298, M13, C12."""
    harness = CoreHarness(DRAW)
    verdict = c.Verdict("moderation", "Not allowed.", block=True)
    job_id = harness.submit(verdict=verdict, idempotency_key="k")
    assert harness.job(job_id).status == "blocked"
    assert (harness.ledger(job_id), harness.tasks(job_id), harness.claim()) == ([], [], [])
    assert harness.expect_refusal(c.Retry(**_of(job_id))).code == "illegal_transition"
    assert harness.submit(idempotency_key="k") != job_id, "the key was not burnt"
    assert len(list(harness.all(Document))) == 0


def test_a_gate_that_only_refuses_leaves_no_row() -> None:
    """C12."""
    harness = CoreHarness(DRAW)
    denied = c.Submit(tenant="acme", user="ann", workflow="draw", verdict=c.Verdict("quota", "Too much today."))
    assert harness.expect_refusal(denied).code == "quota"
    assert not list(harness.all(Job))


def test_limits_of_grace_are_checked() -> None:
    harness = CoreHarness(DRAW, limits=Limits(lease_seconds_max=1_000))
    job_id, _ = harness.started()
    assert harness.expect_refusal(c.Cancel(**_of(job_id), grace_seconds=1_001)).code == "out_of_range"
    assert harness.expect_refusal(c.Cancel(**_of(job_id), grace_seconds=-1)).code == "out_of_range"
