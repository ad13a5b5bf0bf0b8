"""Work at a provider: written down first, submitted once, collected until it ends, heard once."""

import pytest
from msgspec.structs import replace

from callsheet.core import commands as c
from callsheet.core.clock import SECOND
from callsheet.core.recipe import Backoff, Recipe, Retry, StageSpec
from callsheet.core.rows import Attempt, Call
from tests.core.world import DRAW, World

KEEN = replace(DRAW, retry=Retry(on="any", tries_max=3), provider_deadline_seconds=600, collect_seconds=10)
DONE = c.Outcome("completed", output={"url": "x"})


def _intended(world: World) -> tuple[str, c.Lease, str]:
    job_id, lease = world.started()
    return job_id, lease, world.do(c.Intend(lease=lease, provider="p")).call_id


def _submitted(world: World, ref: str = "ref-1") -> tuple[str, c.Lease, str]:
    job_id, lease, call_id = _intended(world)
    world.do(c.Hand(lease=lease, ref=ref))
    return job_id, lease, call_id


def _call(world: World, call_id: str) -> Call:
    return world.get(Call, call_id)


# -- before the call


def test_the_intent_is_written_before_there_can_be_a_reference() -> None:
    """P2, P6, R309."""
    world = World(KEEN)
    _, lease = world.started()
    assert world.refused(c.Hand(lease=lease, ref="r")).code == "no_intent"
    call_id = world.do(c.Intend(lease=lease, provider="p")).call_id
    assert (_call(world, call_id).status, _call(world, call_id).ref) == ("intended", None)
    assert world.do(c.Hand(lease=lease, ref="r")).status == "running"


def test_an_attempt_has_one_call() -> None:
    """P1, R308."""
    world = World(KEEN)
    _, lease = world.started()
    first = world.do(c.Intend(lease=lease, provider="p"))
    assert world.do(c.Intend(lease=lease, provider="p")) == first
    assert world.refused(c.Intend(lease=lease, provider="q")).code == "call_exists"
    assert len(list(world.all(Call))) == 1


def test_every_try_of_every_task_has_a_call_of_its_own() -> None:
    """P1, P3: the second try of one task and the first of its neighbour are two calls."""
    at_once = Retry(tries_max=4, backoff=Backoff(base_seconds=0))
    world = World(Recipe(name="duo", retry=at_once, stages=[StageSpec(name="a", kind="draw", tasks=3)]))
    world.submit("duo")
    for _ in range(3):
        for leased in world.claim(3):
            world.do(c.Intend(lease=leased.lease, provider="p"))
            world.do(c.Fail(lease=leased.lease, retryable=True))
    assert len(list(world.all(Call))) == 9


def test_a_task_given_back_between_the_call_and_its_answer_is_looked_up_and_not_called_again() -> None:
    """R309: nobody knows whether the provider accepted, so there is no second call until somebody does."""
    world = World(KEEN)
    _, lease = world.started()
    call = world.do(c.Intend(lease=lease, provider="p"))
    given_back = world.do(c.Requeue(lease=lease, reason="spot"))
    assert (given_back.status, given_back.job_status) == ("running", "running")
    assert [(found.id, found.status) for found in world.all(Call)] == [(call.call_id, "unknown")]
    assert world.claim(1) == []


def test_a_call_names_its_provider_and_a_reference_has_a_length() -> None:
    world = World(KEEN)
    _, lease = world.started()
    assert world.refused(c.Intend(lease=lease, provider="")).code == "invalid_provider"
    world.do(c.Intend(lease=lease, provider="p"))
    assert world.refused(c.Hand(lease=lease, ref="")).code == "invalid_ref"
    assert world.refused(c.Hand(lease=lease, ref="x" * 256)).code == "invalid_ref"


# -- after the call


def test_a_handed_over_task_stays_running_without_a_lease_and_is_collected() -> None:
    """R5, R49, R50, R300, R301."""
    world = World(KEEN)
    job_id, lease, call_id = _submitted(world)
    task = world.tasks(job_id)[0]
    assert (task.status, task.token_hash, task.due_at) == ("running", None, None)
    assert world.job(job_id).status == "running"
    assert _call(world, call_id).collect_at == world.now + 10 * SECOND
    world.pass_(7_000)
    world.tick()
    assert world.tasks(job_id)[0].status == "running", "no lease runs out"
    assert world.do(c.Hand(lease=lease, ref="ref-1")).replay


