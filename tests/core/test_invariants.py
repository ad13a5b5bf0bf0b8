"""The invariant checks of the harness find planted faults and accept valid rows."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from callsheet.core.model.commands import Complete
from callsheet.core.model.rows import Attempt, Event, Job, LedgerEntry, Row, Run, Stage, Task, Wallet
from tests.core.invariants import assert_evidence_unchanged, assert_invariants
from tests.core.rule_harness import DRAW, CoreHarness


def _first(harness: CoreHarness, row: type[Row]) -> Row:
    return next(iter(harness.all(row)))


def _plant(row: type[Row], **changes: object) -> Callable[[CoreHarness], None]:
    def plant(harness: CoreHarness) -> None:
        before = _first(harness, row)
        harness.rows[row][row.key_of(before)] = replace(before, **changes)

    return plant


def _remove_last(row: type[Row]) -> Callable[[CoreHarness], None]:
    def remove(harness: CoreHarness) -> None:
        harness.rows[row].popitem()

    return remove


FAULTS = {
    "a balance that is not the sum of its entries": _plant(Wallet, balance=1),
    "a wallet that reserves more than its open runs": _plant(Wallet, reserved=99),
    "a missing ledger entry": _remove_last(LedgerEntry),
    "an ended job without an end time": _plant(Job, finished_at=None),
    "a missing event": _remove_last(Event),
    "a status without a move to it": _plant(Job, status="failed"),
    "an error on a completed job": _plant(Job, error_code="boom"),
    "a stage with a wrong count": _plant(Stage, tasks_completed=7),
    "a running stage with an end time": _plant(Stage, status="running"),
    "a running task of an ended job": _plant(Task, status="running"),
    "a claimable task that has ended": _plant(Task, ready=1),
    "a missing attempt": _remove_last(Attempt),
}


@pytest.mark.parametrize("plant", FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_breaks_an_invariant(plant: Callable[[CoreHarness], None]) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    harness.do(Complete(lease=lease))
    plant(harness)
    with pytest.raises(AssertionError):
        assert_invariants(harness.rows)


@pytest.mark.parametrize("row", [Run, Attempt])
def test_a_change_of_an_ended_run_or_attempt_is_found(row: type[Row]) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    harness.do(Complete(lease=lease))
    ended = _first(harness, row)
    with pytest.raises(AssertionError, match="after its end"):
        assert_evidence_unchanged(ended, replace(ended, error_message="changed later"))


def test_valid_rows_break_no_invariant() -> None:
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(Complete(lease=lease))
    assert_invariants(harness.rows)
    assert harness.job(job_id).status == "completed"
