"""Pausing: nothing more is handed out, what runs goes on, nothing is lost, and the deadline does not wait."""

from callsheet.core.commands import Hold, Pause
from tests.support.studio import Studio, stage


def test_a_paused_job_hands_out_nothing_until_it_is_resumed(studio: Studio) -> None:
    # R379, R380, R387, H16, L9
    job = studio.ask()
    assert studio.pause(job).status == "paused"
    assert studio.claim() == []
    assert studio.resume(job).status == "queued"
    assert studio.take().job_id == job


def test_pausing_and_resuming_twice_changes_nothing(studio: Studio) -> None:
    # R389
    job = studio.ask()
    assert [studio.pause(job).changed for _ in range(3)] == [True, False, False]
    assert [studio.resume(job).changed for _ in range(3)] == [True, False, False]
    assert studio.events(job) == ["job.created", "job.paused", "job.resumed"]


def test_what_runs_while_the_job_is_paused_goes_on_and_counts(studio: Studio) -> None:
    # R388, H16
    studio.workflow("film", stages=[stage("draw", tasks=2), stage("cut")])
    job = studio.ask("film")
    first, second = studio.claim(count=2)
    studio.pause(job)
    assert studio.beat(first.lease, progress=90).cancel is False
    assert studio.complete(first.lease).job_status == "paused"
    assert studio.complete(second.lease).job_status == "paused"
    assert [s.status for s in studio.stages(job)] == ["completed", "pending"]
    assert studio.claim("draw", "cut") == []
    assert studio.resume(job).status == "running"
    assert studio.complete(studio.take("cut")).job_status == "completed"


def test_the_last_result_completes_a_paused_job(studio: Studio) -> None:
    # R388
    job = studio.ask()
    lease = studio.take()
    studio.pause(job)
    assert studio.complete(lease).job_status == "completed"
    assert studio.ledger(job)[-1] == ("consume", 0, 5)


def test_a_failure_ends_a_paused_job(studio: Studio) -> None:
    # R388
    job = studio.ask()
    lease = studio.take()
    studio.pause(job)
    assert studio.fail(lease).job_status == "failed"
    assert studio.balance() == 100


def test_a_job_that_had_begun_goes_on_where_it_was(studio: Studio) -> None:
    # R116, R390
    job = studio.ask()
    lease = studio.take()
    started = studio.job(job).started_at
    studio.clock.advance(5)
    studio.pause(job)
    studio.requeue(lease)
    assert studio.claim() == []
    assert studio.resume(job).status == "running"
    assert studio.take().attempt == 2
    assert studio.job(job).started_at == started


def test_a_backoff_that_ends_during_a_pause_is_not_lost(studio: Studio) -> None:
    # R387, H16
    job = studio.ask()
    studio.fail(studio.take(), retryable=True)
    studio.pause(job)
    studio.advance(100)
    assert studio.claim() == []
    studio.resume(job)
    assert studio.take().job_id == job


def test_a_backoff_that_outlives_a_pause_is_still_kept(studio: Studio) -> None:
    # L12
    job = studio.ask()
    studio.fail(studio.take(), retryable=True)
    studio.pause(job)
    studio.resume(job)
    assert studio.claim() == []
    studio.advance(3)
    assert studio.take().job_id == job


def test_a_lease_that_runs_out_during_a_pause_waits_for_the_resume(studio: Studio) -> None:
    # R391
    job = studio.ask()
    studio.take(lease_seconds=10)
    studio.pause(job)
    studio.advance(10)
    assert (studio.status(job), studio.tasks(job)[0].status) == ("paused", "retried")
    studio.advance(100)
    assert studio.claim() == []
    studio.resume(job)
    assert studio.take().attempt == 2


def test_a_scheduled_job_keeps_its_hour_through_a_pause(studio: Studio) -> None:
    # R389
    early, late = studio.ask(start_in_seconds=60), studio.ask(start_in_seconds=60)
    studio.pause(early)
    studio.pause(late)
    studio.advance(30)
    assert studio.resume(early).status == "pending"
    assert studio.claim() == []
    studio.advance(30)
    assert (studio.status(early), studio.status(late)) == ("queued", "paused")
    assert studio.resume(late).status == "queued"
    assert len(studio.claim(count=2)) == 2


def test_a_paused_job_expires_at_its_deadline(studio: Studio) -> None:
    # R391, H16, J13: the deadline is absolute
    fresh, begun = studio.ask(deadline_seconds=50), studio.ask(deadline_seconds=50)
    studio.fail(studio.take(), retryable=True)
    studio.pause(fresh)
    studio.pause(begun)
    studio.advance(50)
    assert [studio.status(job) for job in (fresh, begun)] == ["expired", "expired"]
    assert studio.balance() == 100


def test_a_paused_job_can_be_canceled_and_not_resumed_after(studio: Studio) -> None:
    # R389, H16
    job = studio.ask()
    studio.pause(job)
    assert studio.cancel(job).status == "canceled"
    assert studio.balance() == 100


def test_a_job_that_is_being_canceled_cannot_be_paused(studio: Studio) -> None:
    # H16 (whoever pauses and aborts, aborts)
    job = studio.ask()
    lease = studio.take()
    studio.cancel(job)
    assert studio.refused(Pause(tenant="acme", job_id=job)).code == "cancel_requested"
    assert studio.fail(lease).job_status == "canceled"


def test_a_cancel_of_a_paused_job_waits_for_its_worker(studio: Studio) -> None:
    # C4, H16
    job = studio.ask()
    lease = studio.take()
    studio.pause(job)
    assert studio.cancel(job, grace_seconds=30).status == "paused"
    assert studio.beat(lease).cancel is True
    studio.advance(30)
    assert studio.status(job) == "canceled"
    assert studio.moves(job)[-1] == ("paused", "canceled")


def test_whoever_hands_out_nothing_holds_nobody_up(studio: Studio) -> None:
    # R197, R306, R387, R418: a paused job, a held stage, a job that is being canceled, all ahead in the queue
    studio.workflow("trio", stages=[stage("draw", tasks=3)], priority=90)
    paused, held, canceled = (studio.ask("trio") for _ in range(3))
    behind = studio.ask(priority=1)
    leases = [studio.take() for _ in range(9)]
    for job in (paused, held, canceled):
        studio.requeue(next(lease for lease in leases if lease.job_id == job))
    studio.pause(paused)
    studio.do(Hold(tenant="acme", job_id=held, stage_id=studio.stages(held)[0].id))
    studio.cancel(canceled)
    assert [leased.lease.job_id for leased in studio.claim()] == [behind]
