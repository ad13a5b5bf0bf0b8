"""Canceling: at once if nothing runs, else asked for, heard, acknowledged, or carried out when the grace is over."""

import pytest

from callsheet.core.commands import Cancel, Complete, Fail
from tests.support.studio import Studio, stage


def test_a_queued_job_is_canceled_at_once_and_never_handed_out(studio: Studio) -> None:
    # R13, R16, R105, R111, R117, R119, R122, R123
    job = studio.ask()
    state = studio.cancel(job, reason="Changed my mind.")
    assert (state.status, state.cancel_requested, state.changed) == ("canceled", True, True)
    row = studio.job(job)
    assert (row.started_at, row.finished_at, row.error_code, row.error_message) == (
        None, studio.clock.now(), "canceled", "Changed my mind.",
    )  # fmt: skip
    assert (studio.claim(), studio.balance()) == ([], 100)
    assert studio.moves(job) == [(None, "queued"), ("queued", "canceled")]


def test_a_running_job_is_asked_to_stop_and_its_worker_hears_it(studio: Studio) -> None:
    # R108, R120, R121, R123, R229, C4
    job = studio.ask()
    lease = studio.take()
    assert studio.beat(lease).cancel is False
    state = studio.cancel(job)
    assert (state.status, state.cancel_requested) == ("running", True)
    assert studio.job(job).cancel_requested_at == studio.clock.now()
    assert studio.beat(lease).cancel is True
    assert studio.fail(lease, "stopping").job_status == "canceled"
    assert studio.job(job).error_message == "Canceled by request."
    assert studio.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]
    assert studio.moves(job)[-1] == ("running", "canceled")


@pytest.mark.parametrize("retryable", [True, False, None])
def test_no_try_follows_a_failure_after_a_cancel(studio: Studio, retryable: bool | None) -> None:
    # R121, R122
    job = studio.ask()
    lease = studio.take()
    studio.cancel(job)
    assert studio.fail(lease, retryable=retryable).status == "canceled"
    assert studio.advance(1_000) == 0
    assert studio.claim() == []


def test_a_worker_may_acknowledge_by_giving_the_task_back(studio: Studio) -> None:
    # R121
    job = studio.ask()
    lease = studio.take()
    studio.cancel(job)
    assert studio.requeue(lease).job_status == "canceled"


def test_asking_again_changes_nothing(studio: Studio) -> None:
    # R126
    job = studio.ask()
    lease = studio.take()
    studio.cancel(job)
    assert [studio.cancel(job).changed for _ in range(5)] == [False] * 5
    assert studio.events(job).count("job.cancel_requested") == 1
    studio.fail(lease)
    assert studio.cancel(job).changed is False
    assert studio.events(job).count("job.canceled") == 1


def test_a_completion_before_the_grace_is_over_wins(studio: Studio) -> None:
    # R128, C4, H10
    job = studio.ask()
    lease = studio.take()
    studio.cancel(job, grace_seconds=30)
    assert studio.advance(29.9) == 0
    assert studio.complete(lease).job_status == "completed"
    row = studio.job(job)
    assert (row.status, row.cancel_requested_at is not None, row.error_code) == ("completed", True, None)
    assert studio.ledger(job)[-1] == ("consume", 0, 5)
    assert studio.advance(100) == 0


def test_after_the_grace_the_lease_is_revoked_and_the_worker_fenced(studio: Studio) -> None:
    # R194, R419, C4, H17
    job = studio.ask()
    lease = studio.take()
    studio.cancel(job, grace_seconds=30)
    assert studio.advance(30) == 1
    assert studio.status(job) == "canceled"
    (attempt,) = studio.read.attempts(lease.task_id)
    assert (attempt.outcome, attempt.forgiven) == ("canceled", 1)
    before = studio.snapshot()
    beat = studio.beat(lease)
    assert (beat.cancel, beat.lease_seconds) == (True, 0)
    for report in (Complete(lease=lease, output=1), Fail(lease=lease)):
        state = studio.do(report)
        assert (state.job_status, state.skipped) == ("canceled", "The job is canceled.")
    assert studio.snapshot() == before
    assert studio.balance() == 100


