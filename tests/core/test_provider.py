"""Work at a provider: written down first, submitted once, collected until it ends, heard once."""

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Attempt, Call
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from tests.core.rule_harness import DRAW, CoreHarness

KEEN = replace(DRAW, retry=RetryPolicy(on="any", attempts_max=3), provider_deadline_seconds=600, collect_seconds=10)
DONE = c.Outcome("completed", output={"url": "x"})


def _intended(harness: CoreHarness) -> tuple[str, c.Lease, str]:
    job_id, lease = harness.started()
    return job_id, lease, harness.do(c.RecordIntent(lease=lease, provider="p")).call_id


def _submitted(harness: CoreHarness, ref: str = "ref-1") -> tuple[str, c.Lease, str]:
    job_id, lease, call_id = _intended(harness)
    harness.do(c.HandOff(lease=lease, ref=ref))
    return job_id, lease, call_id


def _call(harness: CoreHarness, call_id: str) -> Call:
    return harness.get(Call, call_id)


# -- before the call


def test_the_intent_is_written_before_there_can_be_a_reference() -> None:
    """P2, P6, R309."""
    harness = CoreHarness(KEEN)
    _, lease = harness.started()
    assert harness.expect_refusal(c.HandOff(lease=lease, ref="r")).code == "no_intent"
    call_id = harness.do(c.RecordIntent(lease=lease, provider="p")).call_id
    assert (_call(harness, call_id).status, _call(harness, call_id).ref) == ("intended", None)
    assert harness.do(c.HandOff(lease=lease, ref="r")).status == "running"


def test_an_attempt_has_one_call() -> None:
    """P1, R308."""
    harness = CoreHarness(KEEN)
    _, lease = harness.started()
    first = harness.do(c.RecordIntent(lease=lease, provider="p"))
    assert harness.do(c.RecordIntent(lease=lease, provider="p")) == first
    assert harness.expect_refusal(c.RecordIntent(lease=lease, provider="q")).code == "call_exists"
    assert len(list(harness.all(Call))) == 1


def test_every_try_of_every_task_has_a_call_of_its_own() -> None:
    """P1, P3: the second try of one task and the first of its neighbour are two calls."""
    at_once = RetryPolicy(attempts_max=4, backoff=Backoff(base_seconds=0))
    harness = CoreHarness(
        WorkflowDefinition(name="duo", retry=at_once, stages=[StageSpec(name="a", kind="draw", tasks=3)])
    )
    harness.submit("duo")
    for _ in range(3):
        for leased in harness.claim(3):
            harness.do(c.RecordIntent(lease=leased.lease, provider="p"))
            harness.do(c.Fail(lease=leased.lease, retryable=True))
    assert len(list(harness.all(Call))) == 9


def test_a_task_given_back_between_the_call_and_its_answer_is_looked_up_and_not_called_again() -> None:
    """R309: nobody knows whether the provider accepted, so there is no second call until somebody does."""
    harness = CoreHarness(KEEN)
    _, lease = harness.started()
    call = harness.do(c.RecordIntent(lease=lease, provider="p"))
    given_back = harness.do(c.Requeue(lease=lease, reason="spot"))
    assert (given_back.status, given_back.job_status) == ("running", "running")
    assert [(found.id, found.status) for found in harness.all(Call)] == [(call.call_id, "unknown")]
    assert harness.claim(1) == []


def test_a_call_names_its_provider_and_a_reference_has_a_length() -> None:
    harness = CoreHarness(KEEN)
    _, lease = harness.started()
    assert harness.expect_refusal(c.RecordIntent(lease=lease, provider="")).code == "invalid_provider"
    harness.do(c.RecordIntent(lease=lease, provider="p"))
    assert harness.expect_refusal(c.HandOff(lease=lease, ref="")).code == "invalid_ref"
    assert harness.expect_refusal(c.HandOff(lease=lease, ref="x" * 256)).code == "invalid_ref"


# -- after the call


