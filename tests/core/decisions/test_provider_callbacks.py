"""Callbacks of providers: each takes effect once, in any order; an early one waits for its reference."""

from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.errors import Refusal
from callsheet.core.model.rows import Inbox
from tests.core.rule_harness import DRAW, CoreHarness

DONE = c.Outcome("completed", output={"url": "x"})
FAILED = c.Outcome("failed", code="nsfw", message="The prompt was refused.", retryable=False)
PENDING = c.Outcome("pending")
PRICED = replace(DRAW, price=6)


def _callback(key: str, outcome: c.Outcome, *, ref: str | None = "r", call_id: str | None = None) -> c.Callback:
    return c.Callback(provider="p", webhook_id=key, outcome=outcome, ref=ref, call_id=call_id)


def _intended_call() -> tuple[CoreHarness, str, c.Lease, str]:
    harness = CoreHarness(PRICED)
    job_id, lease = harness.started()
    return harness, job_id, lease, harness.do(c.RecordIntent(lease=lease, provider="p")).call_id


def _submitted_call() -> tuple[CoreHarness, str]:
    harness, job_id, lease, _ = _intended_call()
    harness.do(c.HandOff(lease=lease, ref="r"))
    return harness, job_id


def test_a_repeated_callback_completes_and_charges_once() -> None:
    """R54, R318, P4."""
    harness, job_id = _submitted_call()
    assert harness.do(_callback("1", DONE)).job_status == "completed"
    before = harness.snapshot()
    repeated = harness.do(_callback("1", DONE))
    assert (repeated.skipped, repeated.replay) == ("duplicate", True)
    assert harness.snapshot() == before
    assert harness.event_types(job_id).count("job.completed") == 1
    assert harness.ledger(job_id) == [("reserve", -6, 0), ("consume", 0, 6)]


def test_an_unknown_callback_is_held_and_its_answer_reveals_nothing() -> None:
    """R319, R320, H14."""
    harness, job_id = _submitted_call()
    answer = harness.do(_callback("1", DONE, ref="unknown"))
    assert answer == c.TaskState("", "", "", "", skipped="unknown")
    assert harness.job(job_id).status == "running"
    [held] = harness.all(Inbox)
    assert (held.status, held.ref) == ("waiting", "unknown")


def test_a_callback_of_another_provider_does_not_reach_the_call() -> None:
    """H14."""
    harness, job_id, _, call_id = _intended_call()
    callback = c.Callback(provider="q", webhook_id="1", outcome=DONE, call_id=call_id)
    assert harness.do(callback).skipped == "unknown"
    assert harness.job(job_id).status == "running"


def test_a_callback_before_its_reference_is_applied_when_the_reference_is_reported() -> None:
    """H13, P5: the provider can be faster than the worker."""
    harness, _, lease, _ = _intended_call()
    assert harness.do(_callback("1", DONE)).skipped == "unknown"
    assert harness.do(c.HandOff(lease=lease, ref="r")).job_status == "completed"
    [applied] = harness.all(Inbox)
    assert (applied.status, applied.body) == ("applied", None)


def test_a_callback_and_its_reference_can_be_in_one_batch() -> None:
    """H13."""
    harness, job_id, lease, _ = _intended_call()
    harness.batch(_callback("1", DONE), c.HandOff(lease=lease, ref="r"))
    assert harness.job(job_id).status == "completed"


def test_a_callback_that_names_the_call_needs_no_reference() -> None:
    """H13: the report of the worker is a replay then."""
    harness, job_id, lease, call_id = _intended_call()
    assert harness.do(_callback("1", DONE, call_id=call_id)).job_status == "completed"
    assert harness.do(c.HandOff(lease=lease, ref="r")).replay
    assert harness.ledger(job_id)[-1] == ("consume", 0, 6)


def test_an_intermediate_callback_completes_nothing() -> None:
    """R56."""
    harness, job_id = _submitted_call()
    for key in "abc":
        assert harness.do(_callback(key, PENDING)).status == "running"
    assert harness.job(job_id).status == "running"


def test_of_contradictory_callbacks_the_first_wins() -> None:
    """R55, H12."""
    for first, second, status in ((DONE, FAILED, "completed"), (FAILED, DONE, "failed")):
        harness, job_id = _submitted_call()
        harness.do(_callback("1", first))
        assert harness.do(_callback("2", second)).skipped
        assert harness.job(job_id).status == status
        assert [callback.status for callback in harness.all(Inbox)] == ["applied", "skipped"]


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_callback_for_an_ended_job_is_recorded_as_skipped_and_changes_nothing_else(end: str) -> None:
    """R57, R367."""
    harness, job_id = _submitted_call()
    key: dict[str, Any] = {"tenant": "acme", "job_id": job_id}
    harness.do(c.Cancel(**key, grace_seconds=0) if end == "cancel" else c.Delete(**key))
    before = {row: found for row, found in harness.snapshot().items() if row is not Inbox}
    assert harness.do(_callback("1", DONE)).skipped
    assert {row: found for row, found in harness.snapshot().items() if row is not Inbox} == before
    assert [callback.status for callback in harness.all(Inbox)] == ["skipped"]


def test_an_invalid_callback_is_not_held() -> None:
    harness, *_ = _intended_call()
    for outcome in (c.Outcome("completed", output="x" * 2**20), c.Outcome("completed", delivered=900)):
        assert isinstance(harness.batch(_callback("1", outcome))[0], Refusal)
    assert not list(harness.all(Inbox))


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_callback_needs_an_id(key: str) -> None:
    harness, *_ = _intended_call()
    assert harness.expect_refusal(_callback(key, DONE)).code == "invalid_webhook_id"


# -- callbacks in every order


def _messages(lease: c.Lease, call_id: str, terminal: c.Outcome) -> dict[str, c.Command]:
    return {
        "hand-off": c.HandOff(lease=lease, ref="r"),
        "pending": _callback("1", PENDING),
        "pending-by-call": _callback("2", PENDING, call_id=call_id),
        "end": _callback("3", terminal),
    }


def _result(harness: CoreHarness, job_id: str) -> tuple[str, list[tuple[str, int, int]], list[str], int]:
    attempts = harness.tasks(job_id)[0].attempts
    return harness.job(job_id).status, harness.ledger(job_id), [t.status for t in harness.tasks(job_id)], attempts


@pytest.mark.parametrize(("terminal", "status"), [(DONE, "completed"), (FAILED, "failed")], ids=["done", "failed"])
def test_every_order_of_submission_and_callbacks_has_the_same_result(terminal: c.Outcome, status: str) -> None:
    """H11, H13: the hand-off and three callbacks, by reference or by call; the last one is sent twice."""
    results = []
    for order in permutations(["hand-off", "pending", "pending-by-call", "end", "end"]):
        harness, job_id, lease, call_id = _intended_call()
        messages = _messages(lease, call_id, terminal)
        for name in order:
            assert not isinstance(harness.batch(messages[name])[0], Refusal), order
        results.append(_result(harness, job_id))
    assert {result[0] for result in results} == {status}
    assert all(result == results[0] for result in results)


def test_every_order_in_one_batch_has_the_same_result() -> None:
    """H11: a row that is loaded in the middle of a batch does not hide a change of the batch."""
    for order in permutations(["hand-off", "pending", "end", "pending-by-call"]):
        harness, job_id, lease, call_id = _intended_call()
        messages = _messages(lease, call_id, DONE)
        harness.batch(*(messages[name] for name in order))
        assert harness.job(job_id).status == "completed", order
        assert harness.ledger(job_id)[1:] == [("consume", 0, 6)]
