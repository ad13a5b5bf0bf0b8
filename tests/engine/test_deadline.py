"""Deadlines: every job ends, and a job that ran out of time gets its money back."""

from tests.support.studio import Studio, stage


def test_a_queued_job_passes_through_running_in_the_instant_it_expires(studio: Studio) -> None:
    # R9, R20, R23, R58, R65, C23: no source system knows a way from waiting to expired
    job = studio.ask(deadline_seconds=60)
    assert studio.advance(59) == 0
    assert studio.advance(1) == 1
    assert studio.moves(job) == [(None, "queued"), ("queued", "running"), ("running", "expired")]
    row = studio.job(job)
    assert row.started_at == row.finished_at == studio.clock.now()
    assert (row.error_code, studio.balance()) == ("deadline_exceeded", 100)
    assert studio.read.attempts(studio.tasks(job)[0].id) == []
    assert studio.claim() == []


def test_a_running_job_expires_and_its_worker_is_fenced(studio: Studio) -> None:
    # R20, R58, R194
    job = studio.ask(deadline_seconds=60)
    lease = studio.take()
    studio.advance(60)
    assert studio.status(job) == "expired"
    before = studio.snapshot()
    assert studio.complete(lease).skipped == "The job is expired."
    assert studio.beat(lease).cancel is True
    assert studio.snapshot() == before
    assert studio.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]


def test_a_paused_job_that_never_ran_expires_through_running(studio: Studio) -> None:
    # H16, C23
    job = studio.ask(deadline_seconds=60)
    studio.pause(job)
    studio.advance(60)
    assert studio.moves(job)[-2:] == [("paused", "running"), ("running", "expired")]


def test_a_job_in_backoff_expires(studio: Studio) -> None:
    # V1, J13
    job = studio.ask(deadline_seconds=1)
    studio.fail(studio.take(), retryable=True)
    studio.advance(60)
    assert studio.status(job) == "expired"
    assert studio.advance(60) == 0
    assert studio.claim() == []


def test_a_stage_that_waits_for_approval_ends_with_its_job(studio: Studio) -> None:
    # R407
    studio.workflow("film", stages=[stage("draw", gate=True)])
    job = studio.ask("film", deadline_seconds=60)
    studio.advance(59)
    assert studio.stages(job)[0].status == "waiting"
    studio.advance(1)
    assert (studio.status(job), studio.stages(job)[0].status) == ("expired", "canceled")


def test_a_job_that_gets_no_tasks_does_not_wait_for_ever(studio: Studio) -> None:
    # R408, V1
    studio.workflow("free", stages=[], inline=True)
    studio.workflow("empty", stages=[stage("draw", tasks=0)])
    jobs = [studio.ask("free", deadline_seconds=60), studio.ask("empty", deadline_seconds=60)]
    studio.advance(60)
    assert [studio.status(job) for job in jobs] == ["expired", "expired"]
    assert studio.balance() == 100


def test_the_recipe_has_a_deadline_of_its_own(studio: Studio) -> None:
    studio.workflow(deadline_seconds=10)
    job = studio.ask()
    studio.advance(10)
    assert studio.status(job) == "expired"


def test_at_one_moment_a_cancel_goes_before_a_deadline(studio: Studio) -> None:
    # C4
    job = studio.ask(deadline_seconds=60)
    studio.take()
    studio.cancel(job, grace_seconds=60)
    studio.advance(60)
    assert studio.status(job) == "canceled"


def test_every_run_has_the_time_that_the_first_one_had(studio: Studio) -> None:
    # V1, R70
    job = studio.ask(start_in_seconds=500, deadline_seconds=60)
    studio.advance(500)
    for _ in range(3):
        studio.advance(60)
        assert studio.status(job) == "expired"
        studio.advance(1_000)
        studio.retry(job)
        assert studio.job(job).deadline_at == studio.clock.now() + 60_000_000
    copy = studio.ask(deadline_seconds=60)
    studio.advance(60)
    assert studio.status(copy) == "expired"
    studio.advance(1_000)
    fresh = studio.retry(copy, retry_as="new_job").job_id
    assert studio.job(fresh).deadline_at == studio.clock.now() + 60_000_000
