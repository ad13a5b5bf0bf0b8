"""The lifecycle of a job from queued to its terminal status, its times, events and output."""

import json
from itertools import pairwise

import pytest

from callsheet.core.model.commands import Approve, Cancel, Heartbeat, Pause, Requeue, RequireApproval, Resume, Retry
from callsheet.core.model.errors import NotFound
from tests.support.engine.engine_harness import EngineHarness, stage


def test_a_job_goes_from_queued_through_running_to_completed(harness: EngineHarness) -> None:
    # R4, R14, R17, R25, R48, R384, R385, R420, R421
    job = harness.submit_job(input={"prompt": "a cat"})
    assert harness.status(job) == "queued"
    harness.clock.advance(1)
    lease = harness.claim_one()
    assert harness.status(job) == "running"
    harness.clock.advance(2)
    state = harness.complete(lease, {"url": "x"})
    assert (state.status, state.job_status) == ("completed", "completed")
    assert harness.events(job) == [
        "job.created", "task.leased", "stage.started", "job.started", "task.completed", "stage.completed",
        "job.completed",
    ]  # fmt: skip
    assert harness.moves(job) == [(None, "queued"), ("queued", "running"), ("running", "completed")]


def test_a_job_is_created_then_started_then_finished(harness: EngineHarness) -> None:
    # R103, R106, R109, R116, R118, R193, R314, J7
    job = harness.submit_job()
    row = harness.job(job)
    assert (row.started_at, row.finished_at, row.error_code, row.error_message) == (None,) * 4
    assert harness.reads.documents(job) == []
    harness.clock.advance(3)
    harness.requeue(harness.claim_one())
    started = harness.job(job).started_at
    harness.clock.advance(3)
    lease = harness.claim_one()
    assert (harness.job(job).started_at, harness.job(job).finished_at) == (started, None)
    harness.clock.advance(3)
    harness.complete(lease)
    row = harness.job(job)
    assert row.started_at == started == row.created_at + 3_000_000
    assert row.finished_at == row.created_at + 9_000_000
    assert (row.error_code, row.error_message) == (None, None)
    assert [document.name for document in harness.reads.documents(job)] == ["output:2"]


def test_event_numbers_have_no_gaps_and_event_times_never_decrease(harness: EngineHarness) -> None:
    # R25, R137, J2, J3, J4
    harness.workflow("film", stages=[stage("draw", tasks=3), stage("cut", approval=True)])
    job = harness.submit_job("film")
    for leased in harness.claim(count=3):
        harness.clock.advance(1)
        harness.heartbeat(leased.lease, progress=50)
        harness.complete(leased.lease)
    harness.clock.advance(-5)
    harness.approve(job, 2)
    harness.finish(job, "cut")
    events = harness.reads.events(job)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(one.at <= other.at for one, other in pairwise(events))
    moves = harness.moves(job)
    assert all(one[1] == other[0] for one, other in pairwise(moves))
    assert harness.reads.events(job, after=len(events) - 2) == events[-2:]


def test_the_times_of_a_job_stay_in_order_if_the_clock_goes_back(harness: EngineHarness) -> None:
    # H26, R118, J7
    job = harness.submit_job()
    harness.clock.advance(-3_600)
    lease = harness.claim_one()
    harness.clock.advance(-3_600)
    harness.complete(lease)
    row = harness.job(job)
    assert row.started_at is not None
    assert row.finished_at is not None
    assert row.created_at <= row.started_at <= row.finished_at


def test_the_output_is_stored_as_it_was_reported(harness: EngineHarness) -> None:
    # R6, R296
    job = harness.submit_job(input={"n": 1})
    lease = harness.claim_one()
    harness.complete(lease, {"files": ["a", "b"], "text": "猫"})
    documents = {(d.owner_id, d.name): d.body for d in harness.reads.documents(job)}
    assert documents == {
        (job, "input"): '{"n":1}',
        (lease.task_id, "output:1"): '{"files":["a","b"],"text":"猫"}',
    }
    empty = harness.submit_job()
    harness.complete(harness.claim_one())
    assert [d.body for d in harness.reads.documents(empty)] == ["null"], "an empty output is stored too"


def test_an_error_message_is_stored_without_paths_and_secrets(harness: EngineHarness) -> None:
    # R60, R61, R251, R253, R263
    job = harness.submit_job()
    report = '{"exception_message": "CUDA out of memory at /srv/models/x.ckpt token=abc123secret", "trace": "..."}'
    state = harness.fail(harness.claim_one(), report)
    assert (state.status, state.job_status) == ("failed", "failed")
    row = harness.job(job)
    assert (row.error_code, row.error_message) == ("task_failed", "CUDA out of memory at [path] [secret]")
    assert row.finished_at == harness.clock.now()
    assert harness.runs(job)[0].error_message == row.error_message
    assert harness.tasks(job)[0].error_message == row.error_message
    assert "abc123secret" not in repr(harness.snapshot())


