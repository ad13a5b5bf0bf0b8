"""The run of a worker: heartbeats, cancellation, lost leases, concurrency and shutdown."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from callsheet.api.worker_protocol import Claim, ClaimResult, HeartbeatResponse, TaskHeartbeat
from callsheet.core.model import commands
from callsheet.core.model.errors import BadInput
from callsheet.core.model.workflow_definition import StageSpec
from callsheet.worker import (
    Context,
    NonRetryableError,
    Scratch,
    TaskCanceled,
    TaskLeaseLost,
    Worker,
    WorkerOptions,
    WorkerShutdown,
)
from callsheet.worker.runtime.worker_events import WorkerEvent
from tests.support.wait import wait_until
from tests.worker.worker_harness import RecordingLink, WorkerHarness


class Handler:
    """A handler that runs until it is stopped, and records the reason."""

    def __init__(self, harness: WorkerHarness, until_attempt: int = 1) -> None:
        self.began = threading.Event()
        self.stopped_by: list[type[BaseException]] = []
        self._worker_harness = harness
        self._until = until_attempt

    def __call__(self, ctx: Context) -> str:
        if ctx.attempt > self._until:
            return "done by another"
        self.began.set()
        try:
            while not self._worker_harness.closing.wait(0.01):
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


def test_heartbeats_keep_a_long_handler_alive_on_a_short_lease(harness: WorkerHarness, worker: Worker) -> None:
    """R227: more heartbeats than fit into one lease."""
    link = harness.link()

    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        wait_until(lambda: len(link.heartbeats) > 5, 20)

    harness.start(worker, link)
    job_id = harness.submit(lease_seconds=1)
    assert harness.wait_for_end(job_id).status == "completed"
    assert harness.outcomes(job_id) == ["completed"]


def test_a_cancel_stops_the_handler_at_its_next_call(harness: WorkerHarness, worker: Worker) -> None:
    """R229: the response to a heartbeat has the request, and `except Exception` does not catch it."""
    handler = Handler(harness)
    worker.task("draw")(handler)
    harness.start(worker)
    job_id = harness.submit()
    assert handler.began.wait(20)
    harness.cancel(job_id)
    assert harness.wait_for_end(job_id).status == "canceled"
    wait_until(lambda: handler.stopped_by)
    assert handler.stopped_by == [TaskCanceled]


def test_a_cancel_stops_an_async_handler_where_it_waits(harness: WorkerHarness, worker: Worker) -> None:
    began, stopped = threading.Event(), threading.Event()

    @worker.task("draw")
    async def draw(_ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    harness.start(worker)
    job_id = harness.submit(lease_seconds=1)
    assert began.wait(20)
    harness.cancel(job_id)
    assert harness.wait_for_end(job_id).status == "canceled"
    assert stopped.wait(20)


def test_a_handler_can_check_should_stop_and_clean_up_first(harness: WorkerHarness, worker: Worker) -> None:
    began, cleaned_up = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        began.set()
        wait_until(lambda: ctx.should_stop, 20)
        cleaned_up.set()
        ctx.progress(1)
        return "continued"

    harness.start(worker)
    job_id = harness.submit(lease_seconds=1)
    assert began.wait(20)
    harness.cancel(job_id)
    assert harness.wait_for_end(job_id).status == "canceled"
    assert cleaned_up.is_set()


def test_a_lost_lease_stops_the_handler(harness: WorkerHarness, worker: Worker) -> None:
    """R228: a heartbeat with a stale token tells the worker to stop."""
    handler, link = Handler(harness), harness.link()
    worker.task("draw")(handler)
    harness.start(worker, link)
    job_id = harness.submit()
    assert handler.began.wait(20)
    harness.engine.execute(commands.Requeue(lease=link.claimed[0].lease, reason="interrupted"))
    assert harness.wait_for_end(job_id).status == "completed"
    assert handler.stopped_by == [TaskLeaseLost]
    assert harness.outcomes(job_id) == ["requeued", "completed"]
    assert harness.outputs(job_id) == ['"done by another"']


def test_a_disconnected_worker_stops_its_handler_and_another_worker_finishes(
    harness: WorkerHarness, worker: Worker
) -> None:
    handler, disconnected = Handler(harness), harness.link("w1")
    worker.task("draw")(handler)
    disconnected.unreachable = True
    worker_run = harness.start(worker, disconnected)
    job_id = harness.submit(lease_seconds=1)
    assert handler.began.wait(20)
    wait_until(lambda: handler.stopped_by, 20)
    assert handler.stopped_by == [TaskLeaseLost]
    worker_run.stop()
    harness.start(worker, harness.link("w2"))
    assert harness.wait_for_end(job_id).status == "completed"
    outcomes = harness.outcomes(job_id)
    assert (outcomes[0], outcomes[-1]) == ("lost", "completed")


def test_a_report_with_a_lost_response_is_repeated_and_counted_once(harness: WorkerHarness, worker: Worker) -> None:
    link = harness.link()
    link.reports_lost = 2
    worker.task("draw")(lambda ctx: ctx.attempt)
    harness.start(worker, link)
    job_id = harness.submit()
    assert harness.wait_for_end(job_id).status == "completed"
    wait_until(lambda: len(link.reports) == 3)
    assert harness.outcomes(job_id) == ["completed"]
    assert harness.faults == []


def test_an_unanswered_report_is_abandoned_even_if_the_lease_is_renewed(
    harness: WorkerHarness, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ten minutes, as for a file, so that a worker is not blocked as long as a job may last."""
    monkeypatch.setattr("callsheet.worker.runtime.active_task.RETRY_SECONDS_MAX", 0.1)

    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        raise NonRetryableError("It cannot be done.")

    link = harness.link()
    link.fail_unreachable = True
    harness.start(worker, link)
    harness.submit(lease_seconds=600)
    wait_until(lambda: harness.attempt_endings, 20)
    assert harness.attempt_endings == ["unreported"]
    assert harness.faults == ["Reporting the outcome of draw failed: no response"]


