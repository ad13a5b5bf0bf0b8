"""Calls of providers: recorded before they are made, submitted once, and collected until they end."""

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Attempt, Call
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from tests.core.rule_harness import DRAW, CoreHarness

RETRYING = replace(DRAW, retry=RetryPolicy(on="any", attempts_max=3), provider_deadline_seconds=600, collect_seconds=10)
DONE = c.Outcome("completed", output={"url": "x"})


def _intended_call(harness: CoreHarness) -> tuple[str, c.Lease, str]:
    job_id, lease = harness.started()
    return job_id, lease, harness.do(c.RecordIntent(lease=lease, provider="p")).call_id


def _submitted_call(harness: CoreHarness, ref: str = "ref-1") -> tuple[str, c.Lease, str]:
    job_id, lease, call_id = _intended_call(harness)
    harness.do(c.HandOff(lease=lease, ref=ref))
    return job_id, lease, call_id


def _call(harness: CoreHarness, call_id: str) -> Call:
    return harness.get(Call, call_id)


# -- the intent


def test_a_submission_needs_a_recorded_intent() -> None:
    """P2, P6."""
    harness = CoreHarness(RETRYING)
    _, lease = harness.started()
    assert harness.expect_refusal(c.HandOff(lease=lease, ref="r")).code == "no_intent"
    call_id = harness.do(c.RecordIntent(lease=lease, provider="p")).call_id
    assert (_call(harness, call_id).status, _call(harness, call_id).ref) == ("intended", None)
    assert harness.do(c.HandOff(lease=lease, ref="r")).status == "running"


def test_an_attempt_makes_at_most_one_call() -> None:
    """P1, R308."""
    harness = CoreHarness(RETRYING)
    _, lease = harness.started()
    first = harness.do(c.RecordIntent(lease=lease, provider="p"))
    assert harness.do(c.RecordIntent(lease=lease, provider="p")) == first
    assert harness.expect_refusal(c.RecordIntent(lease=lease, provider="q")).code == "call_exists"
    assert len(list(harness.all(Call))) == 1


def test_every_attempt_of_every_task_has_its_own_call() -> None:
    """P1."""
    no_wait = RetryPolicy(attempts_max=4, backoff=Backoff(base_seconds=0))
    harness = CoreHarness(
        WorkflowDefinition(name="duo", retry=no_wait, stages=[StageSpec(name="a", kind="draw", tasks=3)])
    )
    harness.submit("duo")
    for _ in range(3):
        for leased in harness.claim(3):
            harness.do(c.RecordIntent(lease=leased.lease, provider="p"))
            harness.do(c.Fail(lease=leased.lease, retryable=True))
    assert len(list(harness.all(Call))) == 9


def test_a_call_is_looked_up_if_its_task_is_requeued_before_the_reference_is_known() -> None:
    """R309: the provider may have accepted the call, so the task is not claimable."""
    harness = CoreHarness(RETRYING)
    _, lease = harness.started()
    call = harness.do(c.RecordIntent(lease=lease, provider="p"))
    requeued = harness.do(c.Requeue(lease=lease, reason="spot"))
    assert (requeued.status, requeued.job_status) == ("running", "running")
    assert [(found.id, found.status) for found in harness.all(Call)] == [(call.call_id, "unknown")]
    assert harness.claim(1) == []


def test_an_invalid_provider_or_reference_is_refused() -> None:
    harness = CoreHarness(RETRYING)
    _, lease = harness.started()
    assert harness.expect_refusal(c.RecordIntent(lease=lease, provider="")).code == "invalid_provider"
    harness.do(c.RecordIntent(lease=lease, provider="p"))
    assert harness.expect_refusal(c.HandOff(lease=lease, ref="")).code == "invalid_ref"
    assert harness.expect_refusal(c.HandOff(lease=lease, ref="x" * 256)).code == "invalid_ref"


# -- the submission


def test_a_submitted_task_stays_running_without_a_lease() -> None:
    """R5, R49, R50, R300, R301."""
    harness = CoreHarness(RETRYING)
    job_id, lease, call_id = _submitted_call(harness)
    task = harness.tasks(job_id)[0]
    assert (task.status, task.token_hash, task.due_at) == ("running", None, None)
    assert harness.job(job_id).status == "running"
    call = _call(harness, call_id)
    assert (call.status, call.ref, call.collect_at) == ("submitted", "ref-1", harness.now + 10 * SECOND)
    harness.advance(7_000)
    harness.tick()
    assert harness.tasks(job_id)[0].status == "running", "there is no lease that could expire"
    assert harness.do(c.HandOff(lease=lease, ref="ref-1")).replay


