"""Actions of users and admins on a job: pause, resume, approve, cancel, retry and delete."""

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
def test_a_job_of_another_tenant_is_reported_like_an_unknown_job(command: type[c.JobCommand]) -> None:
    """R159, H23: the answer does not reveal that the job exists."""
    harness = CoreHarness(DRAW)
    harness.do(c.PutTenant(tenant="other"))
    job_id = harness.submit()
    of_other_tenant = harness.expect_refusal(command(tenant="other", job_id=job_id))
    unknown = harness.expect_refusal(command(tenant="other", job_id="no-such-job"))
    assert of_other_tenant.code == unknown.code == "job_not_found"
    assert of_other_tenant.message.replace(job_id, "no-such-job") == unknown.message


def test_a_repeated_pause_or_resume_changes_nothing() -> None:
    """R389, R25."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    answers = [harness.do(c.Pause(**_of(job_id))).changed for _ in range(2)]
    answers += [harness.do(c.Resume(**_of(job_id))).changed for _ in range(2)]
    assert answers == [True, False, True, False]
    assert harness.event_types(job_id) == ["job.created", "job.paused", "job.resumed"]


@pytest.mark.parametrize(("started", "status"), [(False, "queued"), (True, "running")])
def test_a_resumed_job_has_its_earlier_status_and_start_time(started: bool, status: str) -> None:
    """R390, R116."""
    harness = CoreHarness(PAIR)
    job_id = harness.submit("pair")
    if started:
        harness.do(c.Complete(lease=harness.lease()))
    started_at = harness.job(job_id).started_at
    harness.advance(50)
    harness.do(c.Pause(**_of(job_id)))
    assert harness.do(c.Resume(**_of(job_id))).status == status
    assert harness.job(job_id).started_at == started_at
    assert len(harness.claim()) == 1


def test_a_scheduled_job_that_was_paused_is_pending_again_after_the_resume() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit(start_in_seconds=60)
    assert harness.claim() == []
    harness.do(c.Pause(**_of(job_id)))
    assert harness.do(c.Resume(**_of(job_id))).status == "pending"
    harness.advance(60)
    harness.tick()
    assert harness.job(job_id).status == "queued"
    assert len(harness.claim()) == 1


def test_a_job_resumed_after_its_scheduled_time_is_queued() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit(start_in_seconds=60)
    harness.do(c.Pause(**_of(job_id)))
    harness.advance(61)
    harness.tick()
    assert harness.job(job_id).status == "paused"
    assert harness.do(c.Resume(**_of(job_id))).status == "queued"
    assert len(harness.claim()) == 1


def test_a_pause_does_not_stop_the_deadline() -> None:
    """R391, C23, H16: a job that never started gets a start time when it expires."""
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
def test_an_ended_job_can_be_neither_paused_nor_resumed(command: type[c.JobCommand]) -> None:
    """R389, R24."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    harness.do(c.Cancel(**_of(job_id)))
    assert harness.expect_refusal(command(**_of(job_id))).code == "illegal_transition"


def test_a_job_with_a_cancel_request_cannot_be_paused() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    harness.do(c.Cancel(**_of(job_id)))
    assert harness.expect_refusal(c.Pause(**_of(job_id))).code == "cancel_requested"


# -- approval


def test_an_approval_needs_an_approver_and_a_waiting_stage() -> None:
    """R397, R405, G6."""
    harness = CoreHarness(replace(PAIR, stages=[replace(stage, approval=True) for stage in PAIR.stages]))
    job_id = harness.submit("pair")
    first, second = harness.stages(job_id)
    assert first.status == "waiting"
    anonymous = c.Approve(**_of(job_id), stage_id=first.id, approver=" ")
    assert harness.expect_refusal(anonymous).code == "approver_required"
    early = harness.expect_refusal(c.Approve(**_of(job_id), stage_id=second.id, approver="bo"))
    assert early.code == "illegal_transition"
    missing = harness.expect_refusal(c.Approve(**_of(job_id), stage_id="no-stage", approver="bo"))
    assert missing.code == "stage_not_found"
    approve = c.Approve(**_of(job_id), stage_id=first.id, approver="bo")
    assert harness.do(approve).changed
    assert not harness.do(approve).changed, "approved twice, changed once"
    assert harness.event_types(job_id).count("stage.approved") == 1


def test_no_task_is_claimed_after_an_approval_is_required_and_running_tasks_complete() -> None:
    """R399, R407, R418."""
    harness = CoreHarness(WorkflowDefinition(name="duo", stages=[StageSpec(name="one", kind="draw", tasks=2)]))
    job_id = harness.submit("duo")
    lease = harness.lease()
    stage = harness.stages(job_id)[0]
    require = c.RequireApproval(**_of(job_id), stage_id=stage.id)
    assert [harness.do(require).changed, harness.do(require).changed] == [True, False]
    assert harness.claim() == []
    harness.do(c.Complete(lease=lease))
    harness.do(c.Approve(**_of(job_id), stage_id=stage.id, approver="bo"))
    assert harness.do(c.Complete(lease=harness.lease())).job_status == "completed"


