"""Callbacks have one effect, in any order and number, before or after the reference is known."""

from itertools import permutations

import pytest

from callsheet.core.model.commands import Callback, Outcome, TaskState
from tests.support.doubles.fake_provider import (
    DONE,
    FAILED,
    NAME,
    PENDING,
    FakeProvider,
    SubmittedCall,
    collect,
    hand_off,
    record_intent,
    submit_to_provider,
)
from tests.support.engine.engine_harness import EngineHarness


@pytest.fixture
def handed_off(clips: EngineHarness) -> SubmittedCall:
    clips.submit_job("clip")
    return submit_to_provider(clips, FakeProvider())


def call_back(
    harness: EngineHarness, webhook: str, outcome: Outcome, ref: str | None = None, **fields: str
) -> TaskState:
    provider = fields.pop("provider", NAME)
    state: TaskState = harness.do(
        Callback(provider=provider, webhook_id=webhook, outcome=outcome, ref=ref, call_id=fields.get("call_id"))
    )
    return state


def inbox(harness: EngineHarness) -> list[str]:
    return [status for (status,) in harness.query("SELECT status FROM inbox ORDER BY id")]


def test_a_callback_completes_the_job(clips: EngineHarness, handed_off: SubmittedCall) -> None:
    # R51, P5
    state = call_back(clips, "w-1", DONE, handed_off.ref)
    assert (state.job_id, state.status, state.job_status, state.skipped) == (
        handed_off.job_id, "completed", "completed", None,
    )  # fmt: skip
    assert clips.ledger(handed_off.job_id) == [("reserve", -7, 0), ("consume", 0, 7)]
    assert [document.body for document in clips.reads.documents(handed_off.job_id)] == ['{"url":"result"}']
    assert collect(clips, FakeProvider(), 1_000) == 0


def test_a_callback_that_reports_a_failure_fails_and_refunds_the_job(
    clips: EngineHarness, handed_off: SubmittedCall
) -> None:
    # R55
    assert call_back(clips, "w-1", FAILED, handed_off.ref).job_status == "failed"
    assert clips.balance() == 100


def test_an_intermediate_callback_never_ends_the_job(clips: EngineHarness, handed_off: SubmittedCall) -> None:
    # R56
    for n in range(3):
        assert call_back(clips, f"w-{n}", PENDING, handed_off.ref).job_status == "running"


def test_a_repeated_callback_is_skipped(clips: EngineHarness, handed_off: SubmittedCall) -> None:
    # R54, R318, P4
    call_back(clips, "w-1", DONE, handed_off.ref)
    before = clips.snapshot()
    state = call_back(clips, "w-1", DONE, handed_off.ref)
    assert (state.skipped, state.replay, state.job_id) == ("duplicate", True, "")
    assert clips.snapshot() == before


def test_of_two_contradictory_callbacks_the_first_wins(clips: EngineHarness, handed_off: SubmittedCall) -> None:
    # R57, H12
    call_back(clips, "w-1", DONE, handed_off.ref)
    assert call_back(clips, "w-2", FAILED, handed_off.ref).skipped == "The call has ended."
    assert (clips.status(handed_off.job_id), inbox(clips)) == ("completed", ["applied", "skipped"])
    assert clips.ledger(handed_off.job_id) == [("reserve", -7, 0), ("consume", 0, 7)]


@pytest.mark.parametrize("ending", ["canceled", "expired", "deleted"])
def test_a_callback_for_an_ended_job_is_skipped(clips: EngineHarness, handed_off: SubmittedCall, ending: str) -> None:
    # R57, R367
    if ending == "expired":
        collect(clips, FakeProvider(), 600)
    elif ending == "deleted":
        clips.delete(handed_off.job_id)
    else:
        clips.cancel(handed_off.job_id, grace_seconds=0)
    before = clips.snapshot()
    assert call_back(clips, "w-1", DONE, handed_off.ref).skipped == "The call has ended."
    after = clips.snapshot()
    assert inbox(clips) == ["skipped"]
    assert {name: rows for name, rows in after.items() if name != "inbox"} == {
        name: rows for name, rows in before.items() if name != "inbox"
    }


