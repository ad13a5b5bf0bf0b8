"""A worker over its time: heartbeats, cancellation, lost leases, several tasks at once, and going home."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from callsheet.core import commands
from callsheet.core.errors import BadInput
from callsheet.core.recipe import StageSpec
from callsheet.protocol import Beat, Claim, Claimed, Heartbeaten
from callsheet.worker import Canceled, Context, GiveUp, Kit, Leaving, Lost, Scratch, Worker
from callsheet.worker.facts import Fact
from tests.support.waiting import wait_until
from tests.worker.floor import Floor, Watched


class Handler:
    """A handler that works on until it is told to stop, and knows why it stopped."""

    def __init__(self, floor: Floor, until_attempt: int = 1) -> None:
        self.began = threading.Event()
        self.stopped_by: list[type[BaseException]] = []
        self._floor = floor
        self._until = until_attempt

    def __call__(self, ctx: Context) -> str:
        if ctx.attempt > self._until:
            return "done by another"
        self.began.set()
        try:
            while not self._floor.over.wait(0.01):
                self._step(ctx)
        except BaseException as error:
            self.stopped_by.append(type(error))
            raise
        return "was not stopped"

    def _step(self, ctx: Context) -> None:
        try:
            ctx.progress(10)
        except Exception:  # noqa: BLE001 - what a careless handler does
            self.stopped_by.append(Exception)


def test_heartbeats_keep_a_long_handler_alive_on_a_short_lease(floor: Floor, worker: Worker) -> None:
    """R227: more heartbeats than a lease has thirds."""
    link = floor.link()

    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        wait_until(lambda: len(link.beats) > 5, 20)

    floor.start(worker, link)
    job_id = floor.submit(lease_seconds=1)
    assert floor.ended(job_id).status == "completed"
    assert floor.outcomes(job_id) == ["completed"]


def test_a_cancel_stops_the_handler_at_its_next_call(floor: Floor, worker: Worker) -> None:
    """R229: the request comes down with a heartbeat's answer, and no `except Exception` holds it up."""
    handler = Handler(floor)
    worker.task("draw")(handler)
    floor.start(worker)
    job_id = floor.submit()
    assert handler.began.wait(20)
    floor.cancel(job_id)
    assert floor.ended(job_id).status == "canceled"
    wait_until(lambda: handler.stopped_by)
    assert handler.stopped_by == [Canceled]


