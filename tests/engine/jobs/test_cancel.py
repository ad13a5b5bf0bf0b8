"""Canceling: at once if no task runs, else when the workers acknowledge it or the grace period ends."""

import pytest

from callsheet.core.model.commands import Cancel, Complete, Fail
from tests.support.engine.engine_harness import EngineHarness, stage


def test_a_queued_job_is_canceled_at_once_and_never_leased(harness: EngineHarness) -> None:
    # R16, R105, R111, R117, R122, R123
    job = harness.submit_job()
    state = harness.cancel(job, reason="Changed my mind.")
    assert (state.status, state.cancel_requested, state.changed) == ("canceled", True, True)
    row = harness.job(job)
    assert (row.started_at, row.finished_at, row.error_code, row.error_message) == (
        None, harness.clock.now(), "canceled", "Changed my mind.",
    )  # fmt: skip
    assert (harness.claim(), harness.balance()) == ([], 100)
    assert harness.moves(job) == [(None, "queued"), ("queued", "canceled")]


def test_a_running_job_is_canceled_when_its_worker_acknowledges_the_request(harness: EngineHarness) -> None:
    # R108, R120, R121, R229, C4
    job = harness.submit_job()
    lease = harness.claim_one()
    assert harness.heartbeat(lease).cancel is False
    state = harness.cancel(job)
    assert (state.status, state.cancel_requested) == ("running", True)
    assert harness.job(job).cancel_requested_at == harness.clock.now()
    assert harness.heartbeat(lease).cancel is True
    assert harness.fail(lease, "stopping").job_status == "canceled"
    assert harness.job(job).error_message == "Canceled by request."
    assert harness.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]
    assert harness.moves(job)[-1] == ("running", "canceled")


@pytest.mark.parametrize("retryable", [True, False, None])
def test_no_attempt_follows_a_failure_after_a_cancel(harness: EngineHarness, retryable: bool | None) -> None:
    # R122
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.cancel(job)
    assert harness.fail(lease, retryable=retryable).status == "canceled"
    assert harness.advance(1_000) == 0
    assert harness.claim() == []


def test_a_worker_can_acknowledge_a_cancel_by_requeueing_the_task(harness: EngineHarness) -> None:
    # C4
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.cancel(job)
    assert harness.requeue(lease).job_status == "canceled"


def test_repeated_cancel_requests_have_one_effect(harness: EngineHarness) -> None:
    # R126
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.cancel(job)
    assert [harness.cancel(job).changed for _ in range(5)] == [False] * 5
    assert harness.events(job).count("job.cancel_requested") == 1
    harness.fail(lease)
    assert harness.cancel(job).changed is False
    assert harness.events(job).count("job.canceled") == 1


def test_a_completion_before_the_grace_period_ends_wins(harness: EngineHarness) -> None:
    # R128, C4, H10
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.cancel(job, grace_seconds=30)
    assert harness.advance(29.9) == 0
    assert harness.complete(lease).job_status == "completed"
    row = harness.job(job)
    assert (row.status, row.cancel_requested_at is not None, row.error_code) == ("completed", True, None)
    assert harness.ledger(job)[-1] == ("consume", 0, 5)
    assert harness.advance(100) == 0


def test_after_the_grace_period_the_job_is_canceled_and_late_reports_change_nothing(harness: EngineHarness) -> None:
    # R252, R419, C4, H17
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.cancel(job, grace_seconds=30)
    assert harness.advance(30) == 1
    assert harness.status(job) == "canceled"
    (attempt,) = harness.reads.attempts(lease.task_id)
    assert (attempt.outcome, attempt.uncounted) == ("canceled", 1)
    before = harness.snapshot()
    heartbeat = harness.heartbeat(lease)
    assert (heartbeat.cancel, heartbeat.lease_seconds) == (True, 0)
    for report in (Complete(lease=lease, output=1), Fail(lease=lease)):
        state = harness.do(report)
        assert (state.job_status, state.skipped) == ("canceled", "The job is canceled.")
    assert harness.snapshot() == before
    assert harness.balance() == 100


