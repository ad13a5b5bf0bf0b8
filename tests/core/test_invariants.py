"""The world's own checks are seen to catch planted faults; a checker that cannot fail proves nothing."""

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


def _lose(row: type[Row]) -> Callable[[CoreHarness], None]:
    def lose(harness: CoreHarness) -> None:
        harness.rows[row].popitem()

    return lose


FAULTS = {
    "a balance that is not the sum of its entries": _plant(Wallet, balance=1),
    "a wallet that holds more than its open runs": _plant(Wallet, reserved=99),
    "a lost ledger line": _lose(LedgerEntry),
    "an ended job without its end": _plant(Job, finished_at=None),
    "an event that is missing": _lose(Event),
    "a status nobody moved to": _plant(Job, status="failed"),
    "an error on a completed job": _plant(Job, error_code="boom"),
    "a stage that miscounts": _plant(Stage, tasks_completed=7),
    "a completed stage under way": _plant(Stage, status="running"),
    "a live task below an ended job": _plant(Task, status="running"),
    "a task offered after its end": _plant(Task, ready=1),
    "an attempt that went missing": _lose(Attempt),
}


@pytest.mark.parametrize("plant", FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_in_the_books_is_found(plant: Callable[[CoreHarness], None]) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    harness.do(Complete(lease=lease))
    plant(harness)
    with pytest.raises(AssertionError):
        assert_invariants(harness.rows)


@pytest.mark.parametrize("row", [Run, Attempt])
def test_evidence_that_changes_after_its_end_is_found(row: type[Row]) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    harness.do(Complete(lease=lease))
    ended = _first(harness, row)
    with pytest.raises(AssertionError, match="after its end"):
        assert_evidence_unchanged(ended, replace(ended, error_message="another story"))


def test_a_sound_world_has_sound_books() -> None:
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(Complete(lease=lease))
    assert_invariants(harness.rows)
    assert harness.job(job_id).status == "completed"
