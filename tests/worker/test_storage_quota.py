"""A worker whose output does not fit: the task fails without a retry, a preview is skipped, a full queue passes."""

from threading import Event

from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import RetryPolicy
from callsheet.worker import Context, Worker
from tests.support.wait import wait_until
from tests.worker.worker_harness import NO_BACKOFF, TENANT, USER, WorkerHarness

PNG = b"\x89PNG\r\n\x1a\n" + b"a picture" * 10


def set_quota(harness: WorkerHarness, most: int) -> None:
    harness.engine.execute(commands.PutTenant(tenant=TENANT, storage_bytes_max=most))


def balance(harness: WorkerHarness) -> int:
    return harness.engine.reads.wallet(TENANT, USER).balance


def test_an_output_over_the_quota_fails_the_task_once_and_refunds_the_job(
    harness: WorkerHarness, worker: Worker
) -> None:
    set_quota(harness, 50)
    before = balance(harness)

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.upload("a.png", b"x" * 20)
        ctx.upload("b.png", b"x" * 31)

    harness.start(worker)
    job = harness.wait_for_end(harness.submit(retry=RetryPolicy(on="any", attempts_max=3, backoff=NO_BACKOFF)))
    assert (job.status, job.error_code) == ("failed", "storage_quota_exceeded")
    assert harness.outcomes(job.id) == ["failed"], "another attempt would repeat the work and fail too"
    assert "31 more would exceed its limit of 50 (storage_bytes_max)" in (job.error_message or "")
    assert balance(harness) == before
    wait_until(lambda: harness.blobs.list(f"{TENANT}/", "", 10) == [], 20)


def test_a_preview_over_the_quota_is_skipped(harness: WorkerHarness, worker: Worker) -> None:
    set_quota(harness, 100)

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.preview(PNG)
        ctx.upload("a.png", PNG)

    harness.start(worker)
    job = harness.wait_for_end(harness.submit())
    assert (job.status, job.output_bytes) == ("completed", len(PNG))


def test_a_canceled_task_frees_what_it_uploaded(harness: WorkerHarness, worker: Worker) -> None:
    uploaded = Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.upload("a.png", PNG)
        ctx.preview(PNG)
        uploaded.set()
        while not ctx.should_stop and not harness.closing.is_set():
            harness.closing.wait(0.01)
        ctx.progress(1)

    harness.start(worker)
    job_id = harness.submit()
    assert uploaded.wait(20)
    assert len(harness.blobs.list(f"{TENANT}/", "", 10)) == 2
    harness.cancel(job_id)
    assert harness.wait_for_end(job_id).status == "canceled"
    wait_until(lambda: harness.blobs.list(f"{TENANT}/", "", 10) == [], 20)
