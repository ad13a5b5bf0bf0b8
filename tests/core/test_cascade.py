"""What follows from a neighbour's state, in the decision that caused it."""

import pytest
from msgspec.structs import replace

from callsheet.core import facts
from callsheet.core.decisions import cascade as rules
from callsheet.core.model import commands as c
from callsheet.core.model.rows import Attempt, Job, Run, Stage, Task
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.working_set import WorkingSet
from tests.core.rule_harness import DRAW, CoreHarness

FILM = WorkflowDefinition(
    name="film", price=9,
    stages=[StageSpec(name="shoot", kind="draw", tasks=3), StageSpec(name="cut", kind="cut", tasks=1)],
)  # fmt: skip
GATED = replace(FILM, stages=[FILM.stages[0], replace(FILM.stages[1], approval=True)])
OPEN = WorkflowDefinition(name="open", price=4, inline=True)


def _statuses(harness: CoreHarness, job_id: str) -> tuple[str, list[str], list[str]]:
    return (
        harness.job(job_id).status,
        [stage.status for stage in harness.stages(job_id)],
        [task.status for task in harness.tasks(job_id)],
    )


def test_the_last_task_completes_stage_and_job_in_one_decision() -> None:
    """R420, R421, R424, R385, R401."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    answer = harness.do(c.Complete(lease=lease, output={"ok": True}))
    assert (answer.status, answer.job_status) == ("completed", "completed")
    assert _statuses(harness, job_id) == ("completed", ["completed"], ["completed"])
    assert harness.job(job_id).progress == 100


def test_a_completed_stage_opens_the_next_in_the_same_decision() -> None:
    """R398, R404, R406, G1: and not before its last task."""
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    first, second, third = harness.claim(3)
    for leased in (first, second):
        harness.do(c.Complete(lease=leased.lease))
        assert [stage.status for stage in harness.stages(job_id)] == ["running", "created"]
    harness.do(c.Complete(lease=third.lease))
    assert _statuses(harness, job_id) == ("running", ["completed", "pending"], ["completed"] * 3 + ["pending"])
    assert harness.tasks(job_id)[3].ready == 1


def test_a_gated_stage_waits_and_hands_out_nothing_until_it_is_approved() -> None:
    """R399, R406, R407, R395, G6."""
    harness = CoreHarness(GATED)
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


def test_a_failed_task_fails_stage_and_job_and_stops_its_siblings() -> None:
    """R402, R422, R426, G4, G5."""
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


def test_canceling_stops_everything_below_and_keeps_what_was_completed() -> None:
    """R403, R423, R425."""
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    for leased in harness.claim(3):
        harness.do(c.Complete(lease=leased.lease))
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    assert _statuses(harness, job_id) == ("canceled", ["completed", "canceled"], ["completed"] * 3 + ["canceled"])


def test_a_canceled_job_ends_when_its_last_worker_has_let_go() -> None:
    """R121, C4: the worker's own report carries the cancel out."""
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


def test_a_completion_before_the_grace_is_over_wins_against_the_cancel() -> None:
    """R128, H10, C4."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    assert harness.do(c.Complete(lease=lease)).job_status == "completed"
    assert harness.job(job_id).cancel_requested_at is not None
    assert harness.ledger(job_id) == [("reserve", -10, 0), ("consume", 0, 10)]


def test_after_the_grace_the_lease_is_revoked_and_the_late_result_changes_nothing() -> None:
    """R419, H17."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    harness.advance(31)
    harness.tick()
    assert harness.job(job_id).status == "canceled"
    assert harness.do(c.Heartbeat(lease=lease)) == c.HeartbeatResult(0.0, cancel=True)
    before = harness.snapshot()
    assert harness.do(c.Complete(lease=lease)).skipped == "The job is canceled."
    assert harness.snapshot() == before
    assert harness.get(Attempt, (lease.task_id, 1)).outcome == "canceled"


