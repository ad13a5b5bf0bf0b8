"""Cascades: the change of a task moves its stage and its job in the same decision."""

from typing import Literal

import pytest
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions import cascade
from callsheet.core.model import commands as c
from callsheet.core.model.rows import Attempt, Document, Job, Run, Stage, Task
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.working_set import WorkingSet
from tests.core.rule_harness import DRAW, CoreHarness

FILM = WorkflowDefinition(
    name="film", price=9,
    stages=[StageSpec(name="shoot", kind="draw", tasks=3), StageSpec(name="cut", kind="cut", tasks=1)],
)  # fmt: skip
WITH_APPROVAL = replace(FILM, stages=[FILM.stages[0], replace(FILM.stages[1], approval=True)])
INLINE = WorkflowDefinition(name="inline", price=4, inline=True)


def _statuses(harness: CoreHarness, job_id: str) -> tuple[str, list[str], list[str]]:
    return (
        harness.job(job_id).status,
        [stage.status for stage in harness.stages(job_id)],
        [task.status for task in harness.tasks(job_id)],
    )


def test_the_last_task_completes_its_stage_and_its_job_in_one_decision() -> None:
    """R420, R421, R424, R385, R401."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    answer = harness.do(c.Complete(lease=lease, output={"ok": True}))
    assert (answer.status, answer.job_status) == ("completed", "completed")
    assert _statuses(harness, job_id) == ("completed", ["completed"], ["completed"])
    assert harness.job(job_id).progress == 100


def test_the_last_task_of_a_stage_opens_the_next_stage_in_one_decision() -> None:
    """R398, R404, R406, G1."""
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    first, second, third = harness.claim(3)
    for leased in (first, second):
        harness.do(c.Complete(lease=leased.lease))
        assert [stage.status for stage in harness.stages(job_id)] == ["running", "created"]
    harness.do(c.Complete(lease=third.lease))
    assert _statuses(harness, job_id) == ("running", ["completed", "pending"], ["completed"] * 3 + ["pending"])
    assert harness.tasks(job_id)[3].ready == 1


def test_no_task_of_a_stage_that_needs_approval_is_claimed_before_it_is_approved() -> None:
    """R395, R399, R407, G6."""
    harness = CoreHarness(WITH_APPROVAL)
    job_id = harness.submit("film")
    for leased in harness.claim(3):
        harness.do(c.Complete(lease=leased.lease))
    approval = harness.stages(job_id)[1]
    assert (approval.status, harness.claim(kinds=("cut",))) == ("waiting", [])
    harness.do(c.Approve(tenant="acme", job_id=job_id, stage_id=approval.id, approver="bo"))
    assert harness.stages(job_id)[1].approved_by == "bo"
    [leased] = harness.claim(kinds=("cut",))
    assert harness.do(c.Complete(lease=leased.lease)).job_status == "completed"


def test_two_last_tasks_in_one_batch_complete_the_stage_once() -> None:
    """R424."""
    harness = CoreHarness(replace(FILM, stages=[replace(FILM.stages[0], tasks=2), FILM.stages[1]]))
    job_id = harness.submit("film")
    one, two = harness.claim(2)
    harness.batch(c.Complete(lease=one.lease), c.Complete(lease=two.lease))
    assert harness.event_types(job_id).count("stage.completed") == 1
    assert harness.event_types(job_id).count("stage.opened") == 1
    assert harness.job(job_id).stages_completed == 1


def test_a_failed_task_fails_its_stage_and_job_and_cancels_its_siblings() -> None:
    """R386, R402, R422, R426, G4, G5."""
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    one, two = harness.claim(2)
    answer = harness.do(c.Fail(lease=one.lease, code="oom", message="out of memory", retryable=False))
    assert (answer.status, answer.job_status) == ("failed", "failed")
    assert _statuses(harness, job_id) == ("failed", ["failed", "canceled"], ["failed"] + ["canceled"] * 3)
    assert (harness.job(job_id).error_code, harness.job(job_id).error_message) == ("oom", "out of memory")
    late = harness.do(c.Complete(lease=two.lease))
    assert late.skipped
    assert harness.job(job_id).status == "failed"


def test_canceling_a_job_cancels_its_open_stages_and_keeps_completed_ones() -> None:
    """R403, R423, R425."""
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    for leased in harness.claim(3):
        harness.do(c.Complete(lease=leased.lease, output={"ok": True}))
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    assert _statuses(harness, job_id) == ("canceled", ["completed", "canceled"], ["completed"] * 3 + ["canceled"])
    assert [document.body for document in harness.all(Document)] == ['{"ok":true}'] * 3


def test_a_running_job_is_canceled_when_its_last_worker_has_stopped() -> None:
    """R108, R121, C4."""
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    one, two = harness.claim(2)
    state = harness.do(c.Cancel(tenant="acme", job_id=job_id))
    assert (state.status, state.cancel_requested) == ("running", True)
    harness.do(c.Fail(lease=one.lease, message="stopping"))
    assert harness.job(job_id).status == "running"
    harness.do(c.Requeue(lease=two.lease, reason="stopping"))
    assert harness.job(job_id).status == "canceled"
    assert set(_statuses(harness, job_id)[2]) == {"canceled"}


def test_a_completion_within_the_grace_time_wins_over_the_cancel() -> None:
    """R128, H10."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    assert harness.do(c.Complete(lease=lease)).job_status == "completed"
    assert harness.job(job_id).cancel_requested_at is not None
    assert harness.ledger(job_id) == [("reserve", -10, 0), ("consume", 0, 10)]