def test_an_unknown_callback_reveals_nothing_and_changes_nothing(
    clips: EngineHarness, handed_off: SubmittedCall
) -> None:
    # R319, R320, H14
    before = clips.snapshot()
    for fields in ({"ref": "unknown"}, {"ref": handed_off.ref, "provider": "other"}, {"call_id": "unknown"}):
        state = call_back(clips, repr(fields), DONE, **fields)
        assert (state.skipped, state.job_id, state.task_id, state.job_status) == ("unknown", "", "", "")
    after = clips.snapshot()
    assert {name for name in after if after[name] != before[name]} == {"inbox"}
    assert clips.status(handed_off.job_id) == "running"


def test_a_callback_before_its_reference_is_kept_and_applied(clips: EngineHarness) -> None:
    # H13
    job = clips.submit_job("clip")
    lease = clips.claim_one("render")
    record_intent(clips, lease)
    assert call_back(clips, "w-1", DONE, "ref-x").skipped == "unknown"
    assert inbox(clips) == ["waiting"]
    assert hand_off(clips, lease, "ref-x").job_status == "completed"
    assert (clips.status(job), inbox(clips)) == ("completed", ["applied"])
    assert clips.ledger(job)[-1] == ("consume", 0, 7)


def test_a_callback_that_names_the_call_needs_no_reference(clips: EngineHarness) -> None:
    # H13, R309
    job = clips.submit_job("clip")
    lease = clips.claim_one("render")
    call_id = record_intent(clips, lease)
    assert call_back(clips, "w-1", DONE, "ref-x", call_id=call_id).job_status == "completed"
    assert clips.status(job) == "completed"
    assert hand_off(clips, lease, "ref-x").replay is True


def test_a_callback_completes_a_call_whose_answer_was_lost(clips: EngineHarness) -> None:
    # R309
    job = clips.submit_job("clip")
    lease = clips.claim_one("render")
    call_id = record_intent(clips, lease)
    clips.advance(60)
    assert call_back(clips, "w-1", DONE, "ref-x", call_id=call_id).job_status == "completed"
    assert collect(clips, FakeProvider()) == 0
    assert clips.status(job) == "completed"


def test_a_held_callback_of_another_provider_is_not_applied(clips: EngineHarness) -> None:
    # H14
    clips.submit_job("clip")
    lease = clips.claim_one("render")
    record_intent(clips, lease)
    call_back(clips, "w-1", DONE, "ref-x", provider="other")
    assert hand_off(clips, lease, "ref-x").job_status == "running"
    assert inbox(clips) == ["waiting"]


def test_a_callback_without_a_valid_id_is_refused(clips: EngineHarness) -> None:
    before = clips.snapshot()
    for webhook in ("", "w" * 256):
        command = Callback(provider=NAME, webhook_id=webhook, outcome=DONE, ref="r")
        assert clips.expect_refusal(command).code == "invalid_webhook_id"
    assert clips.snapshot() == before


STEPS = ("hand off", "processing", "completed", "completed again", "collect")


def test_any_order_of_callbacks_and_polls_leads_to_the_same_end(clips: EngineHarness) -> None:
    # H11
    clips.top_up(7 * 120)
    for order in permutations(STEPS):
        job = clips.submit_job("clip")
        lease = clips.claim_one("render")
        call_id = record_intent(clips, lease)
        ref = f"ref-{job}"
        for step in order:
            if step == "hand off":
                hand_off(clips, lease, ref)
            elif step == "collect":
                collect(clips, FakeProvider(PENDING), 0)
            else:
                call_back(clips, f"{job}-{step}", PENDING if step == "processing" else DONE, ref, call_id=call_id)
        assert clips.status(job) == "completed", order
        assert clips.ledger(job) == [("reserve", -7, 0), ("consume", 0, 7)], order
        assert clips.reads.attempts(lease.task_id)[0].outcome == "completed"