def test_a_reference_belongs_to_one_task() -> None:
    """P3."""
    harness = CoreHarness(RETRYING)
    _submitted_call(harness, "r")
    _, lease, _ = _intended_call(harness)
    assert harness.expect_refusal(c.HandOff(lease=lease, ref="r")).code == "ref_taken"


def _unanswered_call(harness: CoreHarness) -> tuple[str, c.Lease, str]:
    definition = replace(RETRYING, provider_deadline_seconds=7_200)
    harness.do(c.PutWorkflow(definition=definition))
    job_id, lease, call_id = _intended_call(harness)
    harness.advance(901)
    harness.tick()
    return job_id, lease, call_id


def test_a_call_whose_worker_was_lost_is_looked_up_and_not_submitted_again() -> None:
    """R308, R309: the worker was lost between the call and its report."""
    harness = CoreHarness(RETRYING)
    job_id, _, call_id = _unanswered_call(harness)
    assert (_call(harness, call_id).status, harness.tasks(job_id)[0].status) == ("unknown", "running")
    assert harness.claim() == [], "no worker makes the call again"
    assert harness.event_types(job_id)[-1] == "task.unanswered"
    assert harness.do(c.ClaimCall(call_id=call_id, job_id=job_id)).due, "it is looked up at once"


def test_a_call_that_the_lookup_finds_is_collected() -> None:
    """R309."""
    harness = CoreHarness(RETRYING)
    job_id, _, call_id = _unanswered_call(harness)
    claimed = harness.do(c.ClaimCall(call_id=call_id, job_id=job_id))
    assert (claimed.due, claimed.ref) == (True, None)
    harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=c.Outcome("pending", ref="found")))
    assert (_call(harness, call_id).status, _call(harness, call_id).ref) == ("submitted", "found")
    answer = harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=DONE))
    assert answer.job_status == "completed"


def test_a_task_whose_call_the_lookup_does_not_find_is_requeued() -> None:
    """R309: only then a new attempt makes another call."""
    harness = CoreHarness(RETRYING)
    job_id, _, call_id = _unanswered_call(harness)
    harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=c.Outcome("absent")))
    assert harness.tasks(job_id)[0].attempts_counted == 0
    next_lease = harness.lease()
    assert harness.do(c.RecordIntent(lease=next_lease, provider="p")).call_id != call_id


def test_a_late_reference_from_the_same_worker_is_accepted() -> None:
    """F19."""
    harness = CoreHarness(RETRYING)
    _, lease, call_id = _unanswered_call(harness)
    wrong_token = replace(lease, token="guessed")
    assert harness.expect_refusal(c.HandOff(lease=wrong_token, ref="late")).code == "lease_not_found"
    harness.do(c.HandOff(lease=lease, ref="late"))
    assert (_call(harness, call_id).status, _call(harness, call_id).ref) == ("submitted", "late")


def test_a_reference_of_an_ended_call_is_refused_although_the_lease_of_the_next_attempt_has_expired() -> None:
    """The newer lease is not the lease of that call, and the task may start again."""
    harness = CoreHarness(RETRYING)
    job_id, lease, call_id = _unanswered_call(harness)
    harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=c.Outcome("absent")))
    assert harness.lease().attempt == 2
    harness.advance(901)
    assert harness.expect_refusal(c.HandOff(lease=lease, ref="late")).code == "lease_lost"
    assert (_call(harness, call_id).status, _call(harness, call_id).ref) == ("ended", None)


def test_a_completion_by_the_worker_ends_its_call() -> None:
    """P7: some providers return the result at once."""
    harness = CoreHarness(RETRYING)
    _, lease, call_id = _intended_call(harness)
    assert harness.do(c.Complete(lease=lease, output=1)).job_status == "completed"
    assert (_call(harness, call_id).status, _call(harness, call_id).outcome) == ("ended", "completed")


# -- collection


def test_a_due_call_is_claimed_by_one_collector_until_its_lock_expires() -> None:
    """R317, F30."""
    harness = CoreHarness(RETRYING)
    job_id, _, call_id = _submitted_call(harness)
    claim = c.ClaimCall(call_id=call_id, job_id=job_id, lock_seconds=60)
    assert not harness.do(claim).due
    harness.advance(10)
    assert [harness.do(claim).due, harness.do(claim).due] == [True, False]
    harness.advance(60)
    assert harness.do(claim).due