def test_no_grace_cancels_a_running_job_at_once(studio: Studio) -> None:
    # R19, R78, R381, C4
    job = studio.ask()
    lease = studio.take()
    assert studio.cancel(job, grace_seconds=0, actor="admin").status == "canceled"
    assert studio.complete(lease).skipped == "The job is canceled."
    assert [event.actor for event in studio.read.events(job)][-1] == "admin"


def test_a_second_cancel_may_shorten_the_grace_and_never_lengthens_it(studio: Studio) -> None:
    # C4
    job, other = studio.ask(), studio.ask()
    studio.claim(count=2)
    studio.cancel(job, grace_seconds=100)
    studio.cancel(job, grace_seconds=10)
    studio.cancel(job, grace_seconds=1_000)
    studio.advance(10)
    assert studio.status(job) == "canceled"
    studio.cancel(other, grace_seconds=100)
    assert studio.cancel(other, grace_seconds=0).status == "canceled"


def test_the_recipe_says_how_long_the_grace_is(studio: Studio) -> None:
    # C4
    studio.workflow(cancel_grace_seconds=7)
    job = studio.ask()
    studio.take()
    studio.cancel(job)
    studio.advance(6.9)
    assert studio.status(job) == "running"
    studio.advance(0.1)
    assert studio.status(job) == "canceled"


def test_a_dead_worker_does_not_keep_a_cancel_waiting(studio: Studio) -> None:
    # C4, R151
    job = studio.ask()
    studio.take(lease_seconds=5)
    studio.cancel(job, grace_seconds=1_000)
    studio.advance(5)
    assert studio.status(job) == "canceled"


def test_all_workers_of_a_job_must_have_stopped(studio: Studio) -> None:
    # R121, C4
    studio.workflow("trio", stages=[stage("draw", tasks=3)])
    job = studio.ask("trio")
    first, second = studio.claim(count=2)
    studio.cancel(job)
    assert studio.claim() == []
    assert studio.fail(first.lease).job_status == "running"
    assert studio.complete(second.lease).job_status == "canceled"
    assert [task.status for task in studio.tasks(job)] == ["canceled", "completed", "canceled"]


def test_a_cancel_between_two_stages_opens_no_further_stage(studio: Studio) -> None:
    # R423, R425
    studio.workflow("film", stages=[stage("draw"), stage("cut")])
    job = studio.ask("film")
    lease = studio.take()
    studio.cancel(job)
    assert studio.complete(lease).job_status == "canceled"
    assert [s.status for s in studio.stages(job)] == ["completed", "canceled"]


def test_while_nothing_runs_a_started_job_is_canceled_at_once(studio: Studio) -> None:
    # C4: in backoff, between a requeue and the next claim, waiting for an approval
    studio.workflow("film", stages=[stage("draw"), stage("cut", gate=True)])
    waiting, backing, given = studio.ask("film", priority=90), studio.ask(), studio.ask()
    studio.complete(studio.take())
    studio.fail(studio.take(), retryable=True)
    studio.requeue(studio.take())
    for job in (waiting, backing, given):
        assert studio.cancel(job).status == "canceled"
    assert studio.balance() == 100


def test_only_a_person_may_cancel(studio: Studio) -> None:
    # R8
    job = studio.ask()
    for actor in ("system", "worker"):
        command = Cancel(tenant="acme", job_id=job, actor=actor)
        assert studio.refused(command).code == "illegal_transition"
    assert studio.status(job) == "queued"


def test_a_job_without_stages_can_be_canceled(studio: Studio) -> None:
    # R105, R408
    studio.workflow("free", stages=[], inline=True)
    job = studio.ask("free")
    assert studio.cancel(job).status == "canceled"
    assert studio.balance() == 100
