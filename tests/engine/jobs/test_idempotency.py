"""Idempotency keys: one key creates one job."""

from callsheet.core.model.commands import Submit
from tests.support.engine.engine_harness import EngineHarness


def test_without_a_key_two_equal_requests_create_two_jobs(harness: EngineHarness) -> None:
    # R82
    assert harness.submit_job(input={"n": 1}) != harness.submit_job(input={"n": 1})
    assert harness.balance() == 90


def test_the_same_key_and_body_return_the_same_job_as_a_replay(harness: EngineHarness) -> None:
    # R86, R87, R170, R180, H2
    first = harness.submit(input={"a": 1, "b": 2}, idempotency_key="k")
    before = harness.snapshot()
    repeated = harness.submit(input={"b": 2, "a": 1}, idempotency_key="k")
    assert (first.replay, repeated.replay) == (False, True)
    assert (repeated.job_id, repeated.status) == (first.job_id, "queued")
    assert harness.snapshot() == before
    harness.finish(first.job_id)
    ended = harness.submit(input={"a": 1, "b": 2}, idempotency_key="k")
    assert (ended.job_id, ended.status, ended.replay) == (first.job_id, "completed", True)
    assert harness.ledger(first.job_id) == [("reserve", -5, 0), ("consume", 0, 5)]


def test_the_same_key_with_another_body_is_refused_and_changes_nothing(harness: EngineHarness) -> None:
    # R90, H3
    first = harness.submit_job(input={"n": 1}, idempotency_key="k")
    harness.workflow("poster")
    before = harness.snapshot()
    others: list[Submit] = [
        harness.submission(input={"n": 2}, idempotency_key="k"),
        harness.submission(input={"n": 1}, idempotency_key="k", priority=9),
        harness.submission(input={"n": 1}, idempotency_key="k", labels={"a": "b"}),
        harness.submission("poster", input={"n": 1}, idempotency_key="k"),
    ]
    for other in others:
        refusal = harness.expect_refusal(other)
        assert (refusal.code, refusal.details) == ("idempotency_key_reused", {"job_id": first})
    assert harness.snapshot() == before


def test_a_number_with_and_without_a_decimal_point_is_the_same_body(harness: EngineHarness) -> None:
    # R87
    first = harness.submit_job(start_in_seconds=60, idempotency_key="k")
    assert harness.submit_job(start_in_seconds=60.0, idempotency_key="k") == first


def test_the_trace_of_a_request_is_not_part_of_its_body(harness: EngineHarness) -> None:
    # R87: a client that retries has a new span
    first = harness.submit_job(idempotency_key="k", trace={"traceparent": "one"})
    assert harness.submit_job(idempotency_key="k", trace={"traceparent": "two"}) == first


def test_a_key_belongs_to_one_user_of_one_tenant(harness: EngineHarness) -> None:
    # R84, R85
    harness.tenant("other")
    harness.top_up(10, user="bob")
    harness.top_up(10, tenant="other")
    jobs = {
        harness.submit_job(idempotency_key="k"),
        harness.submit_job(user="bob", idempotency_key="k"),
        harness.submit_job(tenant="other", idempotency_key="k"),
    }
    assert len(jobs) == 3


def test_a_known_key_is_answered_without_credits_and_above_the_limit_of_jobs(harness: EngineHarness) -> None:
    # R89, C10
    harness.tenant(active_jobs_max=1)
    harness.workflow("all", price=100)
    job = harness.submit_job("all", idempotency_key="k")
    assert harness.balance() == 0
    assert harness.submit("all", idempotency_key="k").job_id == job


def test_a_refused_submit_does_not_use_up_its_key(harness: EngineHarness) -> None:
    # R91
    harness.workflow("expensive", price=101)
    assert harness.expect_refusal(harness.submission("expensive", idempotency_key="k")).code == "insufficient_credits"
    assert harness.expect_refusal(harness.submission(priority=101, idempotency_key="k")).code == "out_of_range"
    assert harness.submit(idempotency_key="k").replay is False


def test_the_key_of_a_deleted_job_stays_reserved(harness: EngineHarness) -> None:
    # S1
    job = harness.submit_job(idempotency_key="k")
    harness.delete(job)
    refusal = harness.expect_refusal(harness.submission(idempotency_key="k"))
    assert (refusal.code, refusal.details) == ("job_deleted", {"job_id": job})
    assert harness.expect_refusal(harness.submission(priority=1, idempotency_key="k")).code == "idempotency_key_reused"


def test_equal_requests_in_one_call_create_one_job_and_one_reservation(harness: EngineHarness) -> None:
    # R88, H2
    results = harness.engine.execute_many([harness.submission(idempotency_key="k")] * 50)
    assert len({result.job_id for result in results}) == 1
    assert [result.replay for result in results].count(False) == 1
    assert harness.balance() == 95


def test_a_replay_returns_the_price_at_submission(harness: EngineHarness) -> None:
    # R178
    harness.submit(idempotency_key="k")
    harness.workflow(price=50)
    assert harness.submit(idempotency_key="k").price == 5
