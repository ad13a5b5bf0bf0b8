"""Retry: a new run beside the untouched record of the old one, paid again, keeping what was completed."""

from typing import Any

import pytest

from callsheet.core.model.commands import Complete, Retry
from callsheet.core.model.errors import BadInput, Conflict
from tests.support.engine.concurrency import run_concurrently
from tests.support.engine.engine_harness import EngineHarness, stage


def evidence(harness: EngineHarness, job: str, run: int) -> list[Any]:
    """Return everything that one run left behind."""
    attempts = [a for task in harness.tasks(job) for a in harness.reads.attempts(task.id) if a.run == run]
    events = [event for event in harness.reads.events(job) if event.run == run]
    entries = [entry for entry in harness.reads.ledger("acme", "ada") if (entry.job_id, entry.run) == (job, run)]
    return [harness.runs(job)[run - 1], attempts, events, entries, harness.reads.documents(job)]


def test_a_retry_opens_a_new_run_and_pays_for_it(harness: EngineHarness) -> None:
    # R21, R22, R67, R70, C3
    job = harness.submit_job(input={"n": 1})
    harness.fail(harness.claim_one(), "boom")
    state = harness.retry(job)
    assert (state.job_id, state.status, state.run) == (job, "queued", 2)
    row = harness.job(job)
    assert (row.error_code, row.error_message, row.started_at, row.finished_at) == (None, None, None, None)
    assert harness.moves(job)[-2:] == [("failed", "pending"), ("pending", "queued")]
    assert harness.balance() == 95
    (leased,) = harness.claim()
    assert (leased.input, leased.lease.attempt) == ('{"n":1}', 2)
    harness.complete(leased.lease)
    assert harness.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0), ("reserve", -5, 0), ("consume", 0, 5)]
    assert [(run.no, run.status) for run in harness.runs(job)] == [(1, "failed"), (2, "completed")]


def test_the_record_of_the_run_before_stays_as_it_was(harness: EngineHarness) -> None:
    # R297, R315, R430, C3, H19, J9
    harness.workflow("film", stages=[stage("draw"), stage("cut")])
    job = harness.submit_job("film")
    harness.complete(harness.claim_one(), {"n": 1})
    harness.fail(harness.claim_one("cut"), "boom")
    before = evidence(harness, job, 1)
    harness.retry(job)
    assert evidence(harness, job, 1) == before
    lease = harness.claim_one("cut")
    harness.heartbeat(lease, progress=10)
    assert evidence(harness, job, 1)[:4] == before[:4]
    harness.fail(lease, "boom again")
    second = evidence(harness, job, 2)
    harness.retry(job)
    harness.finish(job, "cut")
    assert evidence(harness, job, 1)[:4] == before[:4]
    assert evidence(harness, job, 2)[:4] == second[:4]
    assert [(run.status, run.error_message) for run in harness.runs(job)] == [
        ("failed", "boom"), ("failed", "boom again"), ("completed", None),
    ]  # fmt: skip


def test_completed_work_is_not_done_again(harness: EngineHarness) -> None:
    # R315, C3
    harness.workflow("film", stages=[stage("draw", tasks=2), stage("cut", tasks=2)])
    job = harness.submit_job("film")
    for leased in harness.claim(count=2):
        harness.complete(leased.lease, {"n": leased.task_no})
    first, second = harness.claim("cut", count=2)
    harness.complete(first.lease, {"kept": True})
    harness.fail(second.lease)
    outputs = [d for d in harness.reads.documents(job) if d.name.startswith("output")]
    harness.retry(job)
    assert [s.status for s in harness.stages(job)] == ["completed", "pending"]
    (again,) = harness.claim("draw", "cut", count=9)
    assert (again.stage, again.task_no, again.lease.attempt) == ("cut", 2, 2)
    assert harness.complete(again.lease).job_status == "completed"
    assert [d for d in harness.reads.documents(job) if d in outputs] == outputs


def test_every_attempt_counts_anew_and_its_number_goes_on(harness: EngineHarness) -> None:
    # R74, R313, C5, J10
    job = harness.submit_job()
    for _ in range(2):
        for _ in range(3):
            harness.fail(harness.claim_one(), retryable=True)
            harness.advance(100)
        assert harness.status(job) == "failed"
        harness.retry(job)
    assert harness.claim_one().attempt == 7