def test_a_failing_event_listener_does_not_stop_the_worker(harness: WorkerHarness, worker: Worker) -> None:
    """Such as a closed terminal: no lease is lost, even when a rejected heartbeat is reported."""

    class SelectiveLink(RecordingLink):
        """Rejects one heartbeat."""

        refused = 0

        def heartbeat(self, heartbeats: Sequence[TaskHeartbeat], timeout_seconds: float) -> HeartbeatResponse:
            if self.refused:
                return super().heartbeat(heartbeats, timeout_seconds)
            self.refused += 1
            raise BadInput("message_too_long", "The message is too long.")

    events: list[str] = []

    def on_event(event: WorkerEvent) -> None:
        events.append(type(event).__name__)
        raise BrokenPipeError

    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        wait_until(lambda: len(link.heartbeats) > 5, 20)

    link = SelectiveLink(harness.link())
    untyped: Any = link
    worker_run = worker.start(
        untyped, worker_options=WorkerOptions(scratch=Scratch(harness.scratch), on_event=on_event)
    )
    job_id = harness.submit(lease_seconds=1)
    assert harness.wait_for_end(job_id).status == "completed"
    worker_run.stop()
    assert harness.outcomes(job_id) == ["completed"]
    assert events == ["WorkerRegistered", "TaskStarted", "WorkerError", "TaskEnded", "WorkerStopped"]


def test_several_tasks_run_at_once(harness: WorkerHarness, worker: Worker) -> None:
    barrier = threading.Barrier(3)

    @worker.task("draw")
    def draw(_ctx: Context) -> None:
        barrier.wait(20)

    harness.start(worker, concurrency=3)
    job_id = harness.submit(StageSpec(name="draw", kind="draw", tasks=6))
    assert harness.wait_for_end(job_id).status == "completed"


def test_a_worker_claims_no_more_than_its_free_capacity(harness: WorkerHarness, worker: Worker) -> None:
    """R156: a worker never holds more leases than its concurrency."""
    link = harness.link()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        if ctx.task_no == 1:
            wait_until(lambda: len(link.claimed) == 5, 20)

    harness.start(worker, link, concurrency=2)
    job_id = harness.submit(StageSpec(name="draw", kind="draw", tasks=5))
    assert harness.wait_for_end(job_id).status == "completed"
    assert link.claim_counts[:4] == [2, 1, 1, 1]


def test_a_stop_requeues_tasks_without_counting_an_attempt(harness: WorkerHarness, worker: Worker) -> None:
    handler = Handler(harness)
    worker.task("draw")(handler)
    worker_run = harness.start(worker)
    job_id = harness.submit()
    assert handler.began.wait(20)
    worker_run.stop()
    assert handler.stopped_by == [WorkerShutdown]
    assert harness.attempt_endings == ["requeued"]
    task = harness.task(job_id)
    assert (task.status, task.attempts_counted, task.requeues) == ("retried", 0, 1)
    harness.start(worker, harness.link("w2"))
    assert harness.wait_for_end(job_id).status == "completed"
    assert harness.outcomes(job_id) == ["requeued", "completed"]


def test_a_stop_waits_for_tasks_within_the_grace_period(harness: WorkerHarness, worker: Worker) -> None:
    began, go = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        began.set()
        assert go.wait(20)
        ctx.progress(99)

    worker_run = harness.start(worker)
    job_id = harness.submit()
    assert began.wait(20)
    stopping = threading.Thread(target=worker_run.stop, args=(20,))
    stopping.start()
    go.set()
    stopping.join()
    assert harness.job(job_id).status == "completed"
    assert worker_run.active_count == 0


def test_a_stopped_run_claims_nothing_more(harness: WorkerHarness, worker: Worker) -> None:
    """A waiting claim returns at once, and later tasks are left for other workers."""
    worker.task("draw")(lambda ctx: ctx.attempt)
    link = harness.link()
    worker_run = harness.start(worker, link)
    harness.wait_for_end(harness.submit())
    worker_run.stop()
    job_id = harness.submit()
    assert len(link.claimed) == 1
    assert link.claim(Claim(kinds=["draw"], wait_seconds=30)) == ClaimResult([], drain=False)
    assert harness.job(job_id).status == "queued"


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_handler_that_ends_after_its_task_was_requeued_changes_nothing(
    harness: WorkerHarness, worker: Worker, ends: str
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

    worker_run = harness.start(worker)
    job_id = harness.submit()
    assert began.wait(20)
    worker_run.stop()
    go.set()
    wait_until(lambda: worker_run.active_count == 0)
    harness.start(worker, harness.link("w2"))
    assert harness.wait_for_end(job_id).status == "completed"
    assert harness.outputs(job_id) == ['"the second"']


def test_reporting_a_canceled_task_is_retried_until_its_lease_expires(harness: WorkerHarness, worker: Worker) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> None:
        while True:
            ctx.progress(1)
            harness.closing.wait(0.02)

    link = harness.link()
    link.fail_unreachable = True
    worker_run = harness.start(worker, link)
    job_id = harness.submit(lease_seconds=1)
    wait_until(lambda: worker_run.active_count == 1)
    harness.cancel(job_id)
    wait_until(lambda: worker_run.active_count == 0)
    assert harness.faults[-1] == "Reporting the outcome of draw failed: no response"
    assert harness.wait_for_end(job_id).status == "canceled"
