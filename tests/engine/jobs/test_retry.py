"""Retry: a new run that is charged again and keeps completed work; the records of earlier runs do not change."""

from typing import Any

import pytest

from callsheet.core.model.commands import Complete, Retry
from callsheet.core.model.errors import BadInput, Conflict
from tests.support.engine.concurrency import run_concurrently
from tests.support.engine.engine_harness import EngineHarness, stage


def records(harness: EngineHarness, job: str, run: int) -> list[Any]:
    """Return the rows of one run."""
    attempts = [a for task in harness.tasks(job) for a in harness.reads.attempts(task.id) if a.run == run]
    events = [event for event in harness.reads.events(job) if event.run == run]
    entries = [entry for entry in harness.reads.ledger("acme", "ada") if (entry.job_id, entry.run) == (job, run)]
    return [harness.runs(job)[run - 1], attempts, events, entries, harness.reads.documents(job)]


def test_a_retry_opens_a_new_run_and_charges_for_it(harness: EngineHarness) -> None:
    # R21, R67, R70, C3
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


def test_a_retry_does_not_change_the_records_of_earlier_runs(harness: EngineHarness) -> None:
    # R297, R315, R430, C3, H19, J9
    harness.workflow("film", stages=[stage("draw"), stage("cut")])
    job = harness.submit_job("film")
    harness.complete(harness.claim_one(), {"n": 1})
    harness.fail(harness.claim_one("cut"), "boom")
    before = records(harness, job, 1)
    harness.retry(job)
    assert records(harness, job, 1) == before
    lease = harness.claim_one("cut")
    harness.heartbeat(lease, progress=10)
    assert records(harness, job, 1)[:4] == before[:4]
    harness.fail(lease, "boom again")
    second = records(harness, job, 2)
    harness.retry(job)
    harness.finish(job, "cut")
    assert records(harness, job, 1)[:4] == before[:4]
    assert records(harness, job, 2)[:4] == second[:4]
    assert [(run.status, run.error_message) for run in harness.runs(job)] == [
        ("failed", "boom"), ("failed", "boom again"), ("completed", None),
    ]  # fmt: skip


def test_a_retry_keeps_completed_tasks(harness: EngineHarness) -> None:
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
    (retried,) = harness.claim("draw", "cut", count=9)
    assert (retried.stage, retried.task_no, retried.lease.attempt) == ("cut", 2, 2)
    assert harness.complete(retried.lease).job_status == "completed"
    assert [d for d in harness.reads.documents(job) if d in outputs] == outputs


def test_a_retry_resets_the_attempt_limit_and_continues_the_attempt_numbers(harness: EngineHarness) -> None:
    # R74, R313, C5, J10
    job = harness.submit_job()
    for _ in range(2):
        for _ in range(3):
            harness.fail(harness.claim_one(), retryable=True)
            harness.advance(100)
        assert harness.status(job) == "failed"
        harness.retry(job)
    assert harness.claim_one().attempt == 7


def test_a_retry_without_enough_credits_changes_nothing(harness: EngineHarness) -> None:
    # R72
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


def test_two_retries_in_one_call_open_one_run(harness: EngineHarness) -> None:
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


def test_late_reports_of_an_earlier_run_change_nothing(harness: EngineHarness) -> None:
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


def test_a_new_run_needs_a_new_approval(harness: EngineHarness) -> None:
    # G6
    harness.workflow("film", stages=[stage("draw", approval=True)])
    job = harness.submit_job("film")
    harness.approve(job, 1)
    harness.fail(harness.claim_one())
    harness.retry(job)
    assert (harness.stages(job)[0].status, harness.stages(job)[0].approved_by) == ("waiting", None)
    harness.approve(job, 1, "cem")
    assert harness.complete(harness.claim_one()).job_status == "completed"