def test_a_retry_needs_funds_and_without_them_changes_nothing(harness: EngineHarness) -> None:
    # R72, H5
    job = harness.submit_job()
    harness.fail(harness.claim_one(), "boom")
    harness.workflow("all", price=100)
    harness.submit_job("all")
    before = harness.snapshot()
    for how in ("new_run", "new_job"):
        command = Retry(tenant="acme", job_id=job, retry_as=how)
        assert harness.expect_refusal(command).code == "insufficient_credits"
    assert harness.snapshot() == before
    assert (harness.status(job), harness.job(job).error_message) == ("failed", "boom")


def test_two_retries_at_once_open_one_run(harness: EngineHarness) -> None:
    # R73, H18
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    results = harness.engine.execute_many([Retry(tenant="acme", job_id=job), Retry(tenant="acme", job_id=job)])
    assert sorted(getattr(result, "code", "accepted") for result in results) == ["accepted", "illegal_transition"]
    assert (harness.job(job).run, harness.balance()) == (2, 95)


@pytest.mark.parametrize("how", ["pending", "queued", "running", "paused", "completed", "canceled"])
def test_only_a_failed_or_expired_job_can_be_retried(harness: EngineHarness, how: str) -> None:
    # R71, R113
    job = harness.submit_job(start_in_seconds=60 if how == "pending" else 0)
    if how in {"running", "completed"}:
        lease = harness.claim_one()
        if how == "completed":
            harness.complete(lease)
    elif how == "paused":
        harness.pause(job)
    elif how == "canceled":
        harness.cancel(job)
    assert harness.status(job) == how
    before = harness.snapshot()
    refusal = harness.expect_refusal(Retry(tenant="acme", job_id=job, actor="admin"))
    assert (refusal.code, refusal.details["from_status"]) == ("illegal_transition", how)
    assert harness.snapshot() == before


def test_an_expired_job_can_be_retried(harness: EngineHarness) -> None:
    # R22, R65
    job = harness.submit_job(deadline_seconds=10)
    harness.advance(10)
    assert harness.retry(job).status == "queued"
    assert harness.complete(harness.claim_one()).job_status == "completed"
    assert harness.balance() == 95


def test_a_worker_of_the_run_before_is_fenced(harness: EngineHarness) -> None:
    # R194, R419, H19
    harness.workflow("pair", stages=[stage("draw", tasks=2)])
    job = harness.submit_job("pair")
    first, second = harness.claim(count=2)
    harness.fail(first.lease)
    harness.retry(job)
    before = harness.snapshot()
    assert harness.do(Complete(lease=second.lease)).skipped is not None
    assert harness.expect_refusal(Complete(lease=first.lease)).code == "lease_lost"
    assert harness.snapshot() == before
    assert len(harness.claim(count=9)) == 2


def test_an_approval_is_needed_again_in_a_new_run(harness: EngineHarness) -> None:
    # G6
    harness.workflow("film", stages=[stage("draw", approval=True)])
    job = harness.submit_job("film")
    harness.approve(job, 1)
    harness.fail(harness.claim_one())
    harness.retry(job)
    assert (harness.stages(job)[0].status, harness.stages(job)[0].approved_by) == ("waiting", None)
    harness.approve(job, 1, "cem")
    assert harness.complete(harness.claim_one()).job_status == "completed"


def test_a_retry_may_make_a_new_job_that_points_to_the_old_one(harness: EngineHarness) -> None:
    # R315, C3, S5
    harness.workflow("film", stages=[stage("draw"), stage("cut")])
    job = harness.submit_job(
        "film", input={"n": 1}, priority=70, labels={"a": "b"}, metadata={"c": 1}, idempotency_key="k"
    )
    harness.fail(harness.claim_one())
    old = evidence(harness, job, 1)
    fresh = harness.retry(job, retry_as="new_job")
    assert (fresh.job_id != job, fresh.status, fresh.run) == (True, "queued", 1)
    row = harness.job(fresh.job_id)
    assert (row.retry_of, row.priority, row.labels, row.metadata, row.dedup_key) == (
        job, 70, '{"a":"b"}', '{"c":1}', None,
    )  # fmt: skip
    assert (harness.status(job), evidence(harness, job, 1)) == ("failed", old)
    (leased,) = harness.claim()
    assert leased.input == '{"n":1}'
    harness.complete(leased.lease)
    harness.finish(fresh.job_id, "cut")
    assert harness.ledger(fresh.job_id) == [("reserve", -5, 0), ("consume", 0, 5)]


