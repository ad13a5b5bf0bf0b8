"""A server that answers Retry-After: the worker waits with all requests, and loses no lease."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from callsheet.api.worker_protocol import HeartbeatResponse, TaskHeartbeat
from callsheet.core.model.errors import BadInput
from callsheet.settings import HttpSettings
from callsheet.worker import Context, UnreachableError, Worker
from tests.support.doubles.fault_proxy import UNAVAILABLE, CallFault, FaultProxy
from tests.support.wait import wait_until
from tests.worker.worker_harness import SECONDS, RecordingLink, WorkerHarness

LATER = CallFault(status=429, headers={"retry-after": "1"})
MUCH_LATER = CallFault(status=429, headers={"retry-after": "60"})


@pytest.fixture
def proxy(http_harness: WorkerHarness) -> Iterator[FaultProxy]:
    with FaultProxy(http_harness.live_server.url) as made:
        yield made


class TimedLink(RecordingLink):
    """Records when heartbeats were sent, and the Retry-After of their responses."""

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.sent: list[tuple[float, int]] = []
        self.retry_after_log: list[tuple[float, float]] = []

    def heartbeat(self, heartbeats: Sequence[TaskHeartbeat], timeout_seconds: float) -> HeartbeatResponse:
        self.sent.append((time.monotonic(), len(heartbeats)))
        try:
            return super().heartbeat(heartbeats, timeout_seconds)
        except UnreachableError as error:
            self.retry_after_log.append((time.monotonic(), error.retry_after_seconds))
            raise


def test_a_rate_limited_worker_with_many_leases_loses_none(worker: Worker, tmp_path: Path, database_url: str) -> None:
    """With the lowest rate limit and handlers that report often: all heartbeats wait together."""

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        while len(link.retry_after_log) < 3:
            ctx.progress(50)
            if harness.closing.wait(0.02):
                return

    with WorkerHarness(database_url, tmp_path, http=HttpSettings(heartbeats_per_second_max=1)) as harness:
        link = TimedLink(harness.link())
        jobs = [harness.submit(lease_seconds=6) for _ in range(10)]
        harness.start(worker, link, concurrency=10)
        assert {harness.wait_for_end(job_id).status for job_id in jobs} == {"completed"}
        assert [harness.outcomes(job_id) for job_id in jobs] == [["completed"]] * 10
        wait_until(lambda: len(harness.attempt_endings) == 10)
        assert set(harness.attempt_endings) == {"completed"}
    for at, after in link.retry_after_log:
        later = [sent for sent, _ in link.sent if sent > at]
        assert after >= 1
        assert not later or min(later) >= at + after


def test_the_last_report_of_a_task_waits_for_the_server_too(
    http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy
) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.log("the last line")

    proxy.faults["heartbeat"].extend([LATER, LATER])
    http_harness.start(worker, http_harness.link(url=proxy.url))
    assert http_harness.wait_for_end(http_harness.submit()).status == "completed"
    first, second, third, *_ = proxy.calls("heartbeat")
    assert second.at - first.at >= 1
    assert third.at - second.at >= 1


def test_retry_after_holds_for_every_running_task(
    http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy
) -> None:
    """After a Retry-After for one task, the first update of another task waits too."""
    go = threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        if ctx.input == "second":
            assert go.wait(SECONDS)
            ctx.progress(20)
            wait_until(lambda: len(proxy.calls("heartbeat")) > 1, SECONDS)
        else:
            ctx.progress(10)
            wait_until(lambda: proxy.calls("heartbeat"), SECONDS)
            go.set()

    proxy.faults["heartbeat"].append(LATER)
    link = TimedLink(http_harness.link(url=proxy.url))
    jobs = [http_harness.submit(input=name) for name in ("second", "first")]
    http_harness.start(worker, link, concurrency=2)
    assert {http_harness.wait_for_end(job_id).status for job_id in jobs} == {"completed"}
    first, second, *_ = link.sent
    assert second[0] - first[0] >= 1
    assert (first[1], second[1]) == (1, 2)


def test_a_lease_that_would_expire_is_renewed_despite_retry_after(
    http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy
) -> None:
    """The server asks for a minute, but the lease lasts five seconds."""

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        wait_until(lambda: len(proxy.calls("heartbeat")) > 1 or ctx.should_stop, SECONDS)
        ctx.progress(50)

    proxy.faults["heartbeat"].append(MUCH_LATER)
    http_harness.start(worker, http_harness.link(url=proxy.url))
    job_id = http_harness.submit(lease_seconds=5)
    assert http_harness.wait_for_end(job_id).status == "completed"
    assert http_harness.outcomes(job_id) == ["completed"]
    first, second, *_ = proxy.calls("heartbeat")
    assert second.at - first.at >= 1  # Retry-After was respected as long as possible


def test_one_invalid_heartbeat_is_isolated_by_halving_the_batch(http_harness: WorkerHarness, worker: Worker) -> None:
    """A refused batch is sent again in halves, so the other leases are extended."""

    class SelectiveLink(TimedLink):
        """Rejects every request that contains this lease."""

        def heartbeat(self, heartbeats: Sequence[TaskHeartbeat], timeout_seconds: float) -> HeartbeatResponse:
            if len(heartbeats) > 1 and any(heartbeat.lease.job_id == jobs[0] for heartbeat in heartbeats):
                self.sent.append((time.monotonic(), len(heartbeats)))
                raise BadInput("too_large", "The batch is too large.")
            return super().heartbeat(heartbeats, timeout_seconds)

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        wait_until(lambda: len(link.heartbeats) >= 8 or ctx.should_stop, SECONDS)

    jobs: list[str] = []
    link = SelectiveLink(http_harness.link())
    jobs.extend(http_harness.submit(lease_seconds=6) for _ in range(8))
    http_harness.start(worker, link, concurrency=8)
    assert [http_harness.wait_for_end(job_id).status for job_id in jobs] == ["completed"] * 8
    assert http_harness.faults == []
    whole, half, *_ = (count for _, count in link.sent)
    assert (whole // 2, whole > 1) == (half, True)


def test_an_outage_between_the_halves_does_not_cause_a_request_per_lease(
    http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy
) -> None:
    @worker.task("draw")
    def draw(ctx: Context) -> None:
        wait_until(lambda: link.heartbeats or ctx.should_stop, SECONDS)

    link = TimedLink(http_harness.link(url=proxy.url))
    proxy.faults["heartbeat"].extend([CallFault(status=422), UNAVAILABLE])
    jobs = [http_harness.submit(lease_seconds=6) for _ in range(8)]
    http_harness.start(worker, link, concurrency=8)
    assert [http_harness.wait_for_end(job_id).status for job_id in jobs] == ["completed"] * 8
    whole, half, again, *_ = (count for _, count in link.sent)
    assert (whole // 2, again >= whole > 1) == (half, True)
