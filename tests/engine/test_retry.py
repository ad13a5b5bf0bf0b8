"""Retry: a new run beside the untouched record of the old one, paid again, keeping what was completed."""

from typing import Any

import pytest

from callsheet.core.commands import Complete, Retry
from callsheet.core.errors import BadInput, Conflict
from tests.support.racing import at_once
from tests.support.studio import Studio, stage


def evidence(studio: Studio, job: str, run: int) -> list[Any]:
    """Return everything that one run left behind."""
    attempts = [a for task in studio.tasks(job) for a in studio.read.attempts(task.id) if a.run == run]
    events = [event for event in studio.read.events(job) if event.run == run]
    entries = [entry for entry in studio.read.ledger("acme", "ada") if (entry.job_id, entry.run) == (job, run)]
    return [studio.runs(job)[run - 1], attempts, events, entries, studio.read.documents(job)]


def test_a_retry_opens_a_new_run_and_pays_for_it(studio: Studio) -> None:
    # R21, R22, R67, R70, C3
    job = studio.ask(input={"n": 1})
    studio.fail(studio.take(), "boom")
    state = studio.retry(job)
    assert (state.job_id, state.status, state.run) == (job, "queued", 2)
    row = studio.job(job)
    assert (row.error_code, row.error_message, row.started_at, row.finished_at) == (None, None, None, None)
    assert studio.moves(job)[-2:] == [("failed", "pending"), ("pending", "queued")]
    assert studio.balance() == 95
    (leased,) = studio.claim()
    assert (leased.input, leased.lease.attempt) == ('{"n":1}', 2)
    studio.complete(leased.lease)
    assert studio.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0), ("reserve", -5, 0), ("consume", 0, 5)]
    assert [(run.no, run.status) for run in studio.runs(job)] == [(1, "failed"), (2, "completed")]


def test_the_record_of_the_run_before_stays_as_it_was(studio: Studio) -> None:
    # R297, R315, R430, C3, H19, J9
    studio.workflow("film", stages=[stage("draw"), stage("cut")])
    job = studio.ask("film")
    studio.complete(studio.take(), {"n": 1})
    studio.fail(studio.take("cut"), "boom")
    before = evidence(studio, job, 1)
    studio.retry(job)
    assert evidence(studio, job, 1) == before
    lease = studio.take("cut")
    studio.beat(lease, progress=10)
    assert evidence(studio, job, 1)[:4] == before[:4]
    studio.fail(lease, "boom again")
    second = evidence(studio, job, 2)
    studio.retry(job)
    studio.finish(job, "cut")
    assert evidence(studio, job, 1)[:4] == before[:4]
    assert evidence(studio, job, 2)[:4] == second[:4]
    assert [(run.status, run.error_message) for run in studio.runs(job)] == [
        ("failed", "boom"), ("failed", "boom again"), ("completed", None),
    ]  # fmt: skip


def test_completed_work_is_not_done_again(studio: Studio) -> None:
    # R315, C3
    studio.workflow("film", stages=[stage("draw", tasks=2), stage("cut", tasks=2)])
    job = studio.ask("film")
    for leased in studio.claim(count=2):
        studio.complete(leased.lease, {"n": leased.task_no})
    first, second = studio.claim("cut", count=2)
    studio.complete(first.lease, {"kept": True})
    studio.fail(second.lease)
    outputs = [d for d in studio.read.documents(job) if d.name.startswith("output")]
    studio.retry(job)
    assert [s.status for s in studio.stages(job)] == ["completed", "pending"]
    (again,) = studio.claim("draw", "cut", count=9)
    assert (again.stage, again.task_no, again.lease.attempt) == ("cut", 2, 2)
    assert studio.complete(again.lease).job_status == "completed"
    assert [d for d in studio.read.documents(job) if d in outputs] == outputs


def test_every_try_counts_anew_and_its_number_goes_on(studio: Studio) -> None:
    # R74, R313, C5, J10
    job = studio.ask()
    for _ in range(2):
        for _ in range(3):
            studio.fail(studio.take(), retryable=True)
            studio.advance(100)
        assert studio.status(job) == "failed"
        studio.retry(job)
    assert studio.take().attempt == 7