def test_a_handed_over_task_stays_running_without_a_lease_and_is_collected() -> None:
    """R5, R49, R50, R300, R301."""
    harness = CoreHarness(KEEN)
    job_id, lease, call_id = _submitted(harness)
    task = harness.tasks(job_id)[0]
    assert (task.status, task.token_hash, task.due_at) == ("running", None, None)
    assert harness.job(job_id).status == "running"
    assert _call(harness, call_id).collect_at == harness.now + 10 * SECOND
    harness.advance(7_000)
    harness.tick()
    assert harness.tasks(job_id)[0].status == "running", "no lease runs out"
    assert harness.do(c.HandOff(lease=lease, ref="ref-1")).replay


def test_a_reference_belongs_to_one_task() -> None:
    """P3."""
    harness = CoreHarness(KEEN)
    _submitted(harness, "r")
    _, lease, _ = _intended(harness)
    assert harness.expect_refusal(c.HandOff(lease=lease, ref="r")).code == "ref_taken"


def _lost(harness: CoreHarness) -> tuple[str, c.Lease, str]:
    definition = replace(KEEN, provider_deadline_seconds=7_200)
    harness.do(c.PutWorkflow(definition=definition))
    job_id, lease, call_id = _intended(harness)
    harness.advance(901)
    harness.tick()
    return job_id, lease, call_id


def test_an_answer_that_was_lost_is_looked_up_and_never_submitted_again() -> None:
    """R308, R309, R307: the worker died between calling and telling."""
    harness = CoreHarness(KEEN)
    job_id, _, call_id = _lost(harness)
    assert (_call(harness, call_id).status, harness.tasks(job_id)[0].status) == ("unknown", "running")
    assert harness.claim() == [], "nobody may call again"
    assert harness.event_types(job_id)[-1] == "task.unanswered"
    assert harness.do(c.ClaimCall(call_id=call_id, job_id=job_id)).due, "it is looked up at once"


def test_a_look_up_that_finds_the_work_binds_it_and_collecting_goes_on() -> None:
    harness = CoreHarness(KEEN)
    job_id, _, call_id = _lost(harness)
    taken = harness.do(c.ClaimCall(call_id=call_id, job_id=job_id))
    assert (taken.due, taken.ref) == (True, None)
    harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=c.Outcome("pending", ref="found")))
    assert (_call(harness, call_id).status, _call(harness, call_id).ref) == ("submitted", "found")
    answer = harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=DONE))
    assert answer.job_status == "completed"


def test_a_look_up_that_finds_nothing_gives_the_task_back_without_using_up_a_try() -> None:
    """The crash matrix: only then may it be called again, in a new attempt."""
    harness = CoreHarness(KEEN)
    job_id, _, call_id = _lost(harness)
    harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=c.Outcome("absent")))
    assert harness.tasks(job_id)[0].attempts_counted == 0
    retrying = harness.lease()
    assert harness.do(c.RecordIntent(lease=retrying, provider="p")).call_id != call_id


def test_a_late_reference_from_the_worker_itself_is_accepted() -> None:
    """F19: it was only slow, and it still knows what it was given."""
    harness = CoreHarness(KEEN)
    _, lease, call_id = _lost(harness)
    stranger = replace(lease, token="guessed")
    assert harness.expect_refusal(c.HandOff(lease=stranger, ref="late")).code == "lease_not_found"
    harness.do(c.HandOff(lease=lease, ref="late"))
    assert (_call(harness, call_id).status, _call(harness, call_id).ref) == ("submitted", "late")


def test_a_worker_that_has_the_result_at_once_completes_and_its_call_ends() -> None:
    """P6: a provider that answers in the same breath."""
    harness = CoreHarness(KEEN)
    _, lease, call_id = _intended(harness)
    assert harness.do(c.Complete(lease=lease, output=1)).job_status == "completed"
    assert (_call(harness, call_id).status, _call(harness, call_id).outcome) == ("ended", "completed")


# -- collecting


def test_one_collector_takes_a_due_call_and_it_comes_back_if_that_one_dies() -> None:
    """F30, R317: whoever took it has it for a minute."""
    harness = CoreHarness(KEEN)
    job_id, _, call_id = _submitted(harness)
    collect = c.ClaimCall(call_id=call_id, job_id=job_id, lock_seconds=60)
    assert not harness.do(collect).due
    harness.advance(10)
    assert [harness.do(collect).due, harness.do(collect).due] == [True, False]
    harness.advance(60)
    assert harness.do(collect).due


