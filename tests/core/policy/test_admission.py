"""Admission: when a queue refuses work, and the class of every command."""

import pytest

from callsheet.core.command_registry import COMMANDS
from callsheet.core.model.commands import Claim, Command, Submit, TickJob
from callsheet.core.policy import admission
from callsheet.core.policy.admission import QueueLimits, QueueLoad, WorkClass, class_of, is_full, is_overloaded

LIMITS = QueueLimits(waiting_max=100, wait_seconds_max=0.5, batch_max=10)
SUBMIT = Submit(tenant="acme", user="ann", workflow="sketch")
CLAIM = Claim(worker_id="w1", kinds=("draw",))
TICK = TickJob(job_id="j")


@pytest.mark.parametrize(
    ("waiting", "oldest_wait_seconds", "full", "overloaded"),
    [
        (0, 0.0, False, False),
        (9, 60.0, False, False),  # all of them fit into the next batch
        (10, 0.5, False, False),
        (10, 0.6, False, True),
        (99, 0.1, False, False),
        (100, 0.0, True, True),
    ],
)
def test_a_queue_refuses_work_if_it_is_full_or_if_work_waits_longer_than_a_batch(
    waiting: int, oldest_wait_seconds: float, full: bool, overloaded: bool
) -> None:
    load = QueueLoad(waiting, oldest_wait_seconds)
    assert (is_full(load, LIMITS), is_overloaded(load, LIMITS)) == (full, overloaded)


def test_every_command_has_a_class() -> None:
    assert set(admission.CLASSES) == set(COMMANDS)


@pytest.mark.parametrize(
    ("many", "expected"),
    [
        ([SUBMIT], WorkClass.WRITE),
        ([CLAIM, SUBMIT], WorkClass.CLAIM),
        ([SUBMIT, TICK], WorkClass.ESSENTIAL),
        ([], WorkClass.ESSENTIAL),
    ],
)
def test_commands_that_are_sent_together_have_the_class_of_the_most_important_one(
    many: list[Command], expected: WorkClass
) -> None:
    assert class_of(many) is expected
