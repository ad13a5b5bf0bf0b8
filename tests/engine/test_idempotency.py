"""One key, one job: whatever is sent again, whoever sends it, whenever."""

from callsheet.core.commands import Submit
from tests.support.studio import Studio


def test_without_a_key_two_equal_requests_are_two_jobs(studio: Studio) -> None:
    # R82
    assert studio.ask(input={"n": 1}) != studio.ask(input={"n": 1})
    assert studio.balance() == 90


def test_the_same_key_and_body_give_the_same_job_and_say_so(studio: Studio) -> None:
    # R86, R87, R88, R170, R180, H2
    first = studio.submit(input={"a": 1, "b": 2}, idempotency_key="k")
    before = studio.snapshot()
    again = studio.submit(input={"b": 2, "a": 1}, idempotency_key="k")
    assert (again.job_id, again.replay, first.replay) == (first.job_id, True, False)
    assert studio.snapshot() == before
    studio.finish(first.job_id)
    ended = studio.submit(input={"a": 1, "b": 2}, idempotency_key="k")
    assert (ended.job_id, ended.status, ended.replay) == (first.job_id, "completed", True)
    assert studio.ledger(first.job_id) == [("reserve", -5, 0), ("consume", 0, 5)]


def test_the_same_key_with_another_body_is_refused_and_changes_nothing(studio: Studio) -> None:
    # R90, H3
    first = studio.ask(input={"n": 1}, idempotency_key="k")
    studio.workflow("poster")
    before = studio.snapshot()
    others: list[Submit] = [
        studio.submission(input={"n": 2}, idempotency_key="k"),
        studio.submission(input={"n": 1}, idempotency_key="k", priority=9),
        studio.submission(input={"n": 1}, idempotency_key="k", labels={"a": "b"}),
        studio.submission("poster", input={"n": 1}, idempotency_key="k"),
    ]
    for other in others:
        refusal = studio.refused(other)
        assert (refusal.code, refusal.details) == ("idempotency_key_reused", {"job_id": first})
    assert studio.snapshot() == before


def test_a_number_means_the_same_with_and_without_a_point(studio: Studio) -> None:
    # R88
    first = studio.ask(start_in_seconds=60, idempotency_key="k")
    assert studio.ask(start_in_seconds=60.0, idempotency_key="k") == first


def test_the_trace_of_a_request_is_no_part_of_its_body(studio: Studio) -> None:
    # R88: a client that tries again has a new span
    first = studio.ask(idempotency_key="k", trace={"traceparent": "one"})
    assert studio.ask(idempotency_key="k", trace={"traceparent": "two"}) == first


def test_a_key_belongs_to_one_user_of_one_tenant(studio: Studio) -> None:
    # R84, R85
    studio.tenant("other")
    studio.top_up(10, user="bob")
    studio.top_up(10, tenant="other")
    made = {
        studio.ask(idempotency_key="k"),
        studio.ask(user="bob", idempotency_key="k"),
        studio.ask(tenant="other", idempotency_key="k"),
    }
    assert len(made) == 3


def test_a_known_key_is_answered_without_funds_and_over_the_cap(studio: Studio) -> None:
    # R89, R172, C10
    studio.tenant(active_jobs_max=1)
    studio.workflow("all", price=100)
    job = studio.ask("all", idempotency_key="k")
    assert studio.balance() == 0
    assert studio.submit("all", idempotency_key="k").job_id == job


def test_a_refused_request_does_not_burn_its_key(studio: Studio) -> None:
    # R91
    studio.workflow("dear", price=101)
    assert studio.refused(studio.submission("dear", idempotency_key="k")).code == "insufficient_credits"
    assert studio.refused(studio.submission(priority=101, idempotency_key="k")).code == "out_of_range"
    assert studio.submit(idempotency_key="k").replay is False


def test_the_key_of_a_deleted_job_stays_taken(studio: Studio) -> None:
    # H20, R86
    job = studio.ask(idempotency_key="k")
    studio.delete(job)
    refusal = studio.refused(studio.submission(idempotency_key="k"))
    assert (refusal.code, refusal.details) == ("job_deleted", {"job_id": job})
    assert studio.refused(studio.submission(priority=1, idempotency_key="k")).code == "idempotency_key_reused"


def test_equal_requests_in_one_call_are_one_job_and_one_debit(studio: Studio) -> None:
    # R88, H2
    results = studio.engine.execute_many([studio.submission(idempotency_key="k")] * 50)
    assert len({result.job_id for result in results}) == 1
    assert [result.replay for result in results].count(False) == 1
    assert studio.balance() == 95


def test_a_replay_tells_the_price_of_then(studio: Studio) -> None:
    # R43, R178
    studio.submit(idempotency_key="k")
    studio.workflow(price=50)
    assert studio.submit(idempotency_key="k").price == 5
