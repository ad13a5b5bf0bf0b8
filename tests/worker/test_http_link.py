"""A worker over HTTP: registration, lost and failed requests, tokens, draining and shutdown."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.core.model.workflow_definition import StageSpec
from callsheet.settings import HttpSettings
from callsheet.worker import Context, HttpLink, TaskLeaseLost, Worker
from callsheet.worker.runtime.worker_events import WorkerRegistered, WorkerStopped
from tests.support.doubles.fault_proxy import LOST_ANSWER, UNAVAILABLE, CallFault, FaultProxy
from tests.support.wait import wait_until
from tests.worker.test_worker_run import Handler
from tests.worker.worker_harness import WorkerHarness


@pytest.fixture
def proxy(http_harness: WorkerHarness) -> Iterator[FaultProxy]:
    """A proxy in front of the server that injects faults."""
    with FaultProxy(http_harness.live_server.url) as made:
        yield made


def test_a_worker_registers_runs_a_task_and_deregisters(http_harness: WorkerHarness, worker: Worker) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    worker_run = http_harness.start(worker, concurrency=3)
    assert http_harness.wait_for_end(http_harness.submit()).status == "completed"
    here = http_harness.worker()
    assert (here.status, here.offered, here.concurrency) == ("approved", '["draw"]', 3)
    worker_run.stop()
    assert http_harness.worker().status == "offline"
    assert isinstance(http_harness.events[0], WorkerRegistered)
    assert isinstance(http_harness.events[-1], WorkerStopped)
    assert http_harness.faults == []


CALLS = ("register", "claim", "heartbeat", "files", "previous-outputs", "complete")


@pytest.mark.parametrize(
    ("wrong", "calls"),
    [
        (LOST_ANSWER, (*CALLS, "blobs")),
        (UNAVAILABLE, (*CALLS, "blobs")),
        (CallFault(status=429), (*CALLS, "blobs")),
        (CallFault(status=200, body=b"<html>"), CALLS),  # a storage may return any body
    ],
    ids=["response lost", "503", "429", "HTML of a proxy"],
)
def test_failed_calls_are_retried_and_the_task_completes_once(
    http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy, wrong: CallFault, calls: tuple[str, ...]
) -> None:
    """Each call fails twice in a row."""

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        ctx.log("a line")
        ctx.upload("a.txt", b"hello", "text/plain")
        return "".join(str(previous_outputs.output) for previous_outputs in ctx.previous_outputs()) + "done"

    for path in calls:
        proxy.faults[path].extend([wrong, wrong])
    worker_run = http_harness.start(worker, http_harness.link(url=proxy.url))
    job_id = http_harness.submit(lease_seconds=20)
    assert http_harness.wait_for_end(job_id).status == "completed"
    wait_until(lambda: http_harness.attempt_endings)
    assert [path for path in calls if proxy.faults[path]] == []
    assert [http_harness.bytes_of(file) for file in http_harness.files(job_id)] == [b"hello"]
    assert http_harness.outcomes(job_id)[-1] == "completed"
    assert set(http_harness.outcomes(job_id)[:-1]) <= {"requeued"}  # a claim whose response was lost
    assert http_harness.task(job_id).attempts_counted == 1
    worker_run.stop()
    assert http_harness.attempt_endings == ["completed"]


def test_retry_after_delays_the_next_call(http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy) -> None:
    proxy.faults["complete"].append(CallFault(status=429, headers={"retry-after": "1"}))
    worker.task("draw")(lambda ctx: ctx.attempt)
    http_harness.start(worker, http_harness.link(url=proxy.url))
    assert http_harness.wait_for_end(http_harness.submit()).status == "completed"
    first, second = proxy.calls("complete")
    assert second.at - first.at >= 1


def test_the_token_is_sent_to_the_server_only(http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy) -> None:
    """No redirect is followed with it, and no file URL receives it, not even one of the server."""

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        ctx.upload("a.txt", b"hello", "text/plain")
        ctx.preview(b"\xff\xd8\xffand so on")

    with FaultProxy(http_harness.live_server.url) as other_server:
        redirect = CallFault(status=307, headers={"location": f"{other_server.url}/v1/worker/complete"})
        proxy.faults["complete"].append(redirect)
        http_harness.start(worker, http_harness.link(url=proxy.url))
        job = http_harness.wait_for_end(http_harness.submit())
        assert other_server.passed == []
    assert (job.status, job.error_code) == ("failed", "refused")
    files = proxy.calls("/v1/blobs/")
    assert [call.method for call in files] == ["PUT", "PUT"]
    assert [call.path for call in proxy.passed if "authorization" not in call.headers] == [call.path for call in files]


def test_a_wrong_fleet_secret_ends_the_run_with_a_message(http_harness: WorkerHarness, worker: Worker) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    http_harness.live_server.keys["worker"] = "cs_wrong"
    worker_run = http_harness.start(worker)
    assert worker_run.wait(20)
    assert worker_run.failure == "The server rejected the fleet secret: it is wrong or was revoked. Pass an active one."


def test_a_worker_that_never_registered_does_not_deregister(
    http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy
) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    proxy.faults["register"].extend([UNAVAILABLE] * 1_000)
    worker_run = http_harness.start(worker, http_harness.link(url=proxy.url))
    wait_until(lambda: http_harness.wait_reasons)
    worker_run.stop()
    assert (proxy.calls("deregister"), http_harness.faults) == ([], [])


def test_a_url_that_is_no_server_is_reported(http_harness: WorkerHarness, worker: Worker) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    worker_run = http_harness.start(worker, http_harness.link(url=f"{http_harness.live_server.url}/other_server"))
    assert worker_run.wait(20)
    assert "rejected this worker" in str(worker_run.failure)
    for wrong in ("ftp://server", "server", "http://"):
        with pytest.raises(ValueError, match="http:// or https://"):
            HttpLink(wrong, str, "w1")


def test_a_worker_waits_for_approval_and_reports_it_once(worker: Worker, tmp_path: Path, database_url: str) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    with WorkerHarness(database_url, tmp_path, http=HttpSettings(require_worker_approval=True)) as harness:
        harness.start(worker)
        wait_until(lambda: harness.wait_reasons)
        job_id = harness.submit()
        assert harness.worker().status == "pending"
        harness.operator.patch("/v1/admin/workers/w1", json={"approved": True}).raise_for_status()
        assert harness.wait_for_end(job_id).status == "completed"
        assert len(harness.wait_reasons) == 1
        assert "approve" in harness.wait_reasons[0]


def test_a_revoked_worker_is_stopped_and_cannot_register_again(http_harness: WorkerHarness, worker: Worker) -> None:
    """Its task is reassigned at once, and the failure of the run says why."""
    handler = Handler(http_harness)
    worker.task("draw")(handler)
    worker_run = http_harness.start(worker)
    job_id = http_harness.submit()
    assert handler.began.wait(20)
    http_harness.operator.post("/v1/admin/workers/w1/revoke").raise_for_status()
    assert worker_run.wait(20)
    assert handler.stopped_by == [TaskLeaseLost]
    assert "revoked" in str(worker_run.failure)
    http_harness.start(worker, http_harness.link("w2"))
    assert http_harness.wait_for_end(job_id).status == "completed"
    assert http_harness.outcomes(job_id) == ["requeued", "completed"]


def test_two_workers_with_one_name_do_not_replace_each_other_forever(
    worker: Worker, tmp_path: Path, database_url: str
) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    with WorkerHarness(database_url, tmp_path, http=HttpSettings(wait_seconds_max=0.1)) as harness:
        worker_runs = [harness.start(worker, harness.link("twin")) for _ in range(2)]
        wait_until(lambda: any(worker_run.failure for worker_run in worker_runs), 40)
        (failed,) = [worker_run.failure for worker_run in worker_runs if worker_run.failure]
        assert "same name" in failed
        assert harness.wait_for_end(harness.submit()).status == "completed"


def test_a_drained_worker_finishes_its_tasks_and_stops(http_harness: WorkerHarness, worker: Worker) -> None:
    began, go = threading.Event(), threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> str:
        began.set()
        assert go.wait(20)
        return f"by attempt {ctx.attempt}"

    worker_run = http_harness.start(worker)
    job_id = http_harness.submit(lease_seconds=2)
    assert began.wait(20)
    http_harness.operator.patch("/v1/admin/workers/w1", json={"draining": True}).raise_for_status()
    wait_until(lambda: worker_run.draining, 20)
    later = http_harness.submit()
    go.set()
    assert worker_run.wait(20)
    assert worker_run.failure is None
    assert http_harness.wait_for_end(job_id).status == "completed"
    assert http_harness.outcomes(job_id) == ["completed"]
    assert http_harness.job(later).status == "queued"
    assert http_harness.worker().status == "offline"


def test_an_idle_drained_worker_stops(worker: Worker, tmp_path: Path, database_url: str) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    with WorkerHarness(database_url, tmp_path, http=HttpSettings(wait_seconds_max=0.1)) as harness:
        worker_run = harness.start(worker)
        wait_until(lambda: any(isinstance(event, WorkerRegistered) for event in harness.events))
        harness.operator.patch("/v1/admin/workers/w1", json={"draining": True}).raise_for_status()
        assert worker_run.wait(20)
        assert (worker_run.failure, harness.worker().status) == (None, "offline")


def test_a_waiting_claim_does_not_delay_a_shutdown(
    http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy
) -> None:
    worker.task("draw")(lambda ctx: ctx.attempt)
    worker_run = http_harness.start(worker, http_harness.link(url=proxy.url))
    wait_until(lambda: proxy.calls("claim"))
    worker_run.stop()
    claim_answered, deregistered = ("answered", "/v1/worker/claim"), ("received", "/v1/worker/deregister")
    assert claim_answered not in proxy.order[: proxy.order.index(deregistered)]


def test_a_stopping_worker_does_not_claim_its_requeued_task_again(http_harness: WorkerHarness, worker: Worker) -> None:
    """While another claim still waits. Each task is requeued once."""
    began = threading.Event()

    @worker.task("draw")
    def draw(ctx: Context) -> None:
        began.set()
        wait_until(lambda: ctx.should_stop, 20)
        ctx.progress(1)

    worker_run = http_harness.start(worker, concurrency=2)
    job_id = http_harness.submit()
    assert began.wait(20)
    waiting_claims = http_harness.live_server.callsheet.state.fleet.waiting_claims
    wait_until(lambda: waiting_claims.count)
    worker_run.stop(cause="spot")
    task = http_harness.task(job_id)
    assert (http_harness.outcomes(job_id), task.requeues, task.attempts_counted) == (["requeued"], 1, 0)


def test_a_task_that_arrives_at_a_drained_worker_is_requeued(
    http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy
) -> None:
    """Its own claim still waits on the server: tasks it receives are requeued at once, not after their lease."""
    handler = Handler(http_harness)
    worker.task("draw")(handler)
    worker_run = http_harness.start(worker, http_harness.link(url=proxy.url), concurrency=2)
    http_harness.submit()
    assert handler.began.wait(20)
    waiting_claims = http_harness.live_server.callsheet.state.fleet.waiting_claims
    wait_until(lambda: waiting_claims.count)
    proxy.faults["requeue"].append(UNAVAILABLE)
    worker_run.drain()
    late = http_harness.submit(lease_seconds=600)
    wait_until(lambda: http_harness.outcomes(late) == ["requeued"], 20)
    task = http_harness.task(late)
    assert (task.status, task.requeues, task.attempts_counted) == ("retried", 1, 0)
    assert (worker_run.active_count, handler.stopped_by) == (1, [])


def test_a_task_of_a_lost_claim_response_is_requeued(
    http_harness: WorkerHarness, worker: Worker, proxy: FaultProxy
) -> None:
    """The next claim lists the running tasks, so the server knows which task was lost."""
    worker.task("draw")(lambda ctx: ctx.attempt)
    job_id = http_harness.submit(lease_seconds=600)
    proxy.faults["claim"].append(LOST_ANSWER)
    http_harness.start(worker, http_harness.link(url=proxy.url))
    assert http_harness.wait_for_end(job_id).status == "completed"
    task = http_harness.task(job_id)
    assert (task.attempts_counted, task.requeues) == (1, 1)


def test_a_task_of_an_unassigned_kind_is_not_claimed(http_harness: WorkerHarness, worker: Worker) -> None:
    done: list[str] = []
    for kind in ("draw", "write"):
        worker.task(kind)(lambda ctx: done.append(ctx.kind))
    http_harness.start(worker)
    wait_until(lambda: any(isinstance(event, WorkerRegistered) for event in http_harness.events))
    http_harness.operator.patch("/v1/admin/workers/w1", json={"kinds": ["write"]}).raise_for_status()
    drawn = http_harness.submit()
    written = http_harness.submit(StageSpec(name="write", kind="write"))
    assert http_harness.wait_for_end(written).status == "completed"
    assert (done, http_harness.job(drawn).status) == (["write"], "queued")