def test_a_cancel_without_a_grace_period_takes_effect_at_once(harness: EngineHarness) -> None:
    # R19, R78, R381, C4
    job = harness.submit_job()
    lease = harness.claim_one()
    assert harness.cancel(job, grace_seconds=0, actor="admin").status == "canceled"
    assert harness.complete(lease).skipped == "The job is canceled."
    assert [event.actor for event in harness.reads.events(job)][-1] == "admin"


def test_a_second_cancel_can_shorten_the_grace_period_and_never_extends_it(harness: EngineHarness) -> None:
    # C4
    job, other = harness.submit_job(), harness.submit_job()
    harness.claim(count=2)
    harness.cancel(job, grace_seconds=100)
    harness.cancel(job, grace_seconds=10)
    harness.cancel(job, grace_seconds=1_000)
    harness.advance(10)
    assert harness.status(job) == "canceled"
    harness.cancel(other, grace_seconds=100)
    assert harness.cancel(other, grace_seconds=0).status == "canceled"


def test_the_workflow_sets_the_default_grace_period(harness: EngineHarness) -> None:
    # C4
    harness.workflow(cancel_grace_seconds=7)
    job = harness.submit_job()
    harness.claim_one()
    harness.cancel(job)
    harness.advance(6.9)
    assert harness.status(job) == "running"
    harness.advance(0.1)
    assert harness.status(job) == "canceled"


def test_a_cancel_takes_effect_when_the_lease_of_a_dead_worker_expires(harness: EngineHarness) -> None:
    # C4
    job = harness.submit_job()
    harness.claim_one(lease_seconds=5)
    harness.cancel(job, grace_seconds=1_000)
    harness.advance(5)
    assert harness.status(job) == "canceled"


def test_a_cancel_waits_until_all_workers_of_the_job_have_stopped(harness: EngineHarness) -> None:
    # R108, C4
    harness.workflow("trio", stages=[stage("draw", tasks=3)])
    job = harness.submit_job("trio")
    first, second = harness.claim(count=2)
    harness.cancel(job)
    assert harness.claim() == []
    assert harness.fail(first.lease).job_status == "running"
    assert harness.complete(second.lease).job_status == "canceled"
    assert [task.status for task in harness.tasks(job)] == ["canceled", "completed", "canceled"]


def test_a_cancel_between_two_stages_opens_no_further_stage(harness: EngineHarness) -> None:
    # R423
    harness.workflow("film", stages=[stage("draw"), stage("cut")])
    job = harness.submit_job("film")
    lease = harness.claim_one()
    harness.cancel(job)
    assert harness.complete(lease).job_status == "canceled"
    assert [s.status for s in harness.stages(job)] == ["completed", "canceled"]


def test_a_started_job_without_running_tasks_is_canceled_at_once(harness: EngineHarness) -> None:
    # C4: in backoff, between a requeue and the next claim, waiting for an approval
    harness.workflow("film", stages=[stage("draw"), stage("cut", approval=True)])
    waiting, in_backoff, requeued = harness.submit_job("film", priority=90), harness.submit_job(), harness.submit_job()
    harness.complete(harness.claim_one())
    harness.fail(harness.claim_one(), retryable=True)
    harness.requeue(harness.claim_one())
    for job in (waiting, in_backoff, requeued):
        assert harness.cancel(job).status == "canceled"
    assert harness.balance() == 100


def test_only_a_user_or_an_admin_can_cancel(harness: EngineHarness) -> None:
    # R8
    job = harness.submit_job()
    for actor in ("system", "worker"):
        command = Cancel(tenant="acme", job_id=job, actor=actor)
        assert harness.expect_refusal(command).code == "illegal_transition"
    assert harness.status(job) == "queued"


def test_a_job_without_stages_can_be_canceled(harness: EngineHarness) -> None:
    # R105
    harness.workflow("free", stages=[], inline=True)
    job = harness.submit_job("free")
    assert harness.cancel(job).status == "canceled"
    assert harness.balance() == 100