def test_a_retry_can_create_a_new_job_that_refers_to_the_old_one(harness: EngineHarness) -> None:
    # R315, C3, S5
    harness.workflow("film", stages=[stage("draw"), stage("cut")])
    job = harness.submit_job(
        "film", input={"n": 1}, priority=70, labels={"a": "b"}, metadata={"c": 1}, idempotency_key="k"
    )
    harness.fail(harness.claim_one())
    old = records(harness, job, 1)
    fresh = harness.retry(job, retry_as="new_job")
    assert (fresh.job_id != job, fresh.status, fresh.run) == (True, "queued", 1)
    row = harness.job(fresh.job_id)
    assert (row.retry_of, row.priority, row.labels, row.metadata, row.dedup_key) == (
        job, 70, '{"a":"b"}', '{"c":1}', None,
    )  # fmt: skip
    assert (harness.status(job), records(harness, job, 1)) == ("failed", old)
    (leased,) = harness.claim()
    assert leased.input == '{"n":1}'
    harness.complete(leased.lease)
    harness.finish(fresh.job_id, "cut")
    assert harness.ledger(fresh.job_id) == [("reserve", -5, 0), ("consume", 0, 5)]


def test_a_retry_as_a_new_job_copies_the_stages_of_the_old_one(harness: EngineHarness) -> None:
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
def test_a_retry_keeps_the_price_of_the_job(harness: EngineHarness, how: str, quoted: int | None, paid: int) -> None:
    # R178: the workflow's price at submission, or the quoted price
    job = harness.submit_job(price=quoted)
    harness.fail(harness.claim_one())
    harness.workflow(price=50)
    retried = harness.retry(job, retry_as=how)
    assert (harness.job(retried.job_id).price, harness.balance()) == (paid, 100 - paid)


# -- with an idempotency key


def test_repeated_retries_with_one_key_open_one_run(harness: EngineHarness) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    first = harness.retry(job, idempotency_key="k")
    assert harness.retry(job, idempotency_key="k") == first
    harness.fail(harness.claim_one())
    late = harness.retry(job, idempotency_key="k")
    assert (late.status, late.run) == ("failed", 2), "a repeated request opens no run"
    assert harness.retry(job, idempotency_key="another").run == 3
    harness.fail(harness.claim_one())
    assert (harness.retry(job, idempotency_key="k").run, harness.balance()) == (3, 100), "also after later runs"


def test_repeated_retries_with_one_key_create_one_new_job(harness: EngineHarness) -> None:
    job = harness.submit_job(idempotency_key="k")
    harness.fail(harness.claim_one())
    first, second = (harness.retry(job, retry_as="new_job", idempotency_key="k") for _ in range(2))
    assert (second.job_id, second.run) == (first.job_id, first.run)
    assert harness.submit_job(idempotency_key="k") == job, "keys of retries and of submits are separate"
    assert harness.retry(job, retry_as="new_job", idempotency_key="another").job_id != first.job_id
    assert harness.balance() == 90
    harness.delete(first.job_id)
    with pytest.raises(Conflict) as raised:
        harness.retry(job, retry_as="new_job", idempotency_key="k")
    assert raised.value.code == "job_deleted"


@pytest.mark.parametrize("how", ["new_run", "new_job"])
@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb"])
def test_a_retry_with_an_invalid_key_is_refused(harness: EngineHarness, how: str, key: str) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    with pytest.raises(BadInput) as raised:
        harness.retry(job, retry_as=how, idempotency_key=key)
    assert (raised.value.code, harness.balance()) == ("invalid_idempotency_key", 100)


@pytest.mark.parametrize("how", ["new_run", "new_job"])
def test_twenty_concurrent_retries_with_one_key_have_one_effect(harness: EngineHarness, how: str) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    command = Retry(tenant="acme", job_id=job, actor="admin", retry_as=how, idempotency_key="k")  # type: ignore[arg-type]
    states = run_concurrently(*[lambda: harness.do(command)] * 20)
    assert len({(state.job_id, state.run) for state in states}) == 1
    assert harness.balance() == 95
