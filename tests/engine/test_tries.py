"""Tries: a lost lease counts and is tried again after a pause, a requeue is forgiven, and both have a limit."""

import pytest

from callsheet.core.recipe import Backoff, Retry
from tests.support.studio import Studio

STEADY = Backoff(base_seconds=10, factor=3, max_seconds=60, jitter=0)


def charged(studio: Studio, job: str) -> tuple[int, int, int]:
    (task,) = studio.tasks(job)
    return task.attempts, task.attempts_charged, task.requeues


def test_a_lease_that_runs_out_is_tried_again_after_a_pause(studio: Studio) -> None:
    # R151, R186, R307, C7, H6, V2
    studio.workflow(retry=Retry(backoff=STEADY))
    job = studio.ask()
    lease = studio.take(lease_seconds=30)
    assert studio.advance(29.9) == 0
    assert studio.advance(0.1) == 1
    (task,) = studio.tasks(job)
    assert (task.status, task.error_code, studio.status(job)) == ("retried", "lease_expired", "running")
    assert studio.claim() == []
    assert studio.advance(9.9) == 0
    assert studio.advance(0.1) == 1
    again = studio.take(worker="w2")
    assert (again.attempt, charged(studio, job)) == (2, (2, 2, 0))
    outcomes = [(a.no, a.outcome, a.worker_id) for a in studio.read.attempts(lease.task_id)]
    assert outcomes == [(1, "lost", "w1"), (2, None, "w2")]


def test_a_lease_lives_until_it_is_swept(studio: Studio) -> None:
    # R186: the sweeper alone ends a lease, so a late worker that comes before it still counts
    studio.ask()
    lease = studio.take(lease_seconds=30)
    studio.clock.advance(31)
    assert studio.claim(worker="w2") == []
    assert studio.complete(lease).job_status == "completed"


def test_the_last_lost_lease_fails_the_job_and_refunds_it(studio: Studio) -> None:
    # R7, R74, R189, R192, R417, G7, V4
    studio.workflow(retry=Retry(tries_max=3, backoff=STEADY))
    job = studio.ask()
    for no in (1, 2, 3):
        assert studio.take(lease_seconds=5).attempt == no
        studio.advance(5)
        studio.advance(60)
    row = studio.job(job)
    assert (row.status, row.error_code) == ("failed", "lease_expired")
    assert studio.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]
    assert studio.claim() == []
    assert [a.outcome for a in studio.read.attempts(studio.tasks(job)[0].id)] == ["lost"] * 3


def test_the_pause_grows_and_has_a_limit(studio: Studio) -> None:
    # R74, L12
    studio.workflow(retry=Retry(tries_max=5, backoff=STEADY))
    job = studio.ask()
    waits = []
    for _ in range(4):
        studio.fail(studio.take(), retryable=True)
        (task,) = studio.tasks(job)
        waits.append(((task.ready_at or 0) - studio.clock.now()) / 1_000_000)
        studio.advance(60)
    assert waits == [10, 30, 60, 60]


def test_the_jitter_stays_within_its_bounds_and_spreads(studio: Studio) -> None:
    # L12
    studio.workflow(retry=Retry(backoff=Backoff(base_seconds=100, jitter=0.2)))
    jobs = [studio.ask() for _ in range(10)]
    for leased in studio.claim(count=10):
        studio.fail(leased.lease, retryable=True)
    waits = {((studio.tasks(job)[0].ready_at or 0) - studio.clock.now()) / 1_000_000 for job in jobs}
    assert all(80 <= wait <= 120 for wait in waits)
    assert len(waits) > 5


@pytest.mark.parametrize(
    ("policy", "retryable", "again"),
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
def test_the_recipe_reads_the_workers_word(studio: Studio, policy: str, retryable: bool | None, again: bool) -> None:
    # R74, R75, R254, R413, R414, C6
    studio.workflow(retry=Retry(on=policy, backoff=STEADY))  # type: ignore[arg-type]
    job = studio.ask()
    state = studio.fail(studio.take(), retryable=retryable)
    assert (state.status, state.job_status) == (("retried", "running") if again else ("failed", "failed"))
    studio.advance(60)
    assert len(studio.claim()) == int(again)
    assert studio.balance() == (95 if again else 100), job


def test_failures_are_tried_until_the_limit(studio: Studio) -> None:
    # R74, R76, R410, R413, R417
    studio.workflow(retry=Retry(tries_max=2, on="any", backoff=STEADY))
    job = studio.ask()
    assert studio.fail(studio.take(), "first", retryable=True).status == "retried"
    studio.advance(10)
    assert studio.fail(studio.take(), "second", retryable=True).job_status == "failed"
    attempts = studio.read.attempts(studio.tasks(job)[0].id)
    assert [(a.outcome, a.error_message, a.forgiven) for a in attempts] == [
        ("failed", "first", 0), ("failed", "second", 0),
    ]  # fmt: skip


def test_a_requeue_is_forgiven_and_handed_out_at_once(studio: Studio) -> None:
    # R185, R257, R258, R259, R260, R261, C5, H25, G8
    job = studio.ask()
    lease = studio.take()
    state = studio.requeue(lease, "spot notice")
    assert (state.status, state.job_status) == ("retried", "running")
    (task,) = studio.tasks(job)
    assert (task.token_hash, task.lease_expires_at, task.error_message) == (None, None, "Requeued: spot notice")
    assert charged(studio, job) == (1, 0, 1)
    assert studio.take().attempt == 2
    assert charged(studio, job) == (2, 1, 1)
    assert studio.ledger(job) == [("reserve", -5, 0)]


def test_a_task_given_back_goes_to_the_head_of_its_queue(studio: Studio) -> None:
    # R260
    first = studio.ask()
    for _ in range(3):
        studio.ask()
    studio.requeue(studio.take())
    assert studio.take().job_id == first


def test_giving_back_for_ever_has_a_limit_of_its_own(studio: Studio) -> None:
    # R262, G7
    studio.workflow(retry=Retry(requeues_max=3))
    job = studio.ask()
    for _ in range(3):
        assert studio.requeue(studio.take()).job_status == "running"
    assert studio.requeue(studio.take()).job_status == "failed"
    row = studio.job(job)
    assert (row.error_code, studio.balance()) == ("requeue_exhausted", 100)


def test_a_hundred_requeues_are_charged_once(studio: Studio) -> None:
    # R261
    studio.workflow(retry=Retry(requeues_max=100))
    job = studio.ask()
    for _ in range(100):
        studio.requeue(studio.take())
    studio.complete(studio.take())
    assert studio.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5)]
    assert charged(studio, job) == (101, 1, 100)


def test_a_job_stays_running_through_all_its_tries(studio: Studio) -> None:
    # R23, R115, R116, C5
    job = studio.ask()
    studio.requeue(studio.take())
    studio.fail(studio.take(), retryable=True)
    studio.advance(10)
    studio.take(lease_seconds=1)
    studio.advance(1)
    studio.advance(60)
    studio.complete(studio.take())
    assert studio.moves(job) == [(None, "queued"), ("queued", "running"), ("running", "completed")]