@pytest.mark.parametrize("ending", ["completed", "failed", "canceled", "expired"])
def test_only_a_retry_leaves_a_terminal_status(harness: EngineHarness, ending: str) -> None:
    # R23, R24, R113, R305, R314, R389, J6, J9
    job = harness.submit_job(deadline_seconds=100)
    if ending == "canceled":
        harness.cancel(job)
    elif ending == "expired":
        harness.advance(100)
    else:
        (harness.complete if ending == "completed" else harness.fail)(harness.claim_one())
    assert (harness.job(job).finished_at, harness.runs(job)[0].finished_at) == (harness.clock.now(),) * 2
    before = harness.snapshot()
    part = harness.stages(job)[0].id
    assert harness.expect_refusal(Pause(tenant="acme", job_id=job)).code == "illegal_transition"
    assert harness.expect_refusal(Resume(tenant="acme", job_id=job)).code == "illegal_transition"
    assert (
        harness.expect_refusal(Approve(tenant="acme", job_id=job, stage_id=part, approver="x")).code
        == "illegal_transition"
    )
    assert harness.expect_refusal(RequireApproval(tenant="acme", job_id=job, stage_id=part)).code == "job_ended"
    if ending == "canceled":
        assert harness.cancel(job).changed is False
    else:
        assert harness.expect_refusal(Cancel(tenant="acme", job_id=job)).code == "illegal_transition"
    if ending in {"completed", "canceled"}:
        assert harness.expect_refusal(Retry(tenant="acme", job_id=job)).code == "illegal_transition"
    assert harness.claim() == []
    assert harness.advance(10**6) == 0
    assert harness.snapshot() == before


@pytest.mark.parametrize("ending", ["completed", "failed", "canceled", "expired"])
def test_an_ended_run_gets_no_more_events(harness: EngineHarness, ending: str) -> None:
    # R112, J12
    job = harness.submit_job(deadline_seconds=100)
    lease = harness.claim_one()
    if ending == "canceled":
        harness.cancel(job, grace_seconds=0)
    elif ending == "expired":
        harness.advance(100)
    else:
        (harness.complete if ending == "completed" else harness.fail)(lease)
    events = harness.events(job)
    assert events[-1] == f"job.{ending}"
    late = Heartbeat(lease=lease, progress=99, message="Nearly there", log=("late",))
    harness.engine.execute_many([late, Requeue(lease=lease, reason="late")])
    assert (harness.events(job), harness.status(job)) == (events, ending)


CAUSES = [
    "The model did not answer within 120 seconds", "Connection reset by peer", "No space left on device",
    "FFmpeg exited with 1", "No voice is configured",
]  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_a_failed_job_has_the_error_message_of_its_worker(harness: EngineHarness, cause: str) -> None:
    # R110, R154
    job = harness.submit_job()
    harness.fail(harness.claim_one(), cause)
    row = harness.job(job)
    assert (row.status, row.error_message, row.finished_at) == ("failed", cause, harness.clock.now())
    assert harness.reads.documents(job) == []
    assert harness.balance() == 100


def test_a_job_of_another_tenant_is_not_found(harness: EngineHarness) -> None:
    # R159, H23
    harness.tenant("other")
    job = harness.submit_job()
    before = harness.snapshot()
    for command in (Cancel, Pause, Resume, Retry):
        assert harness.expect_refusal(command(tenant="other", job_id=job)).code == "job_not_found"
    with pytest.raises(NotFound):
        harness.job(job, tenant="other")
    assert harness.snapshot() == before


def test_an_unknown_job_cannot_be_canceled(harness: EngineHarness) -> None:
    # R124
    for job in ("", "nothing", "01a1e2ed-b97d-758d-b457-f41d3fb37d91", "x" * 10_000):
        assert harness.expect_refusal(Cancel(tenant="acme", job_id=job)).code == "job_not_found"


def test_progress_is_between_0_and_100_and_never_decreases(harness: EngineHarness) -> None:
    # R107
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.heartbeat(lease, progress=40, message="Half of it")
    harness.heartbeat(lease, progress=30)
    assert (harness.job(job).progress, harness.tasks(job)[0].message) == (40, "Half of it")
    for wrong in (-1, 101):
        with pytest.raises(Exception, match="progress must be"):
            harness.heartbeat(lease, progress=wrong)
    harness.complete(lease)
    assert harness.job(job).progress == 100
    events = [json.loads(event.data or "") for event in harness.reads.events(job) if event.type == "task.progressed"]
    assert events == [{"message": "Half of it", "progress": 40}, {"message": None, "progress": 30}]


def test_the_progress_of_a_job_is_the_average_of_its_stages(harness: EngineHarness) -> None:
    harness.workflow("film", stages=[stage("draw", tasks=2), stage("cut")])
    job = harness.submit_job("film")
    first, second = harness.claim(count=2)
    harness.heartbeat(first.lease, progress=50)
    assert harness.job(job).progress == 12
    harness.complete(first.lease)
    harness.complete(second.lease)
    assert harness.job(job).progress == 50
    harness.heartbeat(harness.claim_one("cut"), progress=80)
    assert harness.job(job).progress == 90
