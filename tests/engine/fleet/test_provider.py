"""Tasks at a provider: recorded before the call, submitted once, collected until they end, charged once."""

import pytest

from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import HandOff, Outcome, RecordIntent, ReportOutcome
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy
from callsheet.engine.loops.provider_collector import Collector
from tests.support.doubles.fake_provider import (
    DONE,
    FAILED,
    NAME,
    PENDING,
    UNKNOWN_CALL,
    FakeProvider,
    clip_workflow,
    collect,
    hand_off,
    record_intent,
    submit_to_provider,
)
from tests.support.engine.engine_harness import EngineHarness


def test_a_task_at_the_provider_stays_running_without_a_lease(clips: EngineHarness) -> None:
    # R5, R49, R50, R295, R300, P6
    job = clips.submit_job("clip")
    submitted = submit_to_provider(clips, FakeProvider())
    calls = clips.reads.fetch("calls_by_ref", keys=[(NAME, submitted.ref)])
    assert [row[0] for row in calls] == [submitted.call_id]
    (task,) = clips.tasks(job)
    assert (clips.status(job), task.status) == ("running", "running")
    assert (task.token_hash, task.lease_expires_at, task.due_at) == (None, None, None)
    clips.advance(300)
    assert clips.status(job) == "running", "there is no lease that could expire"
    assert clips.claim("render") == []
    assert clips.expect_refusal(RecordIntent(lease=submitted.lease, provider=NAME)).code == "lease_lost"
    assert clips.events(job)[-2:] == ["task.intended", "task.submitted"]


def test_a_call_is_recorded_before_it_is_made(clips: EngineHarness) -> None:
    # R309, P1, P2
    clips.submit_job("clip")
    lease = clips.claim_one("render")
    assert clips.expect_refusal(HandOff(lease=lease, ref="r")).code == "no_intent"
    first, repeated = (clips.do(RecordIntent(lease=lease, provider=NAME)) for _ in range(2))
    assert first == repeated
    assert first.status == "intended"
    assert clips.expect_refusal(RecordIntent(lease=lease, provider="other")).code == "call_exists"
    assert clips.expect_refusal(RecordIntent(lease=lease, provider="")).code in {"call_exists", "invalid_provider"}


def test_a_repeated_report_of_a_submission_has_one_effect(clips: EngineHarness) -> None:
    # R308, P3
    clips.submit_job("clip")
    clips.submit_job("clip")
    submitted = submit_to_provider(clips, FakeProvider())
    before = clips.snapshot()
    assert hand_off(clips, submitted.lease, submitted.ref).replay is True
    assert clips.expect_refusal(HandOff(lease=submitted.lease, ref="another")).code == "lease_lost"
    assert clips.snapshot() == before
    other = clips.claim_one("render")
    record_intent(clips, other)
    assert clips.expect_refusal(HandOff(lease=other, ref=submitted.ref)).code == "ref_taken"
    assert clips.expect_refusal(HandOff(lease=other, ref="")).code == "invalid_ref"


def test_a_call_is_collected_until_it_has_a_result(clips: EngineHarness) -> None:
    # R6, R45, R51, R311, V9
    job = clips.submit_job("clip")
    provider = FakeProvider(PENDING, PENDING, DONE)
    submitted = submit_to_provider(clips, provider)
    assert collect(clips, provider, 9.9) == 0, "the next poll is not due"
    assert collect(clips, provider, 0.1) == 1
    assert collect(clips, provider) == 1
    assert clips.status(job) == "running"
    assert collect(clips, provider) == 1
    assert clips.status(job) == "completed"
    assert provider.collect_calls == [(submitted.call_id, submitted.ref)] * 3
    assert clips.ledger(job) == [("reserve", -7, 0), ("consume", 0, 7)]
    assert [d.body for d in clips.reads.documents(job)] == ['{"url":"result"}']
    assert collect(clips, provider, 1_000) == 0


def test_a_poll_hint_of_the_provider_is_bounded(clips: EngineHarness) -> None:
    # R312
    clips.submit_job("clip", deadline_seconds=86_400)
    provider = FakeProvider(
        Outcome("pending", poll_after_seconds=0), Outcome("pending", poll_after_seconds=10**9), PENDING
    )
    submit_to_provider(clips, provider)
    assert collect(clips, provider) == 1
    assert collect(clips, provider, 0.9) == 0, "never more often than once a second"
    assert collect(clips, provider, 0.1) == 1
    assert collect(clips, provider, 588) == 0
    collect(clips, provider, 1)
    assert len(provider.collect_calls) == 2, "the deadline comes before a longer hint"
    assert clips.ledger()[-1] == ("refund", 7, 0)