@pytest.mark.parametrize(("hint", "wait"), [(None, 10), (5, 5), (0, 1), (-3, 1), (10**9, 500)])
def test_a_poll_hint_is_advice_within_bounds(hint: float | None, wait: int) -> None:
    """R312: and never beyond the call's deadline."""
    harness = CoreHarness(KEEN)
    job_id, _, call_id = _submitted(harness)
    harness.advance(100)
    outcome = c.Outcome("pending", poll_after_seconds=hint)
    assert harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=outcome)).status == "running"
    assert _call(harness, call_id).collect_at == harness.now + wait * SECOND


def test_a_completed_collection_ends_task_stage_and_job() -> None:
    """R51, R311, H12: what comes later is left aside."""
    harness = CoreHarness(KEEN)
    job_id, _, call_id = _submitted(harness)
    assert harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=DONE)).job_status == "completed"
    before = harness.snapshot()
    for status in ("completed", "failed", "pending", "absent"):
        late = harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=c.Outcome(status)))
        assert late.skipped
    assert harness.snapshot() == before


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
    harness = CoreHarness(KEEN)
    job_id, _, call_id = _submitted(harness)
    assert harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=outcome)).status == status
    assert harness.tasks(job_id)[0].error_code == code
    assert _call(harness, call_id).ended_at == harness.now
    if status == "retried":
        harness.advance(10)
        harness.tick()
        assert harness.do(c.RecordIntent(lease=harness.lease(), provider="p")).call_id != call_id


def test_a_provider_that_never_answers_expires_the_job_and_the_money_comes_back() -> None:
    """R9, R20, R58, R65, C7, V9: even if no worker is there any more."""
    harness = CoreHarness(KEEN)
    job_id, lease, call_id = _submitted(harness)
    harness.advance(600)
    last = harness.do(c.ClaimCall(call_id=call_id, job_id=job_id))
    assert (last.due, last.cancel) == (False, True)
    job = harness.job(job_id)
    assert (job.status, job.error_code) == ("expired", "provider_timeout")
    assert harness.ledger(job_id)[-1] == ("refund", 10, 0)
    assert (_call(harness, call_id).outcome, harness.get(Attempt, (lease.task_id, 1)).outcome) == (
        "expired",
        "canceled",
    )


def test_canceling_makes_the_call_due_and_tells_the_collector() -> None:
    """C4: a best-effort cancel at the provider."""
    harness = CoreHarness(KEEN)
    job_id, _, call_id = _submitted(harness)
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    taken = harness.do(c.ClaimCall(call_id=call_id, job_id=job_id))
    assert (taken.due, taken.cancel) == (True, True)
    harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=c.Outcome("failed", message="canceled there")))
    assert harness.job(job_id).status == "canceled"


def test_after_the_grace_the_call_is_let_go() -> None:
    harness = CoreHarness(KEEN)
    job_id, _, call_id = _submitted(harness)
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    harness.advance(30)
    harness.tick()
    assert harness.job(job_id).status == "canceled"
    assert (_call(harness, call_id).outcome, _call(harness, call_id).collect_at) == ("canceled", None)
    assert harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=DONE)).skipped


def test_an_unknown_call_is_refused() -> None:
    harness = CoreHarness(KEEN)
    assert harness.expect_refusal(c.ClaimCall(call_id="none", job_id="none")).code == "call_not_found"
    assert harness.expect_refusal(c.ReportOutcome(call_id="none", job_id="none", outcome=DONE)).code == "call_not_found"


def test_while_a_worker_is_about_to_tell_the_reference_nobody_looks_the_call_up() -> None:
    """An early callback without a reference must not let a look-up call it absent, and so call twice."""
    harness = CoreHarness(KEEN)
    job_id, lease, call_id = _intended(harness)
    early = c.Callback(provider="p", webhook_id="1", call_id=call_id, outcome=c.Outcome("pending"))
    assert harness.do(early).status == "running"
    harness.advance(60)
    assert not harness.do(c.ClaimCall(call_id=call_id, job_id=job_id)).due
    assert harness.do(c.HandOff(lease=lease, ref="r")).status == "running"