def test_an_approval_can_be_required_before_the_stage_opens() -> None:
    """R399."""
    harness = CoreHarness(PAIR)
    job_id = harness.submit("pair")
    second = harness.stages(job_id)[1]
    assert harness.do(c.RequireApproval(**_of(job_id), stage_id=second.id)).changed
    assert not harness.do(c.RequireApproval(**_of(job_id), stage_id=second.id)).changed
    harness.do(c.Complete(lease=harness.lease()))
    assert [stage.status for stage in harness.stages(job_id)] == ["completed", "waiting"]


@pytest.mark.parametrize("stage_no", [0, 1])
def test_a_user_cannot_require_an_approval(stage_no: int) -> None:
    """R395, R396."""
    harness = CoreHarness(PAIR)
    job_id = harness.submit("pair")
    stage = harness.stages(job_id)[stage_no]
    require = c.RequireApproval(**_of(job_id), stage_id=stage.id, actor="user")
    assert harness.expect_refusal(require).code == "illegal_transition"
    assert harness.do(replace(require, actor="admin")).changed


# -- cancel and delete


@pytest.mark.parametrize(("start_in_seconds", "status"), [(0, "queued"), (60, "pending")])
def test_a_job_that_has_not_started_is_canceled_at_once_and_never_claimed(start_in_seconds: int, status: str) -> None:
    """R13, R16, R66, R105, R117, R122, R123."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit(start_in_seconds=start_in_seconds)
    assert harness.job(job_id).status == status
    assert harness.do(c.Cancel(**_of(job_id), reason="changed my mind")).status == "canceled"
    job = harness.job(job_id)
    assert (job.started_at, job.cancel_reason) == (None, "changed my mind")
    harness.advance(60)
    harness.tick()
    assert harness.claim() == []
    assert harness.ledger(job_id)[-1] == ("refund", 10, 0)


def test_repeated_cancel_requests_have_one_effect() -> None:
    """R120, R126, R229."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    assert [harness.do(c.Cancel(**_of(job_id))).changed for _ in range(4)] == [True, False, False, False]
    assert harness.job(job_id).cancel_requested_at == harness.now
    assert harness.event_types(job_id).count("job.cancel_requested") == 1
    assert harness.do(c.Heartbeat(lease=lease)).cancel
    harness.advance(30)
    harness.tick()
    assert not harness.do(c.Cancel(**_of(job_id))).changed
    assert harness.event_types(job_id).count("job.canceled") == 1


def test_a_second_cancel_can_shorten_the_grace_time_but_not_extend_it() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    harness.do(c.Cancel(**_of(job_id), grace_seconds=20))
    harness.do(c.Cancel(**_of(job_id), grace_seconds=500))
    assert harness.job(job_id).cancel_due_at == harness.now + 20_000_000
    assert harness.do(c.Cancel(**_of(job_id), grace_seconds=0)).status == "canceled"


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_an_ended_job_cannot_be_canceled(end: str) -> None:
    """R23, R113, R124."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Complete(lease=lease) if end == "completed" else c.Fail(lease=lease, retryable=False))
    assert harness.expect_refusal(c.Cancel(**_of(job_id))).code == "illegal_transition"


def test_deleting_a_running_job_cancels_it_first_and_keeps_its_ledger_and_record() -> None:
    """R302, R367, R368, H20."""
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


def _failed_job(harness: CoreHarness) -> str:
    job_id, lease = harness.started()
    harness.do(c.Fail(lease=lease, code="render_failed", message="It failed.", retryable=False))
    return job_id


def test_a_retry_opens_a_second_run_and_does_not_change_the_first() -> None:
    """R21, R70, R313, R315, R430, C3, H19: the price is reserved again, and attempts are numbered on."""
    harness = CoreHarness(DRAW)
    job_id = _failed_job(harness)
    first = harness.get(Run, (job_id, 1))
    state = harness.do(c.Retry(**_of(job_id)))
    assert (state.status, state.run) == ("queued", 2)
    assert harness.get(Run, (job_id, 1)) == first
    assert (first.status, first.error_code, first.error_message) == ("failed", "render_failed", "It failed.")
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
    [leased] = harness.claim(5)
    assert leased.lease.task_id == two.lease.task_id
    assert harness.do(c.Complete(lease=leased.lease)).job_status == "completed"


@pytest.mark.parametrize("status", ["queued", "running", "paused", "completed", "canceled"])
def test_a_job_that_has_not_failed_or_expired_cannot_be_retried(status: str) -> None:
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


def test_a_retry_without_enough_credits_changes_nothing() -> None:
    """R72."""
    harness = CoreHarness(DRAW, initial_credits=10)
    job_id = _failed_job(harness)
    harness.do(c.Adjust(tenant="acme", user="ann", amount=-5, reason="spent elsewhere"))
    assert harness.expect_refusal(c.Retry(**_of(job_id))).code == "insufficient_credits"
    assert harness.job(job_id).error_message == "It failed."


def test_two_retries_in_one_batch_open_one_run() -> None:
    """R73, H18."""
    harness = CoreHarness(DRAW)
    job_id = _failed_job(harness)
    first, second = harness.batch(c.Retry(**_of(job_id)), c.Retry(**_of(job_id)))
    assert first.run == 2
    assert second.code == "illegal_transition"
    assert harness.wallet().reserved == 10


def test_a_repeated_retry_returns_the_run_it_opened() -> None:
    harness = CoreHarness(DRAW)
    job_id = _failed_job(harness)
    command = c.Retry(**_of(job_id), id=harness.new_id())
    assert harness.batch(command, command, retrying=True)[1].run == 2
    assert harness.batch(command, retrying=True)[0].run == 2
    assert harness.wallet().reserved == 10


def test_each_run_has_the_full_deadline_from_its_start() -> None:
    """V1: the deadline grows neither with retries nor with the wait for a scheduled time."""
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


def test_a_retry_as_a_new_job_does_not_change_the_old_job() -> None:
    """R315, S5."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started(input={"n": 1})
    harness.do(c.Fail(lease=lease, retryable=False))
    before = harness.job(job_id)
    state = harness.do(c.Retry(**_of(job_id), retry_as="new_job"))
    new_job = harness.job(state.job_id)
    assert (new_job.retry_of, new_job.status, new_job.run) == (job_id, "queued", 1)
    assert harness.job(job_id) == before
    [leased] = harness.claim()
    assert (leased.lease.job_id, leased.input) == (new_job.id, '{"n":1}')


