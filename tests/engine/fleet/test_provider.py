"""Work at a provider: written down first, submitted once, collected until it ends, never paid for twice."""

import pytest

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
    intend,
    submit_to_provider,
)
from tests.support.engine.engine_harness import EngineHarness


@pytest.fixture
def clips(harness: EngineHarness) -> EngineHarness:
    clip_workflow(harness)
    return harness


def test_a_task_at_the_provider_has_no_lease_and_its_job_runs_on(clips: EngineHarness) -> None:
    # R5, R49, R50, R295, R300, P6
    job = clips.submit_job("clip")
    handed = submit_to_provider(clips, FakeProvider())
    (task,) = clips.tasks(job)
    assert (clips.status(job), task.status) == ("running", "running")
    assert (task.token_hash, task.lease_expires_at, task.due_at) == (None, None, None)
    clips.advance(300)
    assert clips.status(job) == "running", "no lease can run out"
    assert clips.claim("render") == []
    assert clips.expect_refusal(RecordIntent(lease=handed.lease, provider=NAME)).code == "lease_lost"
    assert clips.events(job)[-2:] == ["task.intended", "task.submitted"]


def test_a_call_is_written_down_before_it_is_made(clips: EngineHarness) -> None:
    # R309, P1, P2
    clips.submit_job("clip")
    lease = clips.claim_one("render")
    assert clips.expect_refusal(HandOff(lease=lease, ref="r")).code == "no_intent"
    first, again = (clips.do(RecordIntent(lease=lease, provider=NAME)) for _ in range(2))
    assert first == again
    assert first.status == "intended"
    assert clips.expect_refusal(RecordIntent(lease=lease, provider="other")).code == "call_exists"
    assert clips.expect_refusal(RecordIntent(lease=lease, provider="")).code in {"call_exists", "invalid_provider"}


def test_handing_over_twice_is_once(clips: EngineHarness) -> None:
    # R308, P3
    clips.submit_job("clip")
    clips.submit_job("clip")
    handed = submit_to_provider(clips, FakeProvider())
    before = clips.snapshot()
    assert hand_off(clips, handed.lease, handed.ref).replay is True
    assert clips.expect_refusal(HandOff(lease=handed.lease, ref="another")).code == "lease_lost"
    assert clips.snapshot() == before
    other = clips.claim_one("render")
    intend(clips, other)
    assert clips.expect_refusal(HandOff(lease=other, ref=handed.ref)).code == "ref_taken"
    assert clips.expect_refusal(HandOff(lease=other, ref="")).code == "invalid_ref"


def test_collecting_goes_on_until_the_result_is_there(clips: EngineHarness) -> None:
    # R6, R45, R51, R311, V9
    job = clips.submit_job("clip")
    provider = FakeProvider(PENDING, PENDING, DONE)
    handed = submit_to_provider(clips, provider)
    assert collect(clips, provider, 9.9) == 0, "not before its time"
    assert collect(clips, provider, 0.1) == 1
    assert collect(clips, provider) == 1
    assert clips.status(job) == "running"
    assert collect(clips, provider) == 1
    assert clips.status(job) == "completed"
    assert provider.collect_calls == [(handed.call_id, handed.ref)] * 3
    assert clips.ledger(job) == [("reserve", -7, 0), ("consume", 0, 7)]
    assert [d.body for d in clips.reads.documents(job)] == ['{"url":"result"}']
    assert collect(clips, provider, 1_000) == 0


def test_a_hint_when_to_ask_again_is_bounded(clips: EngineHarness) -> None:
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
    assert len(provider.collect_calls) == 2, "the deadline comes before any hint"
    assert clips.ledger()[-1] == ("refund", 7, 0)