def test_after_the_grace_time_the_job_is_canceled_and_late_reports_change_nothing() -> None:
    """R252, R419, C4, H17."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    harness.advance(31)
    harness.tick()
    assert harness.job(job_id).status == "canceled"
    assert harness.do(c.Heartbeat(lease=lease)) == c.HeartbeatResult(0.0, cancel=True)
    before = harness.snapshot()
    for late in (c.Complete(lease=lease), c.Fail(lease=lease)):
        assert harness.do(late).skipped == "The job is canceled."
    assert harness.claim() == []
    assert harness.snapshot() == before
    assert harness.ledger(job_id) == [("reserve", -10, 0), ("refund", 10, 0)]
    assert harness.get(Attempt, (lease.task_id, 1)).outcome == "canceled"


def test_a_stage_without_tasks_waits_until_tasks_are_added() -> None:
    """R408."""
    harness = CoreHarness(INLINE)
    job_id = harness.submit("inline", stages=[StageSpec(name="later", kind="draw", tasks=0)])
    assert _statuses(harness, job_id) == ("queued", ["pending"], [])
    stage = harness.stages(job_id)[0]
    harness.do(c.AddTasks(tenant="acme", job_id=job_id, stage_id=stage.id, inputs=[{"n": 1}]))
    assert harness.do(c.Complete(lease=harness.lease())).job_status == "completed"


def test_a_stage_without_tasks_does_not_complete_with_the_stage_before_it() -> None:
    """R408."""
    harness = CoreHarness(INLINE)
    specs = [StageSpec(name="draw", kind="draw"), StageSpec(name="later", kind="draw", tasks=0)]
    job_id = harness.submit("inline", stages=specs)
    assert harness.do(c.Complete(lease=harness.lease())).job_status == "running"
    assert _statuses(harness, job_id) == ("running", ["completed", "pending"], ["completed"])
    stage = harness.stages(job_id)[1]
    harness.do(c.AddTasks(tenant="acme", job_id=job_id, stage_id=stage.id, inputs=[None]))
    assert harness.do(c.Complete(lease=harness.lease())).job_status == "completed"


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_job_without_stages_can_be_canceled_and_expires(end: str) -> None:
    harness = CoreHarness(INLINE)
    job_id = harness.submit("inline")
    if end == "cancel":
        harness.do(c.Cancel(tenant="acme", job_id=job_id))
    else:
        harness.advance(INLINE.deadline_seconds)
        harness.tick()
    assert harness.job(job_id).status == {"cancel": "canceled", "deadline": "expired"}[end]
    assert harness.ledger(job_id)[-1] == ("refund", 4, 0)


def test_no_task_of_a_paused_job_is_claimed_and_running_tasks_continue() -> None:
    """R387, R388, H16."""
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    one, two = harness.claim(2)
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    assert harness.claim(5, kinds=("draw", "cut")) == []
    harness.do(c.Complete(lease=one.lease))
    harness.do(c.Complete(lease=two.lease))
    harness.do(c.Resume(tenant="acme", job_id=job_id))
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    assert harness.claim(5, kinds=("draw", "cut")) == []
    assert harness.do(c.Resume(tenant="acme", job_id=job_id)).status == "running"
    harness.do(c.Complete(lease=harness.lease()))
    assert [stage.status for stage in harness.stages(job_id)] == ["completed", "pending"]


def test_the_last_running_task_of_a_paused_job_completes_the_job() -> None:
    """R388."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    assert harness.do(c.Complete(lease=lease)).job_status == "completed"
    assert harness.event_types(job_id)[-1] == "job.completed"


