"""Pausing: no task is leased until the resume, running tasks continue, and the deadline keeps running."""

from callsheet.core.model.commands import Pause, RequireApproval, Resume
from tests.support.engine.engine_harness import EngineHarness, stage


def test_a_paused_job_leases_nothing_until_it_is_resumed(harness: EngineHarness) -> None:
    # R379, R380, R387, H16, L9
    job = harness.submit_job()
    assert harness.pause(job).status == "paused"
    assert harness.claim() == []
    assert harness.resume(job).status == "queued"
    assert harness.claim_one().job_id == job


def test_pausing_and_resuming_twice_changes_nothing(harness: EngineHarness) -> None:
    # R389
    job = harness.submit_job()
    assert [harness.pause(job).changed for _ in range(3)] == [True, False, False]
    assert [harness.resume(job).changed for _ in range(3)] == [True, False, False]
    assert harness.events(job) == ["job.created", "job.paused", "job.resumed"]


def test_running_tasks_of_a_paused_job_continue_and_count(harness: EngineHarness) -> None:
    # R388, H16
    harness.workflow("film", stages=[stage("draw", tasks=2), stage("cut")])
    job = harness.submit_job("film")
    first, second = harness.claim(count=2)
    harness.pause(job)
    assert harness.heartbeat(first.lease, progress=90).cancel is False
    assert harness.complete(first.lease).job_status == "paused"
    assert harness.complete(second.lease).job_status == "paused"
    assert [s.status for s in harness.stages(job)] == ["completed", "pending"]
    assert harness.claim("draw", "cut") == []
    assert harness.resume(job).status == "running"
    assert harness.complete(harness.claim_one("cut")).job_status == "completed"


def test_the_last_completion_completes_a_paused_job(harness: EngineHarness) -> None:
    # R388
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.pause(job)
    assert harness.complete(lease).job_status == "completed"
    assert harness.ledger(job)[-1] == ("consume", 0, 5)


def test_a_failure_ends_a_paused_job(harness: EngineHarness) -> None:
    # R388
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.pause(job)
    assert harness.fail(lease).job_status == "failed"
    assert harness.balance() == 100


def test_a_resumed_job_keeps_its_start_time_and_attempts(harness: EngineHarness) -> None:
    # R116, R390
    job = harness.submit_job()
    lease = harness.claim_one()
    started = harness.job(job).started_at
    harness.clock.advance(5)
    harness.pause(job)
    harness.requeue(lease)
    assert harness.claim() == []
    assert harness.resume(job).status == "running"
    assert harness.claim_one().attempt == 2
    assert harness.job(job).started_at == started


def test_a_backoff_that_ends_during_a_pause_is_not_lost(harness: EngineHarness) -> None:
    # R387, H16
    job = harness.submit_job()
    harness.fail(harness.claim_one(), retryable=True)
    harness.pause(job)
    harness.advance(100)
    assert harness.claim() == []
    harness.resume(job)
    assert harness.claim_one().job_id == job


def test_a_backoff_that_is_longer_than_a_pause_is_kept(harness: EngineHarness) -> None:
    # L12
    job = harness.submit_job()
    harness.fail(harness.claim_one(), retryable=True)
    harness.pause(job)
    harness.resume(job)
    assert harness.claim() == []
    harness.advance(3)
    assert harness.claim_one().job_id == job


def test_a_lease_outlasts_a_pause_and_an_expired_one_waits_for_the_resume(harness: EngineHarness) -> None:
    # R391
    job = harness.submit_job()
    harness.claim_one(lease_seconds=10)
    harness.pause(job)
    harness.advance(9)
    assert harness.tasks(job)[0].status == "running", "a pause ends no lease"
    harness.advance(1)
    assert (harness.status(job), harness.tasks(job)[0].status) == ("paused", "retried")
    harness.advance(100)
    assert harness.claim() == []
    harness.resume(job)
    assert harness.claim_one().attempt == 2


def test_a_scheduled_job_keeps_its_scheduled_time_through_a_pause(harness: EngineHarness) -> None:
    # H16
    early, late = harness.submit_job(start_in_seconds=60), harness.submit_job(start_in_seconds=60)
    harness.pause(early)
    harness.pause(late)
    harness.advance(30)
    assert harness.resume(early).status == "pending"
    assert harness.claim() == []
    harness.advance(30)
    assert (harness.status(early), harness.status(late)) == ("queued", "paused")
    assert harness.resume(late).status == "queued"
    assert len(harness.claim(count=2)) == 2


def test_a_paused_job_expires_at_its_deadline(harness: EngineHarness) -> None:
    # R391, H16, J13: the deadline is absolute
    started, queued = harness.submit_job(deadline_seconds=50), harness.submit_job(deadline_seconds=50)
    harness.fail(harness.claim_one(), retryable=True)
    harness.pause(queued)
    harness.pause(started)
    harness.advance(50)
    assert [harness.status(job) for job in (queued, started)] == ["expired", "expired"]
    assert harness.balance() == 100


def test_a_paused_job_can_be_canceled_and_not_resumed_afterwards(harness: EngineHarness) -> None:
    # R389
    job = harness.submit_job()
    harness.pause(job)
    assert harness.cancel(job).status == "canceled"
    assert harness.expect_refusal(Resume(tenant="acme", job_id=job)).code == "illegal_transition"
    assert harness.balance() == 100


def test_a_job_that_is_being_canceled_cannot_be_paused(harness: EngineHarness) -> None:
    # C4
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.cancel(job)
    assert harness.expect_refusal(Pause(tenant="acme", job_id=job)).code == "cancel_requested"
    assert harness.fail(lease).job_status == "canceled"


def test_a_cancel_of_a_paused_job_waits_for_its_worker(harness: EngineHarness) -> None:
    # C4
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.pause(job)
    assert harness.cancel(job, grace_seconds=30).status == "paused"
    assert harness.heartbeat(lease).cancel is True
    harness.advance(30)
    assert harness.status(job) == "canceled"
    assert harness.moves(job)[-1] == ("paused", "canceled")


def test_jobs_that_give_out_no_work_do_not_block_later_jobs(harness: EngineHarness) -> None:
    # R387, R418: a paused job, a held stage and a job that is being canceled are first in the queue
    harness.workflow("trio", stages=[stage("draw", tasks=3)], priority=90)
    paused, held, canceled = (harness.submit_job("trio") for _ in range(3))
    later = harness.submit_job(priority=1)
    leases = [harness.claim_one() for _ in range(9)]
    for job in (paused, held, canceled):
        harness.requeue(next(lease for lease in leases if lease.job_id == job))
    harness.pause(paused)
    harness.do(RequireApproval(tenant="acme", job_id=held, stage_id=harness.stages(held)[0].id))
    harness.cancel(canceled)
    assert [leased.lease.job_id for leased in harness.claim()] == [later]