def test_of_two_collectors_one_asks(clips: EngineHarness) -> None:
    # R317: the other one looks while the answer to the first is under way
    class Slow(FakeProvider):
        def collect(self, call_id: str, ref: str | None) -> Outcome:
            seconds.append(Collector(clips.engine, {NAME: other}).run_once(clips.clock.now()))
            return super().collect(call_id, ref)

    clips.submit_job("clip")
    first, other, seconds = Slow(), FakeProvider(), list[int]()
    submit_to_provider(clips, first)
    clips.advance(10)
    assert Collector(clips.engine, {NAME: first}).run_once(clips.clock.now()) == 1
    assert (seconds, len(first.collect_calls), other.collect_calls) == ([0], 1, [])
    assert Collector(clips.engine, {NAME: other}).run_once(clips.clock.now()) == 0


def test_a_provider_that_breaks_is_asked_again(clips: EngineHarness) -> None:
    # R52, R321
    job = clips.submit_job("clip")
    provider = FakeProvider(TimeoutError("no answer"), ValueError("not JSON"), DONE)
    submit_to_provider(clips, provider)
    for collect_calls in (1, 2):
        collect(clips, provider)
        assert (clips.status(job), clips.reads.documents(job), len(provider.collect_calls)) == (
            "running",
            [],
            collect_calls,
        )
    collect(clips, provider)
    assert (clips.status(job), len(provider.accepted)) == ("completed", 1)
    assert [d.body for d in clips.reads.documents(job)] == ['{"url":"result"}']


def test_a_definite_failure_ends_the_job_with_a_refund(clips: EngineHarness) -> None:
    # R55, R62
    job = clips.submit_job("clip")
    provider = FakeProvider(FAILED)
    submit_to_provider(clips, provider)
    collect(clips, provider)
    row = clips.job(job)
    assert (row.status, row.error_code, row.error_message) == ("failed", "nsfw", "Refused by the model.")
    assert clips.ledger(job)[-1] == ("refund", 7, 0)


def test_only_a_definite_failure_is_submitted_again(harness: EngineHarness) -> None:
    # R75, R308, C6, P1
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


def test_a_lost_answer_is_looked_up_and_never_submitted_again(clips: EngineHarness) -> None:
    # R308, R309, R307
    job = clips.submit_job("clip")
    lease = clips.claim_one("render")
    call_id = intend(clips, lease)
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


def test_a_call_that_was_never_accepted_is_repeated_without_using_up_an_attempt(harness: EngineHarness) -> None:
    # R309
    clip_workflow(harness, retry=RetryPolicy(attempts_max=1))
    job = harness.submit_job("clip")
    lease = harness.claim_one("render")
    intend(harness, lease)
    provider = FakeProvider(UNKNOWN_CALL, DONE)
    harness.advance(60)
    collect(harness, provider, 0)
    (task,) = harness.tasks(job)
    assert (task.status, task.attempts_counted, task.requeues) == ("retried", 0, 1)
    submit_to_provider(harness, provider)
    collect(harness, provider)
    assert (harness.status(job), len(provider.accepted)) == ("completed", 1)


def test_a_worker_that_wakes_up_may_still_tell_the_reference(clips: EngineHarness) -> None:
    # R309
    job = clips.submit_job("clip")
    lease = clips.claim_one("render")
    call_id = intend(clips, lease)
    clips.advance(60)
    assert hand_off(clips, lease, "late-ref").job_status == "running"
    provider = FakeProvider(DONE)
    collect(clips, provider)
    assert provider.collect_calls == [(call_id, "late-ref")]
    assert clips.status(job) == "completed"


def test_work_that_never_answers_expires_with_a_refund(clips: EngineHarness) -> None:
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


def test_a_provider_that_nobody_knows_ends_at_the_deadline(clips: EngineHarness) -> None:
    # R321, V9
    job = clips.submit_job("clip")
    submit_to_provider(clips, FakeProvider())
    for _ in range(61):
        clips.advance(10)
        Collector(clips.engine, {}).run_once(clips.clock.now())
    assert clips.status(job) == "expired"


