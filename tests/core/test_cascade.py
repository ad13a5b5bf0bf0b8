"""What follows from a neighbour's state, in the decision that caused it."""

import pytest
from msgspec.structs import replace

from callsheet.core import cascade as rules
from callsheet.core import commands as c
from callsheet.core.limits import Limits
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.core.rows import Attempt, Job, Run, Stage, Task
from callsheet.core.working import WorkingSet
from tests.core.world import DRAW, World

FILM = Recipe(
    name="film", price=9,
    stages=[StageSpec(name="shoot", kind="draw", tasks=3), StageSpec(name="cut", kind="cut", tasks=1)],
)  # fmt: skip
GATED = replace(FILM, stages=[FILM.stages[0], replace(FILM.stages[1], gate=True)])
OPEN = Recipe(name="open", price=4, inline=True)


def _statuses(world: World, job_id: str) -> tuple[str, list[str], list[str]]:
    return (
        world.job(job_id).status,
        [stage.status for stage in world.stages(job_id)],
        [task.status for task in world.tasks(job_id)],
    )


def test_the_last_task_completes_stage_and_job_in_one_decision() -> None:
    """R420, R421, R424, R385, R401."""
    world = World(DRAW)
    job_id, lease = world.started()
    answer = world.do(c.Complete(lease=lease, output={"ok": True}))
    assert (answer.status, answer.job_status) == ("completed", "completed")
    assert _statuses(world, job_id) == ("completed", ["completed"], ["completed"])
    assert world.job(job_id).progress == 100


def test_a_completed_stage_opens_the_next_in_the_same_decision() -> None:
    """R398, R404, R406, G1: and not before its last task."""
    world = World(FILM)
    job_id = world.submit("film")
    first, second, third = world.claim(3)
    for leased in (first, second):
        world.do(c.Complete(lease=leased.lease))
        assert [stage.status for stage in world.stages(job_id)] == ["running", "created"]
    world.do(c.Complete(lease=third.lease))
    assert _statuses(world, job_id) == ("running", ["completed", "pending"], ["completed"] * 3 + ["pending"])
    assert world.tasks(job_id)[3].ready == 1


def test_a_gated_stage_waits_and_hands_out_nothing_until_it_is_approved() -> None:
    """R399, R406, R407, R395, G6."""
    world = World(GATED)
    job_id = world.submit("film")
    for leased in world.claim(3):
        world.do(c.Complete(lease=leased.lease))
    gate = world.stages(job_id)[1]
    assert (gate.status, world.claim(kinds=("cut",))) == ("waiting", [])
    world.do(c.Approve(tenant="acme", job_id=job_id, stage_id=gate.id, approver="bo"))
    assert world.stages(job_id)[1].approved_by == "bo"
    [leased] = world.claim(kinds=("cut",))
    assert world.do(c.Complete(lease=leased.lease)).job_status == "completed"


def test_two_last_tasks_in_one_batch_complete_the_stage_once() -> None:
    """R424."""
    world = World(replace(FILM, stages=[replace(FILM.stages[0], tasks=2), FILM.stages[1]]))
    job_id = world.submit("film")
    one, two = world.claim(2)
    world.batch(c.Complete(lease=one.lease), c.Complete(lease=two.lease))
    assert world.told(job_id).count("stage.completed") == 1
    assert world.told(job_id).count("stage.opened") == 1
    assert world.job(job_id).stages_completed == 1


def test_a_failed_task_fails_stage_and_job_and_stops_its_siblings() -> None:
    """R402, R422, R426, G4, G5."""
    world = World(FILM)
    job_id = world.submit("film")
    one, two = world.claim(2)
    answer = world.do(c.Fail(lease=one.lease, code="oom", message="out of memory", retryable=False))
    assert (answer.status, answer.job_status) == ("failed", "failed")
    assert _statuses(world, job_id) == ("failed", ["failed", "canceled"], ["failed"] + ["canceled"] * 3)
    assert (world.job(job_id).error_code, world.job(job_id).error_message) == ("oom", "out of memory")
    late = world.do(c.Complete(lease=two.lease))
    assert late.skipped
    assert world.job(job_id).status == "failed"


def test_canceling_stops_everything_below_and_keeps_what_was_completed() -> None:
    """R403, R423, R425."""
    world = World(FILM)
    job_id = world.submit("film")
    for leased in world.claim(3):
        world.do(c.Complete(lease=leased.lease))
    world.do(c.Cancel(tenant="acme", job_id=job_id))
    assert _statuses(world, job_id) == ("canceled", ["completed", "canceled"], ["completed"] * 3 + ["canceled"])


def test_a_canceled_job_ends_when_its_last_worker_has_let_go() -> None:
    """R121, C4: the worker's own report carries the cancel out."""
    world = World(FILM)
    job_id = world.submit("film")
    one, two = world.claim(2)
    state = world.do(c.Cancel(tenant="acme", job_id=job_id))
    assert (state.status, state.cancel_requested) == ("running", True)
    world.do(c.Fail(lease=one.lease, message="stopping"))
    assert world.job(job_id).status == "running"
    world.do(c.Requeue(lease=two.lease, reason="stopping"))
    assert world.job(job_id).status == "canceled"
    assert set(_statuses(world, job_id)[2]) == {"canceled"}


def test_a_completion_before_the_grace_is_over_wins_against_the_cancel() -> None:
    """R128, H10, C4."""
    world = World(DRAW)
    job_id, lease = world.started()
    world.do(c.Cancel(tenant="acme", job_id=job_id))
    assert world.do(c.Complete(lease=lease)).job_status == "completed"
    assert world.job(job_id).cancel_requested_at is not None
    assert world.ledger(job_id) == [("reserve", -10, 0), ("consume", 0, 10)]