def test_a_new_job_like_one_with_its_own_stages_has_them_too(harness: EngineHarness) -> None:
    # C3
    harness.workflow("free", stages=[], inline=True)
    job = harness.submit_job("free", stages=[stage("draw", inputs=[{"n": 1}, {"n": 2}]), stage("cut", approval=True)])
    for leased in harness.claim(count=2):
        harness.fail(leased.lease)
    fresh = harness.retry(job, retry_as="new_job").job_id
    assert [(s.name, s.tasks_total, s.approval) for s in harness.stages(fresh)] == [("draw", 2, 0), ("cut", 1, 1)]
    assert [leased.input for leased in harness.claim(count=2)] == ['{"n":1}', '{"n":2}']


@pytest.mark.parametrize("how", ["new_run", "new_job"])
@pytest.mark.parametrize(("quoted", "paid"), [(None, 5), (3, 3)])
def test_what_is_tried_again_keeps_the_price_it_had(
    harness: EngineHarness, how: str, quoted: int | None, paid: int
) -> None:
    # R43, R178: that of its workflow then, or of its quote
    job = harness.submit_job(price=quoted)
    harness.fail(harness.claim_one())
    harness.workflow(price=50)
    again = harness.retry(job, retry_as=how)
    assert (harness.job(again.job_id).price, harness.balance()) == (paid, 100 - paid)


# -- with a key


def test_a_retry_with_a_key_opens_one_run_however_often_it_is_sent(harness: EngineHarness) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    first = harness.retry(job, idempotency_key="k")
    assert harness.retry(job, idempotency_key="k") == first
    harness.fail(harness.claim_one())
    late = harness.retry(job, idempotency_key="k")
    assert (late.status, late.run) == ("failed", 2), "a late copy opens nothing"
    assert harness.retry(job, idempotency_key="another").run == 3
    harness.fail(harness.claim_one())
    assert (harness.retry(job, idempotency_key="k").run, harness.balance()) == (3, 100), "however late it is"


def test_a_retry_with_a_key_makes_one_new_job_however_often_it_is_sent(harness: EngineHarness) -> None:
    job = harness.submit_job(idempotency_key="k")
    harness.fail(harness.claim_one())
    first, second = (harness.retry(job, retry_as="new_job", idempotency_key="k") for _ in range(2))
    assert (second.job_id, second.run) == (first.job_id, first.run)
    assert harness.submit_job(idempotency_key="k") == job, "a retry's keys are no submit's keys"
    assert harness.retry(job, retry_as="new_job", idempotency_key="another").job_id != first.job_id
    assert harness.balance() == 90
    harness.delete(first.job_id)
    with pytest.raises(Conflict) as raised:
        harness.retry(job, retry_as="new_job", idempotency_key="k")
    assert raised.value.code == "job_deleted"


@pytest.mark.parametrize("how", ["new_run", "new_job"])
@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb"])
def test_a_key_of_a_retry_that_is_none_is_refused(harness: EngineHarness, how: str, key: str) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    with pytest.raises(BadInput) as raised:
        harness.retry(job, retry_as=how, idempotency_key=key)
    assert (raised.value.code, harness.balance()) == ("invalid_idempotency_key", 100)


@pytest.mark.parametrize("how", ["new_run", "new_job"])
def test_twenty_retries_with_one_key_at_once_are_one(harness: EngineHarness, how: str) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    command = Retry(tenant="acme", job_id=job, actor="admin", retry_as=how, idempotency_key="k")  # type: ignore[arg-type]
    states = run_concurrently(*[lambda: harness.do(command)] * 20)
    assert len({(state.job_id, state.run) for state in states}) == 1
    assert harness.balance() == 95