def test_a_reference_belongs_to_one_task() -> None:
    """P3."""
    world = World(KEEN)
    _submitted(world, "r")
    _, lease, _ = _intended(world)
    assert world.refused(c.Hand(lease=lease, ref="r")).code == "ref_taken"


def _lost(world: World) -> tuple[str, c.Lease, str]:
    recipe = replace(KEEN, provider_deadline_seconds=7_200)
    world.do(c.PutWorkflow(recipe=recipe))
    job_id, lease, call_id = _intended(world)
    world.pass_(901)
    world.tick()
    return job_id, lease, call_id


def test_an_answer_that_was_lost_is_looked_up_and_never_submitted_again() -> None:
    """R308, R309, R307: the worker died between calling and telling."""
    world = World(KEEN)
    job_id, _, call_id = _lost(world)
    assert (_call(world, call_id).status, world.tasks(job_id)[0].status) == ("unknown", "running")
    assert world.claim() == [], "nobody may call again"
    assert world.told(job_id)[-1] == "task.unanswered"
    assert world.do(c.Collect(call_id=call_id, job_id=job_id)).due, "it is looked up at once"


def test_a_look_up_that_finds_the_work_binds_it_and_collecting_goes_on() -> None:
    world = World(KEEN)
    job_id, _, call_id = _lost(world)
    taken = world.do(c.Collect(call_id=call_id, job_id=job_id))
    assert (taken.due, taken.ref) == (True, None)
    world.do(c.Collected(call_id=call_id, job_id=job_id, outcome=c.Outcome("pending", ref="found")))
    assert (_call(world, call_id).status, _call(world, call_id).ref) == ("submitted", "found")
    answer = world.do(c.Collected(call_id=call_id, job_id=job_id, outcome=DONE))
    assert answer.job_status == "completed"


def test_a_look_up_that_finds_nothing_gives_the_task_back_without_using_up_a_try() -> None:
    """The crash matrix: only then may it be called again, in a new attempt."""
    world = World(KEEN)
    job_id, _, call_id = _lost(world)
    world.do(c.Collected(call_id=call_id, job_id=job_id, outcome=c.Outcome("absent")))
    assert world.tasks(job_id)[0].attempts_charged == 0
    again = world.lease()
    assert world.do(c.Intend(lease=again, provider="p")).call_id != call_id


def test_a_late_reference_from_the_worker_itself_is_accepted() -> None:
    """F19: it was only slow, and it still knows what it was given."""
    world = World(KEEN)
    _, lease, call_id = _lost(world)
    stranger = replace(lease, token="guessed")
    assert world.refused(c.Hand(lease=stranger, ref="late")).code == "lease_not_found"
    world.do(c.Hand(lease=lease, ref="late"))
    assert (_call(world, call_id).status, _call(world, call_id).ref) == ("submitted", "late")


def test_a_worker_that_has_the_result_at_once_completes_and_its_call_ends() -> None:
    """P6: a provider that answers in the same breath."""
    world = World(KEEN)
    _, lease, call_id = _intended(world)
    assert world.do(c.Complete(lease=lease, output=1)).job_status == "completed"
    assert (_call(world, call_id).status, _call(world, call_id).outcome) == ("ended", "completed")


# -- collecting


def test_one_collector_takes_a_due_call_and_it_comes_back_if_that_one_dies() -> None:
    """F30, R317: whoever took it has it for a minute."""
    world = World(KEEN)
    job_id, _, call_id = _submitted(world)
    collect = c.Collect(call_id=call_id, job_id=job_id, hold_seconds=60)
    assert not world.do(collect).due
    world.pass_(10)
    assert [world.do(collect).due, world.do(collect).due] == [True, False]
    world.pass_(60)
    assert world.do(collect).due


@pytest.mark.parametrize(("hint", "wait"), [(None, 10), (5, 5), (0, 1), (-3, 1), (10**9, 500)])
def test_a_poll_hint_is_advice_within_bounds(hint: float | None, wait: int) -> None:
    """R312: and never beyond the call's deadline."""
    world = World(KEEN)
    job_id, _, call_id = _submitted(world)
    world.pass_(100)
    outcome = c.Outcome("pending", again_in_seconds=hint)
    assert world.do(c.Collected(call_id=call_id, job_id=job_id, outcome=outcome)).status == "running"
    assert _call(world, call_id).collect_at == world.now + wait * SECOND


