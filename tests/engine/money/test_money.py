"""Credits: reserved when a run opens, settled once at its end, never negative, and recorded in the ledger."""

import pytest

from callsheet.core.model.commands import Adjust, TopUp
from callsheet.core.model.workflow_definition import RefundPolicy
from tests.support.engine.engine_harness import EngineHarness, stage


def end(harness: EngineHarness, how: str) -> str:
    """Submit a clip, end it in one way, and return its id."""
    job = harness.submit_job("clip", deadline_seconds=100)
    if how == "canceled":
        harness.cancel(job)
        return job
    lease = harness.claim_one("render")
    if how == "failed":
        harness.fail(lease)
    elif how == "expired":
        harness.advance(100)
    elif how == "canceled_running":
        harness.cancel(job, grace_seconds=0)
    else:
        harness.complete(lease)
    return job


def test_a_run_reserves_its_price_and_a_completed_run_consumes_it(harness: EngineHarness) -> None:
    # R3, R246, R269, R274, M5, M9
    job = harness.submit_job()
    assert (harness.wallet().balance, harness.wallet().reserved) == (95, 5)
    harness.finish(job)
    assert (harness.wallet().balance, harness.wallet().reserved) == (95, 0)
    assert harness.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5)]
    (run,) = harness.runs(job)
    assert (run.price, run.consumed, run.refunded, run.status) == (5, 5, 0, "completed")


@pytest.mark.parametrize("how", ["failed", "expired", "canceled", "canceled_running"])
def test_every_run_that_does_not_complete_is_refunded_in_full_by_default(harness: EngineHarness, how: str) -> None:
    # R7, R62, R65, R66, R255, C8
    harness.workflow("clip", price=10, stages=[stage("render")])
    job = end(harness, how)
    assert harness.status(job) == how.removesuffix("_running")
    assert harness.ledger(job) == [("reserve", -10, 0), ("refund", 10, 0)]
    assert (harness.wallet().balance, harness.wallet().reserved) == (100, 0)
    assert harness.runs(job)[0].refunded == 10


@pytest.mark.parametrize(
    ("how", "kept"),
    [("failed", 6), ("expired", 9), ("canceled", 1), ("canceled_running", 11), ("completed", 11)],
)
def test_a_refund_policy_can_keep_a_part_of_the_price(harness: EngineHarness, how: str, kept: int) -> None:
    # R66, C8, M7: the refund is rounded down, and refund and consumption add up to the price
    refunds = RefundPolicy(failed=50, expired=25, canceled=99, canceled_running=0)
    harness.workflow("clip", price=11, stages=[stage("render")], refunds=refunds)
    job = end(harness, how)
    assert harness.ledger(job)[1:] == [("consume", 11 - kept, kept)]
    assert harness.balance() == 100 - kept


@pytest.mark.parametrize(("delivered", "kept"), [(100, 11), (99, 11), (50, 6), (1, 1)])
def test_a_partial_delivery_refunds_the_rest(harness: EngineHarness, delivered: int, kept: int) -> None:
    # M7: the consumed part is rounded up
    harness.workflow(price=11)
    job = harness.submit_job()
    harness.complete(harness.claim_one(), delivered=delivered)
    assert harness.ledger(job)[1:] == [("consume", 11 - kept, kept)]
    assert (harness.status(job), harness.balance()) == ("completed", 100 - kept)


def test_the_tasks_of_the_last_stage_decide_the_delivered_part(harness: EngineHarness) -> None:
    # M7
    harness.workflow("pair", price=10, stages=[stage("plan"), stage("draw", tasks=2)])
    job = harness.submit_job("pair")
    harness.complete(harness.claim_one("plan"), delivered=10)
    first, second = harness.claim("draw", count=2)
    harness.complete(first.lease, delivered=100)
    harness.complete(second.lease, delivered=20)
    assert harness.ledger(job)[1:] == [("consume", 4, 6)]


@pytest.mark.parametrize("delivered", [0, 101, -5])
def test_a_delivered_part_outside_1_to_100_percent_is_refused(harness: EngineHarness, delivered: int) -> None:
    harness.submit_job()
    lease = harness.claim_one()
    before = harness.snapshot()
    with pytest.raises(Exception, match="delivered must be"):
        harness.complete(lease, delivered=delivered)
    assert harness.snapshot() == before
    assert harness.complete(lease).job_status == "completed"


def test_the_price_of_a_job_is_fixed_at_submission(harness: EngineHarness) -> None:
    # R43, R178
    job = harness.submit_job()
    harness.workflow(price=50)
    harness.fail(harness.claim_one())
    assert harness.balance() == 100
    harness.retry(job)
    assert harness.balance() == 95, "the price at submission, not the current one"
    harness.finish(job)
    assert harness.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0), ("reserve", -5, 0), ("consume", 0, 5)]