def test_a_stage_without_tasks_waits_for_some() -> None:
    """R408: it neither completes nor hangs for ever; tasks, a cancel or the deadline end it."""
    harness = CoreHarness(OPEN)
    job_id = harness.submit("open", stages=[StageSpec(name="later", kind="draw", tasks=0)])
    assert _statuses(harness, job_id) == ("queued", ["pending"], [])
    stage = harness.stages(job_id)[0]
    harness.do(c.AddTasks(tenant="acme", job_id=job_id, stage_id=stage.id, inputs=[{"n": 1}]))
    assert harness.do(c.Complete(lease=harness.lease())).job_status == "completed"


def test_a_later_stage_without_tasks_is_not_done_because_the_one_before_it_is() -> None:
    """R408."""
    harness = CoreHarness(OPEN)
    specs = [StageSpec(name="draw", kind="draw"), StageSpec(name="later", kind="draw", tasks=0)]
    job_id = harness.submit("open", stages=specs)
    assert harness.do(c.Complete(lease=harness.lease())).job_status == "running"
    assert _statuses(harness, job_id) == ("running", ["completed", "pending"], ["completed"])
    stage = harness.stages(job_id)[1]
    harness.do(c.AddTasks(tenant="acme", job_id=job_id, stage_id=stage.id, inputs=[None]))
    assert harness.do(c.Complete(lease=harness.lease())).job_status == "completed"


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_job_without_stages_can_still_end(end: str) -> None:
    harness = CoreHarness(OPEN)
    job_id = harness.submit("open")
    if end == "cancel":
        harness.do(c.Cancel(tenant="acme", job_id=job_id))
    else:
        harness.advance(OPEN.deadline_seconds)
        harness.tick()
    assert harness.job(job_id).status == {"cancel": "canceled", "deadline": "expired"}[end]
    assert harness.ledger(job_id)[-1] == ("refund", 4, 0)


def test_a_paused_job_offers_nothing_and_what_runs_goes_on() -> None:
    """R387, R388, H16: the next stage opens, and still nothing is handed out until the job is resumed."""
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


def test_the_last_task_of_a_paused_job_completes_it() -> None:
    """R388."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    assert harness.do(c.Complete(lease=lease)).job_status == "completed"
    assert harness.event_types(job_id)[-1] == "job.completed"


def test_sixty_four_stages_are_walked_through_one_by_one() -> None:
    """R404: the whole way is taken in order, and the fixed point is found every time."""
    stages = [StageSpec(name=f"s{n}", kind="draw") for n in range(64)]
    harness = CoreHarness(WorkflowDefinition(name="long", stages=stages))
    job_id = harness.submit("long")
    for done in range(64):
        assert harness.job(job_id).stages_completed == done
        harness.do(c.Complete(lease=harness.lease()))
    assert harness.job(job_id).status == "completed"


def test_rules_that_find_no_rest_are_stopped_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is asserted: a rule that always fires is a bug, not an endless loop."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    ws = WorkingSet(harness.now, Limits())
    ws.load(Job, [harness.job(job_id)])
    ws.load(Stage, harness.stages(job_id))
    ws.load(Task, harness.tasks(job_id))
    ws.load(Run, harness.all(Run))
    ws.facts[facts.STAGES_OF_JOB, job_id] = [stage.id for stage in harness.stages(job_id)]
    monkeypatch.setattr(rules, "RULES", (lambda *_: True,))
    with pytest.raises(AssertionError, match="did not reach a fixed point"):
        rules.cascade(ws, job_id)


def test_a_retried_job_whose_work_was_all_done_completes_at_once() -> None:
    """A held stage may end its last task and then run out of time; the next run has nothing left to do."""
    harness = CoreHarness(replace(DRAW, deadline_seconds=100))
    job_id, lease = harness.started()
    harness.do(c.RequireApproval(tenant="acme", job_id=job_id, stage_id=harness.stages(job_id)[0].id))
    harness.do(c.Complete(lease=lease))
    harness.advance(100)
    harness.tick()
    assert harness.job(job_id).status == "expired"
    assert harness.do(c.Retry(tenant="acme", job_id=job_id)).status == "completed"
    assert harness.event_types(job_id)[-5:] == [
        "job.released",
        "stage.opened",
        "stage.completed",
        "job.started",
        "job.completed",
    ]
