"""The queue of a lane: its order, its limits and its statistics, with a virtual clock."""

import pytest

from callsheet.core.model.commands import CheckWrite, Claim, Command, Submit
from callsheet.core.model.errors import Overloaded
from callsheet.core.policy.admission import WorkClass
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine.command_queue import CommandQueue, Submission, Taken
from callsheet.engine.queue_stats import merge_refused, merge_waits
from callsheet.settings import Settings

SETTINGS = Settings(
    writes_waiting_max=3, claims_waiting_max=2, queue_wait_seconds_max=1.0, queue_timeout_seconds=10.0,
    limits=Limits(batch_commands_max=2),
)  # fmt: skip
SUBMIT = Submit(tenant="acme", user="ann", workflow="sketch")
CLAIM = Claim(worker_id="w1", kinds=("draw",))
REPORT = CheckWrite()


class Queue:
    """A queue with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue = CommandQueue(SETTINGS, lambda: self.now)

    def put(self, *many: Command) -> bool:
        return self.queue.put(Submission(many, lambda _: None))

    def take(self) -> list[Command]:
        taken = self.taken()
        assert not taken.expired
        return [command for submission in taken.submissions for command in submission.commands]

    def taken(self) -> Taken:
        taken = self.queue.take()
        assert taken is not None
        return taken


@pytest.fixture
def waiting() -> Queue:
    return Queue()


def test_reports_are_taken_before_claims_and_claims_before_submits(waiting: Queue) -> None:
    for command in (SUBMIT, CLAIM, REPORT, SUBMIT, CLAIM, REPORT):
        waiting.put(command)
    assert [waiting.take() for _ in range(3)] == [[REPORT, REPORT], [CLAIM, CLAIM], [SUBMIT, SUBMIT]]


def test_a_full_class_is_refused_and_the_others_are_not(waiting: Queue) -> None:
    for _ in range(3):
        waiting.put(SUBMIT)
    with pytest.raises(Overloaded) as refused:
        waiting.put(SUBMIT)
    assert (refused.value.code, refused.value.retry_after_seconds) == ("overloaded", 1)
    assert waiting.put(CLAIM)
    assert all(waiting.put(REPORT) for _ in range(1_000))


def test_a_bulk_is_accepted_while_the_queue_has_space_and_taken_even_if_it_is_larger_than_a_batch(
    waiting: Queue,
) -> None:
    waiting.put(*[SUBMIT] * 5)
    with pytest.raises(Overloaded):
        waiting.put(SUBMIT)
    assert waiting.take() == [SUBMIT] * 5
    assert waiting.put(SUBMIT)


def test_requests_are_refused_early_if_the_oldest_waits_too_long_and_more_than_a_batch_waits(waiting: Queue) -> None:
    waiting.put(SUBMIT)
    waiting.now = 2.0
    assert not waiting.queue.is_overloaded(WorkClass.WRITE)
    waiting.put(SUBMIT)
    assert waiting.queue.is_overloaded(WorkClass.WRITE)
    assert not waiting.queue.is_overloaded(WorkClass.ESSENTIAL)
    assert waiting.put(SUBMIT)  # it was decoded already
    waiting.take()
    assert not waiting.queue.is_overloaded(WorkClass.WRITE)


def test_a_submit_that_waited_too_long_is_not_executed_and_a_report_is(waiting: Queue) -> None:
    waiting.put(SUBMIT)
    waiting.put(REPORT)
    waiting.now = 9.0
    waiting.put(CLAIM)
    waiting.now = 11.0
    taken = waiting.taken()
    assert [one.commands for one in taken.submissions] == [(REPORT,), (CLAIM,)]
    assert [one.commands for one in taken.expired] == [(SUBMIT,)]
    assert waiting.put(SUBMIT)


def test_waits_and_refusals_are_counted_by_class(waiting: Queue) -> None:
    waiting.put(*[SUBMIT] * 3)
    with pytest.raises(Overloaded):
        waiting.put(SUBMIT)
    waiting.now = 0.3
    waiting.take()
    other = Queue()
    other.put(SUBMIT)
    other.take()
    stats = [waiting.queue.stats, other.queue.stats]
    waits = merge_waits(stats)[WorkClass.WRITE]
    assert (sum(waits.counts), waits.counts[0], round(waits.seconds, 6)) == (4, 1, 0.9)
    assert merge_refused(stats) == {WorkClass.WRITE: 1}


def test_a_closed_queue_accepts_nothing_and_is_emptied(waiting: Queue) -> None:
    waiting.put(SUBMIT)
    waiting.queue.close()
    assert not waiting.put(SUBMIT)
    assert waiting.take() == [SUBMIT]
    assert waiting.queue.take() is None