def test_of_two_collectors_one_polls_a_call(clips: EngineHarness) -> None:
    # R317: the second one runs while the first waits for its answer
    class SlowProvider(FakeProvider):
        def collect(self, call_id: str, ref: str | None) -> Outcome:
            polled.append(Collector(clips.engine, {NAME: other}).run_once(clips.clock.now()))
            return super().collect(call_id, ref)

    clips.submit_job("clip")
    first, other, polled = SlowProvider(), FakeProvider(), list[int]()
    submit_to_provider(clips, first)
    clips.advance(10)
    assert Collector(clips.engine, {NAME: first}).run_once(clips.clock.now()) == 1
    assert (polled, len(first.collect_calls), other.collect_calls) == ([0], 1, [])
    assert Collector(clips.engine, {NAME: other}).run_once(clips.clock.now()) == 0


def test_a_failed_poll_is_repeated(clips: EngineHarness) -> None:
    # R52
    job = clips.submit_job("clip")
    provider = FakeProvider(TimeoutError("no answer"), ValueError("not JSON"), DONE)
    submit_to_provider(clips, provider)
    for polls in (1, 2):
        collect(clips, provider)
        assert (clips.status(job), clips.reads.documents(job), len(provider.collect_calls)) == ("running", [], polls)
    collect(clips, provider)
    assert (clips.status(job), len(provider.accepted)) == ("completed", 1)
    assert [d.body for d in clips.reads.documents(job)] == ['{"url":"result"}']


def test_a_permanent_failure_fails_and_refunds_the_job(clips: EngineHarness) -> None:
    # R62, R75, R311
    job = clips.submit_job("clip")
    provider = FakeProvider(FAILED)
    submit_to_provider(clips, provider)
    collect(clips, provider)
    row = clips.job(job)
    assert (row.status, row.error_code, row.error_message) == ("failed", "nsfw", "Refused by the model.")
    assert clips.ledger(job)[-1] == ("refund", 7, 0)


def test_a_retryable_failure_is_submitted_again_as_a_new_call(harness: EngineHarness) -> None:
    # C6, P1
    clip_workflow(harness, retry=RetryPolicy(attempts_max=2, backoff=Backoff(base_seconds=5, jitter=0)))
    job = harness.submit_job("clip")
    provider = FakeProvider(Outcome("failed", message="busy", retryable=True), DONE)
    first = submit_to_provider(harness, provider)
    collect(harness, provider)
    assert harness.claim("render") == []
    harness.advance(5)
    second = submit_to_provider(harness, provider)
    assert (second.call_id != first.call_id, second.ref != first.ref) == (True, True)
    collect(harness, provider)
    assert (harness.status(job), len(provider.accepted)) == ("completed", 2)


def test_a_call_whose_answer_was_lost_is_looked_up_and_never_submitted_again(clips: EngineHarness) -> None:
    # R308, R309
    job = clips.submit_job("clip")
    lease = clips.claim_one("render")
    call_id = record_intent(clips, lease)
    provider = FakeProvider(PENDING, Outcome("pending", ref="found"), DONE)
    provider.accept(call_id)
    clips.advance(60)
    assert clips.events(job)[-1] == "task.unanswered"
    assert clips.claim("render") == [], "it may have been accepted"
    for _ in range(3):
        collect(clips, provider)
    assert provider.collect_calls == [(call_id, None), (call_id, None), (call_id, "found")]
    assert (clips.status(job), provider.accepted) == ("completed", [call_id])
    assert len(clips.reads.attempts(lease.task_id)) == 1


def test_a_call_that_was_never_accepted_is_repeated_without_counting_an_attempt(harness: EngineHarness) -> None:
    # R309
    clip_workflow(harness, retry=RetryPolicy(attempts_max=1))
    job = harness.submit_job("clip")
    lease = harness.claim_one("render")
    record_intent(harness, lease)
    provider = FakeProvider(UNKNOWN_CALL, DONE)
    harness.advance(60)
    collect(harness, provider, 0)
    (task,) = harness.tasks(job)
    assert (task.status, task.attempts_counted, task.requeues) == ("retried", 0, 1)
    submit_to_provider(harness, provider)
    collect(harness, provider)
    assert (harness.status(job), len(provider.accepted)) == ("completed", 1)


def test_a_worker_can_report_the_reference_after_its_lease_expired(clips: EngineHarness) -> None:
    # R309
    job = clips.submit_job("clip")
    lease = clips.claim_one("render")
    call_id = record_intent(clips, lease)
    clips.advance(60)
    assert hand_off(clips, lease, "late-ref").job_status == "running"
    provider = FakeProvider(DONE)
    collect(clips, provider)
    assert provider.collect_calls == [(call_id, "late-ref")]
    assert clips.status(job) == "completed"