def test_a_retry_as_a_new_job_has_the_inline_and_added_stages_of_the_old_job() -> None:
    harness = CoreHarness(WorkflowDefinition(name="inline", price=2, inline=True))
    stages = [StageSpec(name="one", kind="draw", inputs=[{"n": 1}]), StageSpec(name="two", kind="draw", approval=True)]
    job_id = harness.submit("inline", stages=stages)
    harness.do(c.AddStage(**_of(job_id), stage=StageSpec(name="three", kind="draw", tasks=2)))
    harness.do(c.Fail(lease=harness.lease(), retryable=False))
    new_job_id = harness.do(c.Retry(**_of(job_id), retry_as="new_job")).job_id
    assert [(s.name, s.approval, s.tasks_total) for s in harness.stages(new_job_id)] == [
        ("one", 0, 1), ("two", 1, 1), ("three", 0, 2),
    ]  # fmt: skip
    [leased] = harness.claim()
    assert (leased.lease.job_id, leased.input) == (new_job_id, '{"n":1}')


@pytest.mark.parametrize("retry_as", ["new_run", "new_job"])
def test_a_retry_counts_towards_the_limit_of_active_jobs(retry_as: Any) -> None:
    """R171, S3."""
    harness = CoreHarness(DRAW, limits=Limits(active_jobs_max=1))
    job_id = _failed_job(harness)
    harness.submit()
    assert harness.expect_refusal(c.Retry(**_of(job_id), retry_as=retry_as)).code == "too_many_active_jobs"


def test_a_blocked_job_has_no_ledger_entry_no_task_and_no_retry() -> None:
    """R298, M13, C12."""
    harness = CoreHarness(DRAW)
    verdict = c.Verdict("moderation", "Not allowed.", block=True)
    job_id = harness.submit(verdict=verdict, idempotency_key="k")
    assert harness.job(job_id).status == "blocked"
    assert (harness.ledger(job_id), harness.tasks(job_id), harness.claim()) == ([], [], [])
    assert harness.expect_refusal(c.Retry(**_of(job_id))).code == "illegal_transition"
    assert harness.submit(idempotency_key="k") != job_id, "the key is not used up"
    assert len(list(harness.all(Document))) == 0


def test_a_gate_that_only_refuses_stores_no_job() -> None:
    """C12."""
    harness = CoreHarness(DRAW)
    denied = c.Submit(tenant="acme", user="ann", workflow="draw", verdict=c.Verdict("quota", "Too much today."))
    assert harness.expect_refusal(denied).code == "quota"
    assert not list(harness.all(Job))


def test_the_grace_time_of_a_cancel_is_limited() -> None:
    harness = CoreHarness(DRAW, limits=Limits(lease_seconds_max=1_000))
    job_id, _ = harness.started()
    assert harness.expect_refusal(c.Cancel(**_of(job_id), grace_seconds=1_001)).code == "out_of_range"
    assert harness.expect_refusal(c.Cancel(**_of(job_id), grace_seconds=-1)).code == "out_of_range"