def test_sixty_four_stages_run_one_after_another() -> None:
    """R404."""
    stages = [StageSpec(name=f"s{n}", kind="draw") for n in range(64)]
    harness = CoreHarness(WorkflowDefinition(name="long", stages=stages))
    job_id = harness.submit("long")
    for done in range(64):
        assert harness.job(job_id).stages_completed == done
        harness.do(c.Complete(lease=harness.lease()))
    assert harness.job(job_id).status == "completed"


def test_a_cascade_that_does_not_reach_a_fixed_point_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that always fires is a bug; it must not loop endlessly."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    ws = WorkingSet(harness.now, Limits())
    ws.load(Job, [harness.job(job_id)])
    ws.load(Stage, harness.stages(job_id))
    ws.load(Task, harness.tasks(job_id))
    ws.load(Run, harness.all(Run))
    ws.facts[facts.STAGES_OF_JOB, job_id] = [stage.id for stage in harness.stages(job_id)]
    monkeypatch.setattr(cascade, "RULES", (lambda *_: True,))
    with pytest.raises(AssertionError, match="did not reach a fixed point"):
        cascade.cascade(ws, job_id)


def test_a_retried_job_whose_tasks_are_all_completed_completes_with_its_approval() -> None:
    """The last task of a stage can complete while the stage waits for approval, and the job can expire then."""
    harness = CoreHarness(replace(DRAW, deadline_seconds=100))
    job_id, lease = harness.started()
    harness.do(c.RequireApproval(tenant="acme", job_id=job_id, stage_id=harness.stages(job_id)[0].id))
    harness.do(c.Complete(lease=lease))
    harness.advance(100)
    harness.tick()
    assert harness.job(job_id).status == "expired"
    assert harness.do(c.Retry(tenant="acme", job_id=job_id)).status == "queued", "a retry does not skip the approval"
    stage_id = harness.stages(job_id)[0].id
    approved = harness.do(c.Approve(tenant="acme", job_id=job_id, stage_id=stage_id, approver="mia"))
    assert approved.status == "completed"
    assert harness.event_types(job_id)[-6:] == [
        "job.released",
        "stage.waiting",
        "stage.approved",
        "stage.completed",
        "job.started",
        "job.completed",
    ]


@pytest.mark.parametrize("retry_as", ["new_run", "new_job"])
def test_an_approval_required_while_a_stage_runs_is_required_again_after_a_retry(
    retry_as: Literal["new_run", "new_job"],
) -> None:
    """R399."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    stage = harness.stages(job_id)[0]
    harness.do(c.RequireApproval(tenant="acme", job_id=job_id, stage_id=stage.id))
    harness.do(c.Approve(tenant="acme", job_id=job_id, stage_id=stage.id, approver="bo"))
    assert harness.do(c.Fail(lease=lease, retryable=False)).job_status == "failed"
    retried = harness.do(c.Retry(tenant="acme", job_id=job_id, retry_as=retry_as)).job_id
    stage = harness.stages(retried)[0]
    assert (stage.status, stage.approved_by, harness.claim()) == ("waiting", None, [])