def test_a_cancel_stops_an_async_handler_where_it_waits(floor: Floor, worker: Worker) -> None:
    began, stopped = threading.Event(), threading.Event()

    @worker.task("draw")
    async def draw(_ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    floor.start(worker)
    job_id = floor.submit(lease_seconds=1)
    assert began.wait(20)
    floor.cancel(job_id)
    assert floor.ended(job_id).status == "canceled"
    assert stopped.wait(20)


def test_a_handler_may_look_whether_to_stop_and_tidy_up_first(floor: Floor, worker: Worker) -> None:
    began, tidied = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        began.set()
        wait_until(lambda: ctx.canceled, 20)
        tidied.set()
        ctx.progress(1)
        return "went on"

    floor.start(worker)
    job_id = floor.submit(lease_seconds=1)
    assert began.wait(20)
    floor.cancel(job_id)
    assert floor.ended(job_id).status == "canceled"
    assert tidied.is_set()


def test_a_lease_that_another_took_stops_the_handler(floor: Floor, worker: Worker) -> None:
    """R228: a heartbeat with a stale token tells the worker to stop."""
    handler, link = Handler(floor), floor.link()
    worker.task("draw")(handler)
    floor.start(worker, link)
    job_id = floor.submit()
    assert handler.began.wait(20)
    floor.engine.execute(commands.Requeue(lease=link.claimed[0].lease, reason="taken away"))
    assert floor.ended(job_id).status == "completed"
    assert handler.stopped_by == [Lost]
    assert floor.outcomes(job_id) == ["requeued", "completed"]
    assert floor.outputs(job_id) == ['"done by another"']


def test_a_worker_that_nobody_hears_stops_by_itself_and_another_finishes(floor: Floor, worker: Worker) -> None:
    handler, cut_off = Handler(floor), floor.link("w1")
    worker.task("draw")(handler)
    cut_off.deaf = True
    shift = floor.start(worker, cut_off)
    job_id = floor.submit(lease_seconds=1)
    assert handler.began.wait(20)
    wait_until(lambda: handler.stopped_by, 20)
    assert handler.stopped_by == [Lost]
    shift.stop()
    floor.start(worker, floor.link("w2"))
    assert floor.ended(job_id).status == "completed"
    outcomes = floor.outcomes(job_id)
    assert (outcomes[0], outcomes[-1]) == ("lost", "completed")


def test_a_report_whose_answer_was_lost_is_sent_again_and_counts_once(floor: Floor, worker: Worker) -> None:
    link = floor.link()
    link.reports_lost = 2
    worker.task("draw")(lambda ctx: ctx.attempt)
    floor.start(worker, link)
    job_id = floor.submit()
    assert floor.ended(job_id).status == "completed"
    wait_until(lambda: len(link.reports) == 3)
    assert floor.outcomes(job_id) == ["completed"]
    assert floor.faults == []


def test_a_report_that_is_never_answered_is_given_up_though_the_lease_is_prolonged(
    floor: Floor, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes, as for a file: a machine is not kept for as long as a job may last."""
    monkeypatch.setattr("callsheet.worker.hand.ANSWER_SECONDS_MAX", 0.1)

    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        raise GiveUp("It cannot be done.")

    link = floor.link()
    link.mute = True
    floor.start(worker, link)
    floor.submit(lease_seconds=600)
    wait_until(lambda: floor.endings, 20)
    assert floor.endings == ["unreported"]
    assert floor.faults == ["Reporting draw failed: nobody there"]


def test_a_worker_works_on_when_whoever_looks_on_is_gone(floor: Floor, worker: Worker) -> None:
    """As a terminal that was closed: no lease is lost by it, though a heartbeat is refused, which is told."""

    class Choosy(Watched):
        """A house that refuses one heartbeat."""

        refused = 0

        def heartbeat(self, beats: Sequence[Beat], within_seconds: float) -> Heartbeaten:
            if self.refused:
                return super().heartbeat(beats, within_seconds)
            self.refused += 1
            raise BadInput("message_too_long", "Nobody reads that.")

    told: list[str] = []

    def tell(fact: Fact) -> None:
        told.append(type(fact).__name__)
        raise BrokenPipeError

    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        wait_until(lambda: len(link.beats) > 5, 20)

    link = Choosy(floor.link())
    way: Any = link
    shift = worker.start(way, kit=Kit(scratch=Scratch(floor.scratch), tell=tell))
    job_id = floor.submit(lease_seconds=1)
    assert floor.ended(job_id).status == "completed"
    shift.stop()
    assert floor.outcomes(job_id) == ["completed"]
    assert told == ["Arrived", "Began", "Trouble", "Ended", "Left"]


def test_several_tasks_run_at_once(floor: Floor, worker: Worker) -> None:
    together = threading.Barrier(3)

    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        together.wait(20)

    floor.start(worker, concurrency=3)
    job_id = floor.submit(StageSpec(name="draw", kind="draw", tasks=6))
    assert floor.ended(job_id).status == "completed"


def test_a_worker_asks_for_no_more_than_it_has_free_hands_for(floor: Floor, worker: Worker) -> None:
    """R156: a worker never holds more leases than its concurrency."""
    link = floor.link()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        if ctx.task_no == 1:
            wait_until(lambda: len(link.claimed) == 5, 20)

    floor.start(worker, link, concurrency=2)
    job_id = floor.submit(StageSpec(name="draw", kind="draw", tasks=5))
    assert floor.ended(job_id).status == "completed"
    assert link.asked[:4] == [2, 1, 1, 1]


def test_a_stop_gives_work_back_without_using_up_a_try(floor: Floor, worker: Worker) -> None:
    handler = Handler(floor)
    worker.task("draw")(handler)
    shift = floor.start(worker)
    job_id = floor.submit()
    assert handler.began.wait(20)
    shift.stop()
    assert handler.stopped_by == [Leaving]
    assert floor.endings == ["requeued"]
    task = floor.task(job_id)
    assert (task.status, task.attempts_charged, task.requeues) == ("retried", 0, 1)
    floor.start(worker, floor.link("w2"))
    assert floor.ended(job_id).status == "completed"
    assert floor.outcomes(job_id) == ["requeued", "completed"]


def test_a_stop_lets_work_end_within_its_grace(floor: Floor, worker: Worker) -> None:
    began, go = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        began.set()
        assert go.wait(20)
        ctx.progress(99)

    shift = floor.start(worker)
    job_id = floor.submit()
    assert began.wait(20)
    stopping = threading.Thread(target=shift.stop, args=(20,))
    stopping.start()
    go.set()
    stopping.join()
    assert floor.job(job_id).status == "completed"
    assert shift.busy == 0


def test_a_stopped_shift_claims_nothing_more(floor: Floor, worker: Worker) -> None:
    """A claim that waits for half a minute ends at once, and what comes later is left for others."""
    worker.task("draw")(lambda ctx: ctx.attempt)
    link = floor.link()
    shift = floor.start(worker, link)
    floor.ended(floor.submit())
    shift.stop()
    job_id = floor.submit()
    assert len(link.claimed) == 1
    assert link.claim(Claim(kinds=["draw"], wait_seconds=30)) == Claimed([], drain=False)
    assert floor.job(job_id).status == "queued"


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_handler_that_ends_after_its_task_was_given_back_changes_nothing(
    floor: Floor, worker: Worker, ends: str
) -> None:
    began, go = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        if ctx.attempt == 2:
            return "the second"
        began.set()
        assert go.wait(20)
        if ends == "raises":
            raise ValueError("too late")
        return "the first"

    shift = floor.start(worker)
    job_id = floor.submit()
    assert began.wait(20)
    shift.stop()
    go.set()
    wait_until(lambda: shift.busy == 0)
    floor.start(worker, floor.link("w2"))
    assert floor.ended(job_id).status == "completed"
    assert floor.outputs(job_id) == ['"the second"']


def test_a_report_of_a_canceled_task_that_nobody_answers_is_given_up_with_its_lease(
    floor: Floor, worker: Worker
) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> None:
        while True:
            ctx.progress(1)
            floor.over.wait(0.02)

    link = floor.link()
    link.mute = True
    shift = floor.start(worker, link)
    job_id = floor.submit(lease_seconds=1)
    wait_until(lambda: shift.busy == 1)
    floor.cancel(job_id)
    wait_until(lambda: shift.busy == 0)
    assert floor.faults[-1] == "Reporting draw failed: nobody there"
    assert floor.ended(job_id).status == "canceled"
