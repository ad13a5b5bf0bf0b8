"""Attempts: a lost lease counts and is retried after a backoff, a requeue does not count, and both have a limit."""

import pytest

from callsheet.core.model.workflow_definition import Backoff, RetryPolicy
from tests.support.engine.engine_harness import EngineHarness

STEADY = Backoff(base_seconds=10, factor=3, max_seconds=60, jitter=0)


def attempt_counts(harness: EngineHarness, job: str) -> tuple[int, int, int]:
    (task,) = harness.tasks(job)
    return task.attempts, task.attempts_counted, task.requeues


def test_a_task_with_an_expired_lease_is_retried_after_a_backoff(harness: EngineHarness) -> None:
    # R151, R186, R307, C7, H6, V2
    harness.workflow(retry=RetryPolicy(backoff=STEADY))
    job = harness.submit_job()
    lease = harness.claim_one(lease_seconds=30)
    assert harness.advance(29.9) == 0
    assert harness.advance(0.1) == 1
    (task,) = harness.tasks(job)
    assert (task.status, task.error_code, harness.status(job)) == ("retried", "lease_expired", "running")
    assert harness.claim() == []
    assert harness.advance(9.9) == 0
    assert harness.advance(0.1) == 1
    retried = harness.claim_one(worker="w2")
    assert (retried.attempt, attempt_counts(harness, job)) == (2, (2, 2, 0))
    outcomes = [(a.no, a.outcome, a.worker_id) for a in harness.reads.attempts(lease.task_id)]
    assert outcomes == [(1, "lost", "w1"), (2, None, "w2")]


def test_the_last_lost_lease_fails_and_refunds_the_job(harness: EngineHarness) -> None:
    # R7, R74, R189, R192, R417, G7, V4
    harness.workflow(retry=RetryPolicy(attempts_max=3, backoff=STEADY))
    job = harness.submit_job()
    for no in (1, 2, 3):
        assert harness.claim_one(lease_seconds=5).attempt == no
        harness.advance(5)
        harness.advance(60)
    row = harness.job(job)
    assert (row.status, row.error_code) == ("failed", "lease_expired")
    assert harness.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]
    assert harness.claim() == []
    assert [a.outcome for a in harness.reads.attempts(harness.tasks(job)[0].id)] == ["lost"] * 3


def test_the_backoff_grows_up_to_its_maximum(harness: EngineHarness) -> None:
    # R74, L12
    harness.workflow(retry=RetryPolicy(attempts_max=5, backoff=STEADY))
    job = harness.submit_job()
    waits = []
    for _ in range(4):
        harness.fail(harness.claim_one(), retryable=True)
        (task,) = harness.tasks(job)
        waits.append(((task.ready_at or 0) - harness.clock.now()) / 1_000_000)
        harness.advance(60)
    assert waits == [10, 30, 60, 60]


def test_the_jitter_of_a_backoff_stays_within_its_bounds(harness: EngineHarness) -> None:
    # L12
    harness.workflow(retry=RetryPolicy(backoff=Backoff(base_seconds=100, jitter=0.2)))
    jobs = [harness.submit_job() for _ in range(10)]
    for leased in harness.claim(count=10):
        harness.fail(leased.lease, retryable=True)
    waits = {((harness.tasks(job)[0].ready_at or 0) - harness.clock.now()) / 1_000_000 for job in jobs}
    assert all(80 <= wait <= 120 for wait in waits)
    assert len(waits) > 5


@pytest.mark.parametrize(
    ("policy", "retryable", "retried"),
    [
        ("never", True, False),
        ("transient", True, True),
        ("transient", None, False),
        ("transient", False, False),
        ("any", True, True),
        ("any", None, True),
        ("any", False, False),
    ],
)
def test_the_retry_policy_reads_the_retryable_flag_of_the_worker(
    harness: EngineHarness, policy: str, retryable: bool | None, retried: bool
) -> None:
    # R74, R75, R254, R413, R414, C6
    harness.workflow(retry=RetryPolicy(on=policy, backoff=STEADY))  # type: ignore[arg-type]
    job = harness.submit_job()
    state = harness.fail(harness.claim_one(), retryable=retryable)
    assert (state.status, state.job_status) == (("retried", "running") if retried else ("failed", "failed"))
    harness.advance(60)
    assert len(harness.claim()) == int(retried)
    assert harness.balance() == (95 if retried else 100), job


def test_failed_attempts_are_retried_up_to_the_limit(harness: EngineHarness) -> None:
    # R74, R76, R410, R413, R417
    harness.workflow(retry=RetryPolicy(attempts_max=2, on="any", backoff=STEADY))
    job = harness.submit_job()
    assert harness.fail(harness.claim_one(), "first", retryable=True).status == "retried"
    harness.advance(10)
    assert harness.fail(harness.claim_one(), "second", retryable=True).job_status == "failed"
    attempts = harness.reads.attempts(harness.tasks(job)[0].id)
    assert [(a.outcome, a.error_message, a.uncounted) for a in attempts] == [
        ("failed", "first", 0), ("failed", "second", 0),
    ]  # fmt: skip


def test_a_requeued_task_counts_no_attempt_and_is_claimable_at_once(harness: EngineHarness) -> None:
    # R185, R258, R259, R260, R261, C5, H25, G8
    job = harness.submit_job()
    lease = harness.claim_one()
    state = harness.requeue(lease, "spot notice")
    assert (state.status, state.job_status) == ("retried", "running")
    (task,) = harness.tasks(job)
    assert (task.token_hash, task.lease_expires_at, task.error_message) == (None, None, "Requeued: spot notice")
    assert attempt_counts(harness, job) == (1, 0, 1)
    assert harness.claim_one().attempt == 2
    assert attempt_counts(harness, job) == (2, 1, 1)
    assert harness.ledger(job) == [("reserve", -5, 0)]


def test_a_requeued_task_goes_to_the_head_of_its_queue(harness: EngineHarness) -> None:
    # R260
    first = harness.submit_job()
    for _ in range(3):
        harness.submit_job()
    harness.requeue(harness.claim_one())
    assert harness.claim_one().job_id == first


def test_the_number_of_requeues_is_limited(harness: EngineHarness) -> None:
    # R262, G7
    harness.workflow(retry=RetryPolicy(requeues_max=3))
    job = harness.submit_job()
    for _ in range(3):
        assert harness.requeue(harness.claim_one()).job_status == "running"
    assert harness.requeue(harness.claim_one()).job_status == "failed"
    row = harness.job(job)
    assert (row.error_code, harness.balance()) == ("requeue_exhausted", 100)


def test_a_hundred_requeues_are_charged_once(harness: EngineHarness) -> None:
    # R261
    harness.workflow(retry=RetryPolicy(requeues_max=100))
    job = harness.submit_job()
    for _ in range(100):
        harness.requeue(harness.claim_one())
    harness.complete(harness.claim_one())
    assert harness.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5)]
    assert attempt_counts(harness, job) == (101, 1, 100)


def test_a_job_stays_running_through_all_its_attempts(harness: EngineHarness) -> None:
    # R115, C5
    job = harness.submit_job()
    harness.requeue(harness.claim_one())
    harness.fail(harness.claim_one(), retryable=True)
    harness.advance(10)
    harness.claim_one(lease_seconds=1)
    harness.advance(1)
    harness.advance(60)
    harness.complete(harness.claim_one())
    assert harness.moves(job) == [(None, "queued"), ("queued", "running"), ("running", "completed")]
