"""One key, one job: whatever is sent again, whoever sends it, whenever."""

from callsheet.core.model.commands import Submit
from tests.support.engine.engine_harness import EngineHarness


def test_without_a_key_two_equal_requests_are_two_jobs(harness: EngineHarness) -> None:
    # R82
    assert harness.submit_job(input={"n": 1}) != harness.submit_job(input={"n": 1})
    assert harness.balance() == 90


def test_the_same_key_and_body_give_the_same_job_and_say_so(harness: EngineHarness) -> None:
    # R86, R87, R88, R170, R180, H2
    first = harness.submit(input={"a": 1, "b": 2}, idempotency_key="k")
    before = harness.snapshot()
    again = harness.submit(input={"b": 2, "a": 1}, idempotency_key="k")
    assert (again.job_id, again.replay, first.replay) == (first.job_id, True, False)
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


def test_a_number_means_the_same_with_and_without_a_point(harness: EngineHarness) -> None:
    # R88
    first = harness.submit_job(start_in_seconds=60, idempotency_key="k")
    assert harness.submit_job(start_in_seconds=60.0, idempotency_key="k") == first


def test_the_trace_of_a_request_is_no_part_of_its_body(harness: EngineHarness) -> None:
    # R88: a client that tries again has a new span
    first = harness.submit_job(idempotency_key="k", trace={"traceparent": "one"})
    assert harness.submit_job(idempotency_key="k", trace={"traceparent": "two"}) == first


def test_a_key_belongs_to_one_user_of_one_tenant(harness: EngineHarness) -> None:
    # R84, R85
    harness.tenant("other")
    harness.top_up(10, user="bob")
    harness.top_up(10, tenant="other")
    made = {
        harness.submit_job(idempotency_key="k"),
        harness.submit_job(user="bob", idempotency_key="k"),
        harness.submit_job(tenant="other", idempotency_key="k"),
    }
    assert len(made) == 3


def test_a_known_key_is_answered_without_funds_and_over_the_cap(harness: EngineHarness) -> None:
    # R89, R172, C10
    harness.tenant(active_jobs_max=1)
    harness.workflow("all", price=100)
    job = harness.submit_job("all", idempotency_key="k")
    assert harness.balance() == 0
    assert harness.submit("all", idempotency_key="k").job_id == job


def test_a_refused_request_does_not_burn_its_key(harness: EngineHarness) -> None:
    # R91
    harness.workflow("dear", price=101)
    assert harness.expect_refusal(harness.submission("dear", idempotency_key="k")).code == "insufficient_credits"
    assert harness.expect_refusal(harness.submission(priority=101, idempotency_key="k")).code == "out_of_range"
    assert harness.submit(idempotency_key="k").replay is False


def test_the_key_of_a_deleted_job_stays_taken(harness: EngineHarness) -> None:
    # H20, R86
    job = harness.submit_job(idempotency_key="k")
    harness.delete(job)
    refusal = harness.expect_refusal(harness.submission(idempotency_key="k"))
    assert (refusal.code, refusal.details) == ("job_deleted", {"job_id": job})
    assert harness.expect_refusal(harness.submission(priority=1, idempotency_key="k")).code == "idempotency_key_reused"


def test_equal_requests_in_one_call_are_one_job_and_one_debit(harness: EngineHarness) -> None:
    # R88, H2
    results = harness.engine.execute_many([harness.submission(idempotency_key="k")] * 50)
    assert len({result.job_id for result in results}) == 1
    assert [result.replay for result in results].count(False) == 1
    assert harness.balance() == 95


def test_a_replay_tells_the_price_of_then(harness: EngineHarness) -> None:
    # R43, R178
    harness.submit(idempotency_key="k")
    harness.workflow(price=50)
    assert harness.submit(idempotency_key="k").price == 5