def test_after_the_grace_the_lease_is_revoked_and_the_late_result_changes_nothing() -> None:
    """R419, H17."""
    world = World(DRAW)
    job_id, lease = world.started()
    world.do(c.Cancel(tenant="acme", job_id=job_id))
    world.pass_(31)
    world.tick()
    assert world.job(job_id).status == "canceled"
    assert world.do(c.Heartbeat(lease=lease)) == c.Beat(0.0, cancel=True)
    before = world.snapshot()
    assert world.do(c.Complete(lease=lease)).skipped == "The job is canceled."
    assert world.snapshot() == before
    assert world.get(Attempt, (lease.task_id, 1)).outcome == "canceled"


def test_a_stage_without_tasks_waits_for_some() -> None:
    """R408: it neither completes nor hangs for ever; tasks, a cancel or the deadline end it."""
    world = World(OPEN)
    job_id = world.submit("open", stages=[StageSpec(name="later", kind="draw", tasks=0)])
    assert _statuses(world, job_id) == ("queued", ["pending"], [])
    stage = world.stages(job_id)[0]
    world.do(c.AddTasks(tenant="acme", job_id=job_id, stage_id=stage.id, inputs=[{"n": 1}]))
    assert world.do(c.Complete(lease=world.lease())).job_status == "completed"


def test_a_later_stage_without_tasks_is_not_done_because_the_one_before_it_is() -> None:
    """R408."""
    world = World(OPEN)
    specs = [StageSpec(name="draw", kind="draw"), StageSpec(name="later", kind="draw", tasks=0)]
    job_id = world.submit("open", stages=specs)
    assert world.do(c.Complete(lease=world.lease())).job_status == "running"
    assert _statuses(world, job_id) == ("running", ["completed", "pending"], ["completed"])
    stage = world.stages(job_id)[1]
    world.do(c.AddTasks(tenant="acme", job_id=job_id, stage_id=stage.id, inputs=[None]))
    assert world.do(c.Complete(lease=world.lease())).job_status == "completed"


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_job_without_stages_can_still_end(end: str) -> None:
    world = World(OPEN)
    job_id = world.submit("open")
    if end == "cancel":
        world.do(c.Cancel(tenant="acme", job_id=job_id))
    else:
        world.pass_(OPEN.deadline_seconds)
        world.tick()
    assert world.job(job_id).status == {"cancel": "canceled", "deadline": "expired"}[end]
    assert world.ledger(job_id)[-1] == ("refund", 4, 0)


def test_a_paused_job_offers_nothing_and_what_runs_goes_on() -> None:
    """R387, R388, H16: the next stage opens, and still nothing is handed out until the job is resumed."""
    world = World(FILM)
    job_id = world.submit("film")
    one, two = world.claim(2)
    world.do(c.Pause(tenant="acme", job_id=job_id))
    assert world.claim(5, kinds=("draw", "cut")) == []
    world.do(c.Complete(lease=one.lease))
    world.do(c.Complete(lease=two.lease))
    world.do(c.Resume(tenant="acme", job_id=job_id))
    world.do(c.Pause(tenant="acme", job_id=job_id))
    assert world.claim(5, kinds=("draw", "cut")) == []
    assert world.do(c.Resume(tenant="acme", job_id=job_id)).status == "running"
    world.do(c.Complete(lease=world.lease()))
    assert [stage.status for stage in world.stages(job_id)] == ["completed", "pending"]


def test_the_last_task_of_a_paused_job_completes_it() -> None:
    """R388."""
    world = World(DRAW)
    job_id, lease = world.started()
    world.do(c.Pause(tenant="acme", job_id=job_id))
    assert world.do(c.Complete(lease=lease)).job_status == "completed"
    assert world.told(job_id)[-1] == "job.completed"


def test_sixty_four_stages_are_walked_through_one_by_one() -> None:
    """R404: the whole way is taken in order, and the fixed point is found every time."""
    stages = [StageSpec(name=f"s{n}", kind="draw") for n in range(64)]
    world = World(Recipe(name="long", stages=stages))
    job_id = world.submit("long")
    for done in range(64):
        assert world.job(job_id).stages_completed == done
        world.do(c.Complete(lease=world.lease()))
    assert world.job(job_id).status == "completed"


def test_rules_that_find_no_rest_are_stopped_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is asserted: a rule that always fires is a bug, not an endless loop."""
    world = World(DRAW)
    job_id = world.submit()
    ws = WorkingSet(world.now, Limits())
    ws.load(Job, [world.job(job_id)])
    ws.load(Stage, world.stages(job_id))
    ws.load(Task, world.tasks(job_id))
    ws.load(Run, world.all(Run))
    ws.facts["stages", job_id] = [stage.id for stage in world.stages(job_id)]
    monkeypatch.setattr(rules, "RULES", (lambda *_: True,))
    with pytest.raises(AssertionError, match="found no rest"):
        rules.cascade(ws, job_id)


def test_a_retried_job_whose_work_was_all_done_completes_at_once() -> None:
    """A held stage may end its last task and then run out of time; the next run has nothing left to do."""
    world = World(replace(DRAW, deadline_seconds=100))
    job_id, lease = world.started()
    world.do(c.Hold(tenant="acme", job_id=job_id, stage_id=world.stages(job_id)[0].id))
    world.do(c.Complete(lease=lease))
    world.pass_(100)
    world.tick()
    assert world.job(job_id).status == "expired"
    assert world.do(c.Retry(tenant="acme", job_id=job_id)).status == "completed"
    assert world.told(job_id)[-5:] == [
        "job.released",
        "stage.opened",
        "stage.completed",
        "job.started",
        "job.completed",
    ]