def test_a_call_without_a_result_expires_and_is_refunded(clips: EngineHarness) -> None:
    # R9, R20, R58, R65, C7, V9
    job = clips.submit_job("clip")
    provider = FakeProvider()
    submit_to_provider(clips, provider)
    for _ in range(59):
        collect(clips, provider)
    assert clips.status(job) == "running"
    collect(clips, provider)
    row = clips.job(job)
    assert (row.status, row.error_code) == ("expired", "provider_timeout")
    assert clips.ledger(job) == [("reserve", -7, 0), ("refund", 7, 0)]
    assert collect(clips, provider, 1_000) == 0


def test_a_call_of_an_unknown_provider_expires_at_its_deadline(clips: EngineHarness) -> None:
    # V9
    job = clips.submit_job("clip")
    submit_to_provider(clips, FakeProvider())
    for _ in range(61):
        clips.advance(10)
        Collector(clips.engine, {}).run_once(clips.clock.now())
    assert clips.status(job) == "expired"


def test_calls_that_are_not_collected_are_counted(clips: EngineHarness) -> None:
    # R321
    def calls() -> tuple[int, int]:
        ((open_, overdue),) = clips.engine.reads.fetch("open_calls", due_before=clips.clock.now() - 60 * SECOND, most=9)
        return open_, overdue

    assert calls() == (0, 0)
    clips.submit_job("clip")
    submitted = submit_to_provider(clips, FakeProvider())
    assert calls() == (1, 0)
    clips.clock.advance(71)
    clips.submit_job("clip")
    submit_to_provider(clips, FakeProvider())
    assert calls() == (2, 1)
    clips.do(ReportOutcome(call_id=submitted.call_id, job_id=submitted.job_id, outcome=DONE))
    assert calls() == (1, 0)


def test_a_cancel_is_passed_on_to_the_provider(clips: EngineHarness) -> None:
    # C4
    job = clips.submit_job("clip")
    provider = FakeProvider(PENDING, Outcome("failed", code="canceled", message="Stopped."))
    submitted = submit_to_provider(clips, provider)
    assert clips.cancel(job).status == "running"
    assert collect(clips, provider, 0) == 1, "at once, not at the next poll"
    assert (provider.canceled, clips.status(job)) == ([submitted.call_id], "running")
    collect(clips, provider)
    assert (clips.status(job), clips.balance()) == ("canceled", 100)


def test_a_job_at_a_provider_that_ignores_the_cancel_is_canceled_after_the_grace_period(clips: EngineHarness) -> None:
    # C4
    job = clips.submit_job("clip")
    provider = FakeProvider(DONE)
    submitted = submit_to_provider(clips, provider)
    clips.cancel(job, grace_seconds=30)
    clips.advance(30)
    assert clips.status(job) == "canceled"
    assert collect(clips, provider) == 0
    late = ReportOutcome(call_id=submitted.call_id, job_id=job, outcome=DONE)
    before = clips.snapshot()
    assert clips.do(late).skipped == "The call has ended."
    assert clips.snapshot() == before


def test_a_result_before_the_grace_period_ends_wins(clips: EngineHarness) -> None:
    # R128, C4
    job = clips.submit_job("clip")
    provider = FakeProvider(DONE)
    submit_to_provider(clips, provider)
    clips.cancel(job, grace_seconds=30)
    collect(clips, provider, 0)
    assert (clips.status(job), clips.ledger(job)[-1]) == ("completed", ("consume", 0, 7))


@pytest.mark.parametrize("bad", [Outcome("completed", output="x" * 2**20), Outcome("completed", delivered=250)])
def test_an_invalid_answer_fails_its_job_and_does_not_block_others(clips: EngineHarness, bad: Outcome) -> None:
    # V7, R52
    clips.submit_job("clip")
    clips.submit_job("clip")
    provider = FakeProvider(bad, DONE)
    calls = [submit_to_provider(clips, provider) for _ in range(2)]
    assert collect(clips, provider) == 2
    jobs = {call.call_id: call.job_id for call in calls}  # both calls are due at the same time, in any order
    assert [clips.status(jobs[call_id]) for call_id, _ in provider.collect_calls] == ["failed", "completed"]
    assert clips.balance() == 93


def test_the_reference_of_a_call_is_not_in_the_events_or_the_job(clips: EngineHarness) -> None:
    # R310
    job = clips.submit_job("clip")
    submitted = submit_to_provider(clips, FakeProvider())
    visible = repr(clips.reads.events(job)) + repr(clips.job(job))
    assert submitted.ref not in visible
    assert "ref-1" not in visible


def test_a_paused_job_at_a_provider_accepts_its_result(clips: EngineHarness) -> None:
    # R388
    job = clips.submit_job("clip")
    provider = FakeProvider(DONE)
    submit_to_provider(clips, provider)
    clips.pause(job)
    collect(clips, provider)
    assert clips.status(job) == "completed"