def test_a_retry_needs_funds_and_without_them_changes_nothing(studio: Studio) -> None:
    # R72, H5
    job = studio.ask()
    studio.fail(studio.take(), "boom")
    studio.workflow("all", price=100)
    studio.ask("all")
    before = studio.snapshot()
    for how in ("new_run", "new_job"):
        command = Retry(tenant="acme", job_id=job, retry_as=how)
        assert studio.refused(command).code == "insufficient_credits"
    assert studio.snapshot() == before
    assert (studio.status(job), studio.job(job).error_message) == ("failed", "boom")


def test_two_retries_at_once_open_one_run(studio: Studio) -> None:
    # R73, H18
    job = studio.ask()
    studio.fail(studio.take())
    results = studio.engine.execute_many([Retry(tenant="acme", job_id=job), Retry(tenant="acme", job_id=job)])
    assert sorted(getattr(result, "code", "accepted") for result in results) == ["accepted", "illegal_transition"]
    assert (studio.job(job).run, studio.balance()) == (2, 95)


@pytest.mark.parametrize("how", ["pending", "queued", "running", "paused", "completed", "canceled"])
def test_only_a_failed_or_expired_job_can_be_retried(studio: Studio, how: str) -> None:
    # R71, R113
    job = studio.ask(start_in_seconds=60 if how == "pending" else 0)
    if how in {"running", "completed"}:
        lease = studio.take()
        if how == "completed":
            studio.complete(lease)
    elif how == "paused":
        studio.pause(job)
    elif how == "canceled":
        studio.cancel(job)
    assert studio.status(job) == how
    before = studio.snapshot()
    refusal = studio.refused(Retry(tenant="acme", job_id=job, actor="admin"))
    assert (refusal.code, refusal.details["from_status"]) == ("illegal_transition", how)
    assert studio.snapshot() == before


def test_an_expired_job_can_be_retried(studio: Studio) -> None:
    # R22, R65
    job = studio.ask(deadline_seconds=10)
    studio.advance(10)
    assert studio.retry(job).status == "queued"
    assert studio.complete(studio.take()).job_status == "completed"
    assert studio.balance() == 95


def test_a_worker_of_the_run_before_is_fenced(studio: Studio) -> None:
    # R194, R419, H19
    studio.workflow("pair", stages=[stage("draw", tasks=2)])
    job = studio.ask("pair")
    first, second = studio.claim(count=2)
    studio.fail(first.lease)
    studio.retry(job)
    before = studio.snapshot()
    assert studio.do(Complete(lease=second.lease)).skipped is not None
    assert studio.refused(Complete(lease=first.lease)).code == "lease_lost"
    assert studio.snapshot() == before
    assert len(studio.claim(count=9)) == 2


def test_a_gate_must_be_approved_again_in_a_new_run(studio: Studio) -> None:
    # G6
    studio.workflow("film", stages=[stage("draw", gate=True)])
    job = studio.ask("film")
    studio.approve(job, 1)
    studio.fail(studio.take())
    studio.retry(job)
    assert (studio.stages(job)[0].status, studio.stages(job)[0].approved_by) == ("waiting", None)
    studio.approve(job, 1, "cem")
    assert studio.complete(studio.take()).job_status == "completed"


def test_a_retry_may_make_a_new_job_that_points_to_the_old_one(studio: Studio) -> None:
    # R315, C3, S5
    studio.workflow("film", stages=[stage("draw"), stage("cut")])
    job = studio.ask("film", input={"n": 1}, priority=70, labels={"a": "b"}, metadata={"c": 1}, idempotency_key="k")
    studio.fail(studio.take())
    old = evidence(studio, job, 1)
    fresh = studio.retry(job, retry_as="new_job")
    assert (fresh.job_id != job, fresh.status, fresh.run) == (True, "queued", 1)
    row = studio.job(fresh.job_id)
    assert (row.retry_of, row.priority, row.labels, row.metadata, row.idem) == (
        job, 70, '{"a":"b"}', '{"c":1}', None,
    )  # fmt: skip
    assert (studio.status(job), evidence(studio, job, 1)) == ("failed", old)
    (leased,) = studio.claim()
    assert leased.input == '{"n":1}'
    studio.complete(leased.lease)
    studio.finish(fresh.job_id, "cut")
    assert studio.ledger(fresh.job_id) == [("reserve", -5, 0), ("consume", 0, 5)]


