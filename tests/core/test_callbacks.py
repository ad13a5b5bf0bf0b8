"""Callbacks of providers: each takes effect once, in any order, and an early one waits for its reference."""

from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.errors import Refusal
from callsheet.core.model.rows import Inbox
from tests.core.rule_harness import DRAW, CoreHarness

DONE = c.Outcome("completed", output={"url": "x"})
BAD = c.Outcome("failed", code="nsfw", message="refused", retryable=False)
BUSY = c.Outcome("pending")
FREE = replace(DRAW, price=6)


def _callback(key: str, outcome: c.Outcome, *, ref: str | None = "r", call_id: str | None = None) -> c.Callback:
    return c.Callback(provider="p", webhook_id=key, outcome=outcome, ref=ref, call_id=call_id)


def _intended() -> tuple[CoreHarness, str, c.Lease, str]:
    harness = CoreHarness(FREE)
    job_id, lease = harness.started()
    return harness, job_id, lease, harness.do(c.RecordIntent(lease=lease, provider="p")).call_id


def _submitted() -> tuple[CoreHarness, str]:
    harness, job_id, lease, _ = _intended()
    harness.do(c.HandOff(lease=lease, ref="r"))
    return harness, job_id


def test_a_duplicate_callback_is_a_no_op() -> None:
    """R54, R318, P4."""
    harness, job_id = _submitted()
    assert harness.do(_callback("1", DONE)).job_status == "completed"
    before = harness.snapshot()
    again = harness.do(_callback("1", DONE))
    assert (again.skipped, again.replay) == ("duplicate", True)
    assert harness.snapshot() == before
    assert harness.event_types(job_id).count("job.completed") == 1


def test_an_unknown_callback_is_kept_and_tells_nothing() -> None:
    """R319, R320, H14."""
    harness, job_id = _submitted()
    answer = harness.do(_callback("1", DONE, ref="somebody-elses"))
    assert answer == c.TaskState("", "", "", "", skipped="unknown")
    assert harness.job(job_id).status == "running"
    [letter] = harness.all(Inbox)
    assert (letter.status, letter.ref) == ("waiting", "somebody-elses")


def test_a_callback_of_another_provider_does_not_reach_the_call() -> None:
    """P5."""
    harness, job_id, _, call_id = _intended()
    foreign = c.Callback(provider="q", webhook_id="1", outcome=DONE, call_id=call_id)
    assert harness.do(foreign).skipped == "unknown"
    assert harness.job(job_id).status == "running"


def test_a_callback_before_its_reference_is_applied_when_the_reference_comes() -> None:
    """H13, P5: the provider was faster than the worker."""
    harness, _, lease, _ = _intended()
    assert harness.do(_callback("1", DONE)).skipped == "unknown"
    assert harness.do(c.HandOff(lease=lease, ref="r")).job_status == "completed"
    [letter] = harness.all(Inbox)
    assert (letter.status, letter.body) == ("applied", None)


def test_a_callback_and_its_reference_in_one_batch_do_not_miss_each_other() -> None:
    """H13."""
    harness, job_id, lease, _ = _intended()
    harness.batch(_callback("1", DONE), c.HandOff(lease=lease, ref="r"))
    assert harness.job(job_id).status == "completed"


def test_a_callback_that_names_the_call_needs_no_reference() -> None:
    """H13: mapped by call id; the worker's own report is then a replay."""
    harness, job_id, lease, call_id = _intended()
    assert harness.do(_callback("1", DONE, call_id=call_id)).job_status == "completed"
    assert harness.do(c.HandOff(lease=lease, ref="r")).replay
    assert harness.ledger(job_id)[-1] == ("consume", 0, 6)


def test_intermediate_callbacks_complete_nothing() -> None:
    """R56."""
    harness, job_id = _submitted()
    for key in "abc":
        assert harness.do(_callback(key, BUSY)).status == "running"
    assert harness.job(job_id).status == "running"


def test_contradictory_callbacks_first_applied_wins() -> None:
    """H12: the second is kept as skipped."""
    for first, second, status in ((DONE, BAD, "completed"), (BAD, DONE, "failed")):
        harness, job_id = _submitted()
        harness.do(_callback("1", first))
        assert harness.do(_callback("2", second)).skipped
        assert harness.job(job_id).status == status
        assert [letter.status for letter in harness.all(Inbox)] == ["applied", "skipped"]


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_callback_for_a_job_that_has_ended_changes_nothing_but_the_inbox(end: str) -> None:
    """R57, R367, H14."""
    harness, job_id = _submitted()
    key: dict[str, Any] = {"tenant": "acme", "job_id": job_id}
    harness.do(c.Cancel(**key, grace_seconds=0) if end == "cancel" else c.Delete(**key))
    before = {row: found for row, found in harness.snapshot().items() if row is not Inbox}
    assert harness.do(_callback("1", DONE)).skipped
    assert {row: found for row, found in harness.snapshot().items() if row is not Inbox} == before
    assert [letter.status for letter in harness.all(Inbox)] == ["skipped"]


def test_what_could_not_be_applied_later_is_not_kept() -> None:
    harness, *_ = _intended()
    for outcome in (c.Outcome("completed", output="x" * 2**20), c.Outcome("completed", delivered=900)):
        assert isinstance(harness.batch(_callback("1", outcome))[0], Refusal)
    assert not list(harness.all(Inbox))


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_callback_has_an_id(key: str) -> None:
    harness, *_ = _intended()
    assert harness.expect_refusal(_callback(key, DONE)).code == "invalid_webhook_id"


# -- any order, any multiplicity, with and without the reference known


def _end(harness: CoreHarness, job_id: str) -> tuple[str, list[tuple[str, int, int]], list[str], int]:
    attempts = harness.tasks(job_id)[0].attempts
    return harness.job(job_id).status, harness.ledger(job_id), [t.status for t in harness.tasks(job_id)], attempts


@pytest.mark.parametrize(("terminal", "status"), [(DONE, "completed"), (BAD, "failed")], ids=["done", "failed"])
def test_every_order_of_hand_over_and_callbacks_ends_the_same(terminal: c.Outcome, status: str) -> None:
    """H11, H13: permutations of the hand-over and three callbacks, one of them twice, by reference or by call."""
    ends = []
    for order in permutations(["hand", "busy", "busy-by-call", "end", "end"]):
        harness, job_id, lease, call_id = _intended()
        letters = {
            "hand": c.HandOff(lease=lease, ref="r"),
            "busy": _callback("1", BUSY),
            "busy-by-call": _callback("2", BUSY, call_id=call_id),
            "end": _callback("3", terminal),
        }
        for name in order:
            assert not isinstance(harness.batch(letters[name])[0], Refusal), order
        ends.append(_end(harness, job_id))
    assert {end[0] for end in ends} == {status}
    assert all(end == ends[0] for end in ends)


def test_every_order_ends_the_same_in_one_batch_too() -> None:
    """H11: what is loaded in the middle of a batch does not hide what the batch did."""
    for order in permutations(["hand", "busy", "end", "busy-by-call"]):
        harness, job_id, lease, call_id = _intended()
        letters = {
            "hand": c.HandOff(lease=lease, ref="r"),
            "busy": _callback("1", BUSY),
            "busy-by-call": _callback("2", BUSY, call_id=call_id),
            "end": _callback("3", DONE),
        }
        harness.batch(*(letters[name] for name in order))
        assert harness.job(job_id).status == "completed", order
        assert harness.ledger(job_id)[1:] == [("consume", 0, 6)]
