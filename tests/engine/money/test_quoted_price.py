"""Quoted prices: a job is charged the price of its quote instead of the price of its workflow."""

import pytest

from tests.support.engine.engine_harness import EngineHarness


def test_a_quoted_price_is_charged_instead_of_the_price_of_the_workflow(harness: EngineHarness) -> None:
    job = harness.submit_job(price=2)
    harness.workflow(price=50)
    assert harness.job(job).price == 2
    harness.finish(job)
    assert harness.ledger(job) == [("reserve", -2, 0), ("consume", 0, 2)]


def test_a_quoted_price_can_be_zero(harness: EngineHarness) -> None:
    job = harness.submit_job(price=0)
    harness.finish(job)
    assert (harness.job(job).price, harness.ledger(job)) == (0, [])


@pytest.mark.parametrize("price", [-1, 10**12 + 1])
def test_an_invalid_quoted_price_is_refused(harness: EngineHarness, price: int) -> None:
    assert harness.expect_refusal(harness.submission(price=price)).code == "out_of_range"


def test_a_quoted_price_above_the_balance_is_refused(harness: EngineHarness) -> None:
    assert harness.expect_refusal(harness.submission(price=101)).code == "insufficient_credits"
    assert harness.balance() == 100


def test_a_known_key_returns_its_job_also_with_another_quoted_price(harness: EngineHarness) -> None:
    first = harness.submit(price=2, idempotency_key="k")
    repeated = harness.submit(price=9, idempotency_key="k")
    assert (repeated.job_id, repeated.price, repeated.replay) == (first.job_id, 2, True)