def test_what_nobody_collects_is_counted(clips: EngineHarness) -> None:
    # R321: the database's own clock says what is overdue, and the house of this test lives in its past
    def calls() -> tuple[int, int]:
        ((open_, overdue),) = clips.engine.reads.fetch("open_calls")
        return open_, overdue

    assert calls() == (0, 0)
    clips.submit_job("clip")
    handed = submit_to_provider(clips, FakeProvider())
    assert calls() == (1, 1)
    ahead = 10 * 365 * 86_400
    clips.clock.advance(ahead)
    clips.submit_job("clip")
    submit_to_provider(clips, FakeProvider())
    assert calls() == (2, 1)
    clips.clock.advance(-ahead)
    clips.do(ReportOutcome(call_id=handed.call_id, job_id=handed.job_id, outcome=DONE))
    assert calls() == (1, 0)


def test_a_cancel_is_passed_on_to_the_provider(clips: EngineHarness) -> None:
    # C4
    job = clips.submit_job("clip")
    provider = FakeProvider(PENDING, Outcome("failed", code="canceled", message="Stopped."))
    handed = submit_to_provider(clips, provider)
    assert clips.cancel(job).status == "running"
    assert collect(clips, provider, 0) == 1, "at once, not at its next turn"
    assert (provider.canceled, clips.status(job)) == ([handed.call_id], "running")
    collect(clips, provider)
    assert (clips.status(job), clips.balance()) == ("canceled", 100)


def test_a_provider_that_does_not_hear_the_cancel_is_let_go_after_the_grace(clips: EngineHarness) -> None:
    # C4, R57
    job = clips.submit_job("clip")
    provider = FakeProvider(DONE)
    handed = submit_to_provider(clips, provider)
    clips.cancel(job, grace_seconds=30)
    clips.advance(30)
    assert clips.status(job) == "canceled"
    assert collect(clips, provider) == 0
    late = ReportOutcome(call_id=handed.call_id, job_id=job, outcome=DONE)
    before = clips.snapshot()
    assert clips.do(late).skipped == "The call has ended."
    assert clips.snapshot() == before


def test_a_result_before_the_grace_is_over_wins(clips: EngineHarness) -> None:
    # R128, C4
    job = clips.submit_job("clip")
    provider = FakeProvider(DONE)
    submit_to_provider(clips, provider)
    clips.cancel(job, grace_seconds=30)
    collect(clips, provider, 0)
    assert (clips.status(job), clips.ledger(job)[-1]) == ("completed", ("consume", 0, 7))


@pytest.mark.parametrize("bad", [Outcome("completed", output="x" * 2**20), Outcome("completed", delivered=250)])
def test_an_impossible_answer_does_not_keep_others_waiting(clips: EngineHarness, bad: Outcome) -> None:
    # V1, V7, R52
    first, second = clips.submit_job("clip"), clips.submit_job("clip")
    provider = FakeProvider(bad, DONE)
    submit_to_provider(clips, provider)
    submit_to_provider(clips, provider)
    assert collect(clips, provider) == 2
    assert (clips.status(first), clips.status(second)) == ("failed", "completed")
    assert clips.balance() == 93


def test_a_reference_is_never_shown_to_the_user(clips: EngineHarness) -> None:
    # R99, R310, R320
    job = clips.submit_job("clip")
    handed = submit_to_provider(clips, FakeProvider())
    told = repr(clips.reads.events(job)) + repr(clips.job(job))
    assert handed.ref not in told
    assert "ref-1" not in told


def test_a_job_that_is_paused_at_the_provider_still_takes_its_result(clips: EngineHarness) -> None:
    # R388, R391
    job = clips.submit_job("clip")
    provider = FakeProvider(DONE)
    submit_to_provider(clips, provider)
    clips.pause(job)
    collect(clips, provider)
    assert clips.status(job) == "completed"
