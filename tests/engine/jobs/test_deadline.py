"""Deadlines: a job that has not ended by its deadline expires and is refunded."""

from tests.support.engine.engine_harness import EngineHarness, stage


def test_a_queued_job_that_expires_passes_through_running(harness: EngineHarness) -> None:
    # R9, R65, C23: no source API has a move from waiting to expired
    job = harness.submit_job(deadline_seconds=60)
    assert harness.advance(59) == 0
    assert harness.advance(1) == 1
    assert harness.moves(job) == [(None, "queued"), ("queued", "running"), ("running", "expired")]
    row = harness.job(job)
    assert row.started_at == row.finished_at == harness.clock.now()
    assert (row.error_code, harness.balance()) == ("deadline_exceeded", 100)
    assert harness.reads.attempts(harness.tasks(job)[0].id) == []
    assert harness.claim() == []


def test_a_running_job_expires_and_late_reports_change_nothing(harness: EngineHarness) -> None:
    # R9, R20, R65
    job = harness.submit_job(deadline_seconds=60)
    lease = harness.claim_one()
    harness.advance(60)
    assert harness.status(job) == "expired"
    before = harness.snapshot()
    assert harness.complete(lease).skipped == "The job is expired."
    assert harness.heartbeat(lease).cancel is True
    assert harness.snapshot() == before
    assert harness.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]


def test_a_paused_job_that_never_ran_expires_through_running(harness: EngineHarness) -> None:
    # H16, C23
    job = harness.submit_job(deadline_seconds=60)
    harness.pause(job)
    harness.advance(60)
    assert harness.moves(job)[-2:] == [("paused", "running"), ("running", "expired")]


def test_a_job_in_backoff_expires(harness: EngineHarness) -> None:
    # V1, J13
    job = harness.submit_job(deadline_seconds=1)
    harness.fail(harness.claim_one(), retryable=True)
    harness.advance(60)
    assert harness.status(job) == "expired"
    assert harness.advance(60) == 0
    assert harness.claim() == []


def test_a_stage_that_waits_for_approval_is_canceled_when_its_job_expires(harness: EngineHarness) -> None:
    # R407
    harness.workflow("film", stages=[stage("draw", approval=True)])
    job = harness.submit_job("film", deadline_seconds=60)
    harness.advance(59)
    assert harness.stages(job)[0].status == "waiting"
    harness.advance(1)
    assert (harness.status(job), harness.stages(job)[0].status) == ("expired", "canceled")


def test_a_job_without_tasks_expires_at_its_deadline(harness: EngineHarness) -> None:
    # R408, V1
    harness.workflow("free", stages=[], inline=True)
    harness.workflow("empty", stages=[stage("draw", tasks=0)])
    jobs = [harness.submit_job("free", deadline_seconds=60), harness.submit_job("empty", deadline_seconds=60)]
    harness.advance(60)
    assert [harness.status(job) for job in jobs] == ["expired", "expired"]
    assert harness.balance() == 100


def test_a_job_of_a_kind_that_no_worker_has_expires_and_is_refunded(harness: EngineHarness) -> None:
    # R47
    harness.workflow("odd", stages=[stage("unknown")])
    job = harness.submit_job("odd", deadline_seconds=60)
    assert harness.claim() == []
    harness.advance(60)
    assert (harness.status(job), harness.ledger(job)[-1]) == ("expired", ("refund", 5, 0))


def test_the_workflow_sets_the_default_deadline(harness: EngineHarness) -> None:
    harness.workflow(deadline_seconds=10)
    job = harness.submit_job()
    harness.advance(10)
    assert harness.status(job) == "expired"


def test_a_cancel_that_is_due_at_the_deadline_goes_first(harness: EngineHarness) -> None:
    # C4
    job = harness.submit_job(deadline_seconds=60)
    harness.claim_one()
    harness.cancel(job, grace_seconds=60)
    harness.advance(60)
    assert harness.status(job) == "canceled"


def test_a_retry_has_as_much_time_as_the_first_run(harness: EngineHarness) -> None:
    # V1
    job = harness.submit_job(start_in_seconds=500, deadline_seconds=60)
    harness.advance(500)
    for _ in range(3):
        harness.advance(60)
        assert harness.status(job) == "expired"
        harness.advance(1_000)
        harness.retry(job)
        assert harness.job(job).deadline_at == harness.clock.now() + 60_000_000
    copy = harness.submit_job(deadline_seconds=60)
    harness.advance(60)
    assert harness.status(copy) == "expired"
    harness.advance(1_000)
    fresh = harness.retry(copy, retry_as="new_job").job_id
    assert harness.job(fresh).deadline_at == harness.clock.now() + 60_000_000