@pytest.mark.parametrize(("hint", "wait"), [(None, 10), (5, 5), (0, 1), (-3, 1), (10**9, 500)])
def test_a_poll_hint_is_clamped(hint: float | None, wait: int) -> None:
    """R312: also to the deadline of the call."""
    harness = CoreHarness(RETRYING)
    job_id, _, call_id = _submitted_call(harness)
    harness.advance(100)
    outcome = c.Outcome("pending", poll_after_seconds=hint)
    assert harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=outcome)).status == "running"
    assert _call(harness, call_id).collect_at == harness.now + wait * SECOND


def test_a_completed_collection_completes_the_job_and_later_outcomes_are_skipped() -> None:
    """R311, H12."""
    harness = CoreHarness(RETRYING)
    job_id, _, call_id = _submitted_call(harness)
    assert harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=DONE)).job_status == "completed"
    before = harness.snapshot()
    for status in ("completed", "failed", "pending", "absent"):
        late = harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=c.Outcome(status)))
        assert late.skipped
    assert harness.snapshot() == before


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (c.Outcome("failed", code="nsfw", message="The prompt was refused.", retryable=False), "failed", "nsfw"),
        (c.Outcome("failed", retryable=True), "retried", "provider_failed"),
        (c.Outcome("absent"), "retried", "provider_lost"),
    ],
)
def test_a_failed_collection_follows_the_retry_policy(outcome: c.Outcome, status: str, code: str) -> None:
    """R311, C6: a retry makes another call."""
    harness = CoreHarness(RETRYING)
    job_id, _, call_id = _submitted_call(harness)
    assert harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=outcome)).status == status
    assert harness.tasks(job_id)[0].error_code == code
    assert _call(harness, call_id).ended_at == harness.now
    if status == "retried":
        harness.advance(10)
        harness.tick()
        assert harness.do(c.RecordIntent(lease=harness.lease(), provider="p")).call_id != call_id


def test_a_job_whose_provider_never_answers_expires_and_is_refunded() -> None:
    """R9, R20, R58, R65, C7, V9: even without a worker."""
    harness = CoreHarness(RETRYING)
    job_id, lease, call_id = _submitted_call(harness)
    harness.advance(600)
    claimed = harness.do(c.ClaimCall(call_id=call_id, job_id=job_id))
    assert (claimed.due, claimed.cancel) == (False, True)
    job = harness.job(job_id)
    assert (job.status, job.error_code) == ("expired", "provider_timeout")
    assert harness.ledger(job_id)[-1] == ("refund", 10, 0)
    assert (_call(harness, call_id).outcome, harness.get(Attempt, (lease.task_id, 1)).outcome) == (
        "expired",
        "canceled",
    )


def test_a_cancel_request_makes_the_call_due_and_reaches_the_collector() -> None:
    """C4."""
    harness = CoreHarness(RETRYING)
    job_id, _, call_id = _submitted_call(harness)
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    claimed = harness.do(c.ClaimCall(call_id=call_id, job_id=job_id))
    assert (claimed.due, claimed.cancel) == (True, True)
    harness.do(
        c.ReportOutcome(
            call_id=call_id, job_id=job_id, outcome=c.Outcome("failed", message="The provider canceled it.")
        )
    )
    assert harness.job(job_id).status == "canceled"


def test_after_the_grace_time_of_a_cancel_the_call_ends() -> None:
    """C4."""
    harness = CoreHarness(RETRYING)
    job_id, _, call_id = _submitted_call(harness)
    harness.do(c.Cancel(tenant="acme", job_id=job_id))
    harness.advance(30)
    harness.tick()
    assert harness.job(job_id).status == "canceled"
    assert (_call(harness, call_id).outcome, _call(harness, call_id).collect_at) == ("canceled", None)
    assert harness.do(c.ReportOutcome(call_id=call_id, job_id=job_id, outcome=DONE)).skipped


def test_an_unknown_call_is_refused() -> None:
    harness = CoreHarness(RETRYING)
    assert harness.expect_refusal(c.ClaimCall(call_id="none", job_id="none")).code == "call_not_found"
    assert harness.expect_refusal(c.ReportOutcome(call_id="none", job_id="none", outcome=DONE)).code == "call_not_found"


def test_a_call_is_not_looked_up_while_its_worker_can_still_report_the_reference() -> None:
    """After an early callback without a reference, a lookup could report it as absent, and it would be made twice."""
    harness = CoreHarness(RETRYING)
    job_id, lease, call_id = _intended_call(harness)
    early = c.Callback(provider="p", webhook_id="1", call_id=call_id, outcome=c.Outcome("pending"))
    assert harness.do(early).status == "running"
    harness.advance(60)
    assert not harness.do(c.ClaimCall(call_id=call_id, job_id=job_id)).due
    assert harness.do(c.HandOff(lease=lease, ref="r")).status == "running"
