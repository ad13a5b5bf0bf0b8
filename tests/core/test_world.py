"""The world's own checks are seen to catch planted faults; a checker that cannot fail proves nothing."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from callsheet.core.commands import Complete
from callsheet.core.rows import Attempt, Entry, Event, Job, Row, Run, Stage, Task, Wallet
from tests.core.books import assert_books, assert_evidence_stays
from tests.core.world import DRAW, World


def _first(world: World, row: type[Row]) -> Row:
    return next(iter(world.all(row)))


def _plant(row: type[Row], **changes: object) -> Callable[[World], None]:
    def plant(world: World) -> None:
        before = _first(world, row)
        world.rows[row][row.key_of(before)] = replace(before, **changes)

    return plant


def _lose(row: type[Row]) -> Callable[[World], None]:
    def lose(world: World) -> None:
        world.rows[row].popitem()

    return lose


FAULTS = {
    "a balance that is not the sum of its entries": _plant(Wallet, balance=1),
    "a wallet that holds more than its open runs": _plant(Wallet, held=99),
    "a lost ledger line": _lose(Entry),
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
def test_a_planted_fault_in_the_books_is_found(plant: Callable[[World], None]) -> None:
    world = World(DRAW)
    _, lease = world.started()
    world.do(Complete(lease=lease))
    plant(world)
    with pytest.raises(AssertionError):
        assert_books(world.rows)


@pytest.mark.parametrize("row", [Run, Attempt])
def test_evidence_that_changes_after_its_end_is_found(row: type[Row]) -> None:
    world = World(DRAW)
    _, lease = world.started()
    world.do(Complete(lease=lease))
    ended = _first(world, row)
    with pytest.raises(AssertionError, match="after its end"):
        assert_evidence_stays(ended, replace(ended, error_message="another story"))


def test_a_sound_world_has_sound_books() -> None:
    world = World(DRAW)
    job_id, lease = world.started()
    world.do(Complete(lease=lease))
    assert_books(world.rows)
    assert world.job(job_id).status == "completed"
