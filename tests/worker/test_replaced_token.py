"""A worker whose token was replaced: it registers again, and keeps the leases that it still has."""

import threading
from pathlib import Path

import pytest

from callsheet.settings import HttpSettings
from callsheet.worker import Context, Worker
from tests.support.wait import wait_until
from tests.worker.worker_harness import WorkerHarness


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_worker_with_a_replaced_token_registers_again_and_finishes_its_task(
    http_harness: WorkerHarness, worker: Worker, concurrency: int
) -> None:
    """With a free place, its waiting claim notices the new token; otherwise a heartbeat does."""
    began, go = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        began.set()
        assert go.wait(20)
        ctx.upload("late.txt", b"after the rotation", "text/plain")
        return f"by attempt {ctx.attempt}"

    http_harness.start(worker, concurrency=concurrency)
    job_id = http_harness.submit(lease_seconds=3)
    assert began.wait(20)
    http_harness.operator.post("/v1/admin/workers/w1/rotate").raise_for_status()
    wait_until(lambda: http_harness.worker().starts == 2, 20)
    go.set()
    assert http_harness.wait_for_end(job_id).status == "completed"
    assert http_harness.outcomes(job_id) == ["completed"]


def test_a_report_with_a_replaced_token_is_sent_again(worker: Worker, tmp_path: Path, database_url: str) -> None:
    """No heartbeat and no claim notices the new token first."""
    began, go = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> int:
        began.set()
        assert go.wait(20)
        return ctx.attempt

    with WorkerHarness(database_url, tmp_path, http=HttpSettings(worker_heartbeat_seconds=600)) as harness:
        harness.start(worker)
        job_id = harness.submit(lease_seconds=3_600)
        assert began.wait(20)
        harness.operator.post("/v1/admin/workers/w1/rotate").raise_for_status()
        go.set()
        assert harness.wait_for_end(job_id).status == "completed"
        assert harness.outcomes(job_id) == ["completed"]


def test_a_worker_with_a_replaced_token_continues_behind_an_address_with_too_many_invalid_keys(
    worker: Worker, tmp_path: Path, database_url: str
) -> None:
    """The server answers 429 instead of 401."""
    began, go = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> int:
        began.set()
        assert go.wait(20)
        return ctx.attempt

    with WorkerHarness(database_url, tmp_path, http=HttpSettings(failed_auth_max=1)) as harness:
        harness.start(worker)
        job_id = harness.submit(lease_seconds=3)
        assert began.wait(20)
        wrong = harness.live_server.client(headers={"authorization": "Bearer cs_wrong"})
        assert [wrong.get("/v1/jobs").status_code for _ in range(2)] == [401, 429]
        harness.operator.post("/v1/admin/workers/w1/rotate").raise_for_status()
        wait_until(lambda: harness.worker().starts == 2, 20)
        go.set()
        assert harness.wait_for_end(job_id).status == "completed"
        assert harness.outcomes(job_id) == ["completed"]


def test_a_draining_worker_with_a_replaced_token_finishes_its_task_and_claims_no_more(
    http_harness: WorkerHarness, worker: Worker
) -> None:
    began, go = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> int:
        began.set()
        assert go.wait(20)
        return ctx.attempt

    worker_run = http_harness.start(worker, concurrency=2)
    job_id = http_harness.submit(lease_seconds=3)
    assert began.wait(20)
    http_harness.operator.patch("/v1/admin/workers/w1", json={"draining": True}).raise_for_status()
    wait_until(lambda: worker_run.draining, 20)
    http_harness.operator.post("/v1/admin/workers/w1/rotate").raise_for_status()
    wait_until(lambda: http_harness.worker().starts == 2, 20)
    assert http_harness.worker().draining_at is not None
    go.set()
    assert worker_run.wait(20)
    assert http_harness.outcomes(job_id) == ["completed"]
    assert (worker_run.failure, http_harness.worker().status) == (None, "offline")


def test_all_running_tasks_stop_when_a_claim_finds_that_another_process_took_the_name(
    worker: Worker, tmp_path: Path, database_url: str
) -> None:
    """No heartbeat is due for minutes, so only the claim notices it. The other process has lost the tasks."""
    began, stopped = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        if ctx.attempt == 1:
            began.set()
            wait_until(lambda: ctx.should_stop or harness.closing.is_set(), 60)
            stopped.set()
            ctx.progress(1)

    settings = HttpSettings(wait_seconds_max=0.1, worker_heartbeat_seconds=600)
    with WorkerHarness(database_url, tmp_path, http=settings) as harness:
        harness.start(worker, concurrency=2)
        job_id = harness.submit(lease_seconds=3_600)
        assert began.wait(20)
        other = harness.link("w1")
        other.register(["draw"], 2)
        other.close()
        assert stopped.wait(20)
        assert harness.wait_for_end(job_id).status == "completed"