def test_a_completed_collection_ends_task_stage_and_job() -> None:
    """R51, R311, H12: what comes later is left aside."""
    world = World(KEEN)
    job_id, _, call_id = _submitted(world)
    assert world.do(c.Collected(call_id=call_id, job_id=job_id, outcome=DONE)).job_status == "completed"
    before = world.snapshot()
    for status in ("completed", "failed", "pending", "absent"):
        late = world.do(c.Collected(call_id=call_id, job_id=job_id, outcome=c.Outcome(status)))
        assert late.skipped
    assert world.snapshot() == before


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (c.Outcome("failed", code="nsfw", message="refused", retryable=False), "failed", "nsfw"),
        (c.Outcome("failed", retryable=True), "retried", "provider_failed"),
        (c.Outcome("absent"), "retried", "provider_lost"),
    ],
)
def test_a_definite_failure_may_be_tried_again_in_a_new_attempt(outcome: c.Outcome, status: str, code: str) -> None:
    """R55, C6: only then is anything submitted again, under another call."""
    world = World(KEEN)
    job_id, _, call_id = _submitted(world)
    assert world.do(c.Collected(call_id=call_id, job_id=job_id, outcome=outcome)).status == status
    assert world.tasks(job_id)[0].error_code == code
    assert _call(world, call_id).ended_at == world.now
    if status == "retried":
        world.pass_(10)
        world.tick()
        assert world.do(c.Intend(lease=world.lease(), provider="p")).call_id != call_id


def test_a_provider_that_never_answers_expires_the_job_and_the_money_comes_back() -> None:
    """R9, R20, R58, R65, C7, V9: even if no worker is there any more."""
    world = World(KEEN)
    job_id, lease, call_id = _submitted(world)
    world.pass_(600)
    last = world.do(c.Collect(call_id=call_id, job_id=job_id))
    assert (last.due, last.cancel) == (False, True)
    job = world.job(job_id)
    assert (job.status, job.error_code) == ("expired", "provider_timeout")
    assert world.ledger(job_id)[-1] == ("refund", 10, 0)
    assert (_call(world, call_id).outcome, world.get(Attempt, (lease.task_id, 1)).outcome) == ("expired", "canceled")


def test_canceling_makes_the_call_due_and_tells_the_collector() -> None:
    """C4: a best-effort cancel at the provider."""
    world = World(KEEN)
    job_id, _, call_id = _submitted(world)
    world.do(c.Cancel(tenant="acme", job_id=job_id))
    taken = world.do(c.Collect(call_id=call_id, job_id=job_id))
    assert (taken.due, taken.cancel) == (True, True)
    world.do(c.Collected(call_id=call_id, job_id=job_id, outcome=c.Outcome("failed", message="canceled there")))
    assert world.job(job_id).status == "canceled"


def test_after_the_grace_the_call_is_let_go() -> None:
    world = World(KEEN)
    job_id, _, call_id = _submitted(world)
    world.do(c.Cancel(tenant="acme", job_id=job_id))
    world.pass_(30)
    world.tick()
    assert world.job(job_id).status == "canceled"
    assert (_call(world, call_id).outcome, _call(world, call_id).collect_at) == ("canceled", None)
    assert world.do(c.Collected(call_id=call_id, job_id=job_id, outcome=DONE)).skipped


def test_an_unknown_call_is_refused() -> None:
    world = World(KEEN)
    assert world.refused(c.Collect(call_id="none", job_id="none")).code == "call_not_found"
    assert world.refused(c.Collected(call_id="none", job_id="none", outcome=DONE)).code == "call_not_found"


def test_while_a_worker_is_about_to_tell_the_reference_nobody_looks_the_call_up() -> None:
    """An early callback without a reference must not let a look-up call it absent, and so call twice."""
    world = World(KEEN)
    job_id, lease, call_id = _intended(world)
    early = c.Callback(provider="p", webhook_id="1", call_id=call_id, outcome=c.Outcome("pending"))
    assert world.do(early).status == "running"
    world.pass_(60)
    assert not world.do(c.Collect(call_id=call_id, job_id=job_id)).due
    assert world.do(c.Hand(lease=lease, ref="r")).status == "running"