def test_each_workflow_has_its_own_price_and_opening_credits_are_added_once(harness: EngineHarness) -> None:
    # R44
    prices = {"copy": 1, "static_ad": 3, "tts": 2, "i2v": 10, "scrape": 0, "reframe": 20, "ugc_video": 40}
    for _ in range(2):
        assert harness.top_up(25, user="new", key="welcome").balance == 25
    for name, price in prices.items():
        harness.workflow(name, price=price)
        left = harness.balance("new")
        if price <= left:
            assert (harness.submit(name, user="new").price, harness.balance("new")) == (price, left - price)
        else:
            refusal = harness.expect_refusal(harness.submission(name, user="new"))
            assert (refusal.code, refusal.details) == ("insufficient_credits", {"required": price, "balance": left})
    assert harness.balance("new") == 9


def test_a_free_job_has_no_ledger_entries(harness: EngineHarness) -> None:
    harness.workflow("free", price=0)
    for how in ("complete", "fail", "cancel"):
        job = harness.submit_job("free", user="new")
        if how == "cancel":
            harness.cancel(job)
        else:
            getattr(harness, how)(harness.claim_one())
        assert harness.ledger(job, user="new") == []
    assert harness.wallet("new").entries == 0


def test_a_repeated_top_up_with_one_key_adds_credits_once(harness: EngineHarness) -> None:
    # R269, R375
    assert harness.top_up(7, key="invoice-1").balance == 107
    repeated = harness.top_up(7, key="invoice-1")
    assert (repeated.balance, repeated.replay) == (107, True)
    reused = TopUp(tenant="acme", user="ada", amount=8, idempotency_key="invoice-1")
    assert harness.expect_refusal(reused).code == "idempotency_key_reused"
    assert harness.balance() == 107
    assert harness.top_up(7, user="bob", key="invoice-1").balance == 7, "a key belongs to its wallet"


def test_an_adjustment_needs_a_reason_and_happens_once_per_key(harness: EngineHarness) -> None:
    # R375
    def adjust(amount: int, reason: str = "goodwill", key: str = "") -> Adjust:
        return Adjust(tenant="acme", user="ada", amount=amount, reason=reason, idempotency_key=key)

    assert harness.do(adjust(-30, key="a")).balance == 70
    assert harness.do(adjust(-30, key="a")).replay is True
    before = harness.snapshot()
    assert harness.expect_refusal(adjust(5, " ")).code == "reason_required"
    assert harness.expect_refusal(adjust(0)).code == "out_of_range"
    assert harness.expect_refusal(adjust(-71)).code == "insufficient_credits"
    assert harness.expect_refusal(adjust(-31, key="a")).code == "idempotency_key_reused"
    assert harness.snapshot() == before
    (entry,) = [entry for entry in harness.reads.ledger("acme", "ada") if entry.kind == "adjust"]
    assert (entry.amount, entry.balance, entry.reason, entry.actor) == (-30, 70, "goodwill", "admin")


@pytest.mark.parametrize("amount", [0, -1, 10**12 + 1])
def test_a_top_up_is_positive_and_bounded(harness: EngineHarness, amount: int) -> None:
    before = harness.snapshot()
    assert harness.expect_refusal(TopUp(tenant="acme", user="ada", amount=amount)).code == "out_of_range"
    assert harness.snapshot() == before


def test_a_balance_is_never_negative(harness: EngineHarness) -> None:
    # R35, R272, M2
    harness.top_up(4, user="bob")
    assert harness.expect_refusal(harness.submission(user="bob")).code == "insufficient_credits"
    harness.top_up(1, user="bob")
    assert harness.wallet("bob").balance == harness.job(harness.submit_job(user="bob")).price
    results = harness.engine.execute_many([harness.submission() for _ in range(30)])
    codes = [getattr(result, "code", "accepted") for result in results]
    assert codes == ["accepted"] * 20 + ["insufficient_credits"] * 10
    assert (harness.wallet().balance, harness.wallet().reserved) == (0, 100)


def test_the_balance_of_every_entry_is_the_sum_up_to_it(harness: EngineHarness) -> None:
    # R41, R273, M1, M11
    for n in range(4):
        job = harness.submit_job()
        (harness.complete if n % 2 else harness.fail)(harness.claim_one())
        assert harness.job(job).finished_at is not None
    total = 0
    for number, entry in enumerate(harness.reads.ledger("acme", "ada"), 1):
        total += entry.amount
        assert (entry.seq, entry.balance) == (number, total)
        assert (entry.job_id is None) == (entry.kind == "topup")
    assert harness.balance() == total == 90


def test_requeues_and_automatic_retries_move_no_credits(harness: EngineHarness) -> None:
    # R77, R261
    job = harness.submit_job()
    harness.requeue(harness.claim_one())
    harness.fail(harness.claim_one(), retryable=True)
    harness.advance(10)
    assert harness.ledger(job) == [("reserve", -5, 0)]
    harness.complete(harness.claim_one())
    assert harness.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5)]


def test_users_of_the_same_name_in_two_tenants_have_separate_wallets(harness: EngineHarness) -> None:
    # R159, M12
    harness.tenant("other")
    assert harness.balance(tenant="other") == 0
    assert harness.expect_refusal(harness.submission(tenant="other")).code == "insufficient_credits"
    harness.top_up(5, tenant="other")
    harness.submit_job(tenant="other")
    assert (harness.balance(), harness.balance(tenant="other")) == (100, 0)