def test_a_new_job_like_one_with_its_own_stages_has_them_too(studio: Studio) -> None:
    # C3
    studio.workflow("free", stages=[], inline=True)
    job = studio.ask("free", stages=[stage("draw", inputs=[{"n": 1}, {"n": 2}]), stage("cut", gate=True)])
    for leased in studio.claim(count=2):
        studio.fail(leased.lease)
    fresh = studio.retry(job, retry_as="new_job").job_id
    assert [(s.name, s.tasks_total, s.gate) for s in studio.stages(fresh)] == [("draw", 2, 0), ("cut", 1, 1)]
    assert [leased.input for leased in studio.claim(count=2)] == ['{"n":1}', '{"n":2}']


@pytest.mark.parametrize("how", ["new_run", "new_job"])
@pytest.mark.parametrize(("quoted", "paid"), [(None, 5), (3, 3)])
def test_what_is_tried_again_keeps_the_price_it_had(studio: Studio, how: str, quoted: int | None, paid: int) -> None:
    # R43, R178: that of its workflow then, or of its quote
    job = studio.ask(price=quoted)
    studio.fail(studio.take())
    studio.workflow(price=50)
    again = studio.retry(job, retry_as=how)
    assert (studio.job(again.job_id).price, studio.balance()) == (paid, 100 - paid)


# -- with a key


def test_a_retry_with_a_key_opens_one_run_however_often_it_is_sent(studio: Studio) -> None:
    job = studio.ask()
    studio.fail(studio.take())
    first = studio.retry(job, idempotency_key="k")
    assert studio.retry(job, idempotency_key="k") == first
    studio.fail(studio.take())
    late = studio.retry(job, idempotency_key="k")
    assert (late.status, late.run) == ("failed", 2), "a late copy opens nothing"
    assert studio.retry(job, idempotency_key="another").run == 3
    studio.fail(studio.take())
    assert (studio.retry(job, idempotency_key="k").run, studio.balance()) == (3, 100), "however late it is"


def test_a_retry_with_a_key_makes_one_new_job_however_often_it_is_sent(studio: Studio) -> None:
    job = studio.ask(idempotency_key="k")
    studio.fail(studio.take())
    first, second = (studio.retry(job, retry_as="new_job", idempotency_key="k") for _ in range(2))
    assert (second.job_id, second.run) == (first.job_id, first.run)
    assert studio.ask(idempotency_key="k") == job, "a retry's keys are no submit's keys"
    assert studio.retry(job, retry_as="new_job", idempotency_key="another").job_id != first.job_id
    assert studio.balance() == 90
    studio.delete(first.job_id)
    with pytest.raises(Conflict) as raised:
        studio.retry(job, retry_as="new_job", idempotency_key="k")
    assert raised.value.code == "job_deleted"


@pytest.mark.parametrize("how", ["new_run", "new_job"])
@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb"])
def test_a_key_of_a_retry_that_is_none_is_refused(studio: Studio, how: str, key: str) -> None:
    job = studio.ask()
    studio.fail(studio.take())
    with pytest.raises(BadInput) as raised:
        studio.retry(job, retry_as=how, idempotency_key=key)
    assert (raised.value.code, studio.balance()) == ("invalid_idempotency_key", 100)


@pytest.mark.parametrize("how", ["new_run", "new_job"])
def test_twenty_retries_with_one_key_at_once_are_one(studio: Studio, how: str) -> None:
    job = studio.ask()
    studio.fail(studio.take())
    command = Retry(tenant="acme", job_id=job, actor="admin", retry_as=how, idempotency_key="k")  # type: ignore[arg-type]
    states = at_once(*[lambda: studio.do(command)] * 20)
    assert len({(state.job_id, state.run) for state in states}) == 1
    assert studio.balance() == 95
