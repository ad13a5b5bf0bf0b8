"""Money: reserved when a run opens, settled once at its end, never below zero, and every entry adds up."""

import pytest

from callsheet.core.commands import Adjust, TopUp
from callsheet.core.recipe import Refunds
from tests.support.studio import Studio, stage


def end(studio: Studio, how: str) -> str:
    """Bring a clip to one of its endings and return its id."""
    job = studio.ask("clip", deadline_seconds=100)
    if how == "canceled":
        studio.cancel(job)
        return job
    lease = studio.take("render")
    if how == "failed":
        studio.fail(lease)
    elif how == "expired":
        studio.advance(100)
    elif how == "canceled_running":
        studio.cancel(job, grace_seconds=0)
    else:
        studio.complete(lease)
    return job


def test_a_run_reserves_its_price_and_a_completed_one_consumes_it(studio: Studio) -> None:
    # R3, R246, R269, R274, M5, M9
    job = studio.ask()
    assert (studio.wallet().balance, studio.wallet().held) == (95, 5)
    studio.finish(job)
    assert (studio.wallet().balance, studio.wallet().held) == (95, 0)
    assert studio.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5)]
    (run,) = studio.runs(job)
    assert (run.price, run.consumed, run.returned, run.status) == (5, 5, 0, "completed")


@pytest.mark.parametrize("how", ["failed", "expired", "canceled", "canceled_running"])
def test_every_other_end_refunds_in_full_by_default(studio: Studio, how: str) -> None:
    # R7, R62, R65, R66, R255, C8
    studio.workflow("clip", price=10, stages=[stage("render")])
    job = end(studio, how)
    assert studio.status(job) == how.removesuffix("_running")
    assert studio.ledger(job) == [("reserve", -10, 0), ("refund", 10, 0)]
    assert (studio.wallet().balance, studio.wallet().held) == (100, 0)
    assert studio.runs(job)[0].returned == 10


@pytest.mark.parametrize(
    ("how", "kept"),
    [("failed", 6), ("expired", 9), ("canceled", 1), ("canceled_running", 11), ("completed", 11)],
)
def test_a_workflow_may_keep_a_part_by_how_the_run_ended(studio: Studio, how: str, kept: int) -> None:
    # R66, C8, M7: what goes back is rounded down, so the parts always add up to the price
    refunds = Refunds(failed=50, expired=25, canceled=99, canceled_running=0)
    studio.workflow("clip", price=11, stages=[stage("render")], refunds=refunds)
    job = end(studio, how)
    assert studio.ledger(job)[1:] == [("consume", 11 - kept, kept)]
    assert studio.balance() == 100 - kept


@pytest.mark.parametrize(("delivered", "kept"), [(100, 11), (99, 11), (50, 6), (1, 1)])
def test_a_partial_delivery_returns_the_rest(studio: Studio, delivered: int, kept: int) -> None:
    # M7: what is kept is rounded up
    studio.workflow(price=11)
    job = studio.ask()
    studio.complete(studio.take(), delivered=delivered)
    assert studio.ledger(job)[1:] == [("consume", 11 - kept, kept)]
    assert (studio.status(job), studio.balance()) == ("completed", 100 - kept)


def test_the_tasks_of_the_last_stage_share_in_what_was_delivered(studio: Studio) -> None:
    # M7
    studio.workflow("pair", price=10, stages=[stage("plan"), stage("draw", tasks=2)])
    job = studio.ask("pair")
    studio.complete(studio.take("plan"), delivered=10)
    first, second = studio.claim("draw", count=2)
    studio.complete(first.lease, delivered=100)
    studio.complete(second.lease, delivered=20)
    assert studio.ledger(job)[1:] == [("consume", 4, 6)]


@pytest.mark.parametrize("delivered", [0, 101, -5])
def test_more_or_less_than_everything_cannot_be_delivered(studio: Studio, delivered: int) -> None:
    studio.ask()
    lease = studio.take()
    before = studio.snapshot()
    with pytest.raises(Exception, match="delivered must be"):
        studio.complete(lease, delivered=delivered)
    assert studio.snapshot() == before
    assert studio.complete(lease).job_status == "completed"


def test_the_price_is_fixed_when_the_job_is_submitted(studio: Studio) -> None:
    # R43, R178
    job = studio.ask()
    studio.workflow(price=50)
    studio.fail(studio.take())
    assert studio.balance() == 100
    studio.retry(job)
    assert studio.balance() == 95, "the job's own price, not today's"
    studio.finish(job)
    assert studio.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0), ("reserve", -5, 0), ("consume", 0, 5)]


def test_each_workflow_has_its_own_price_and_a_welcome_is_given_once(studio: Studio) -> None:
    # R44
    prices = {"copy": 1, "static_ad": 3, "tts": 2, "i2v": 10, "scrape": 0, "reframe": 20, "ugc_video": 40}
    for _ in range(2):
        assert studio.top_up(25, user="new", key="welcome").balance == 25
    for name, price in prices.items():
        studio.workflow(name, price=price)
        left = studio.balance("new")
        if price <= left:
            assert (studio.submit(name, user="new").price, studio.balance("new")) == (price, left - price)
        else:
            refusal = studio.refused(studio.submission(name, user="new"))
            assert (refusal.code, refusal.details) == ("insufficient_credits", {"required": price, "balance": left})
    assert studio.balance("new") == 9


def test_a_free_job_leaves_no_entries(studio: Studio) -> None:
    # R43
    studio.workflow("free", price=0)
    for how in ("complete", "fail", "cancel"):
        job = studio.ask("free", user="new")
        if how == "cancel":
            studio.cancel(job)
        else:
            getattr(studio, how)(studio.take())
        assert studio.ledger(job, user="new") == []
    assert studio.wallet("new").entries == 0


def test_a_top_up_with_a_key_adds_once(studio: Studio) -> None:
    # R269, R375
    assert studio.top_up(7, key="invoice-1").balance == 107
    again = studio.top_up(7, key="invoice-1")
    assert (again.balance, again.replay) == (107, True)
    reused = TopUp(tenant="acme", user="ada", amount=8, idempotency_key="invoice-1")
    assert studio.refused(reused).code == "idempotency_key_reused"
    assert studio.balance() == 107
    assert studio.top_up(7, user="bob", key="invoice-1").balance == 7, "a key belongs to its wallet"


def test_an_adjustment_has_a_reason_and_a_key(studio: Studio) -> None:
    # R79, R80
    def adjust(amount: int, reason: str = "goodwill", key: str = "") -> Adjust:
        return Adjust(tenant="acme", user="ada", amount=amount, reason=reason, idempotency_key=key)

    assert studio.do(adjust(-30, key="a")).balance == 70
    assert studio.do(adjust(-30, key="a")).replay is True
    before = studio.snapshot()
    assert studio.refused(adjust(5, " ")).code == "reason_required"
    assert studio.refused(adjust(0)).code == "out_of_range"
    assert studio.refused(adjust(-71)).code == "insufficient_credits"
    assert studio.refused(adjust(-31, key="a")).code == "idempotency_key_reused"
    assert studio.snapshot() == before
    (entry,) = [entry for entry in studio.read.ledger("acme", "ada") if entry.kind == "adjust"]
    assert (entry.amount, entry.balance, entry.reason, entry.actor) == (-30, 70, "goodwill", "admin")


@pytest.mark.parametrize("amount", [0, -1, 10**12 + 1])
def test_a_top_up_is_positive_and_bounded(studio: Studio, amount: int) -> None:
    before = studio.snapshot()
    assert studio.refused(TopUp(tenant="acme", user="ada", amount=amount)).code == "out_of_range"
    assert studio.snapshot() == before


def test_a_wallet_never_goes_below_zero(studio: Studio) -> None:
    # R34, R35, R272, M2
    studio.top_up(4, user="bob")
    assert studio.refused(studio.submission(user="bob")).code == "insufficient_credits"
    studio.top_up(1, user="bob")
    assert studio.wallet("bob").balance == studio.job(studio.ask(user="bob")).price
    results = studio.engine.execute_many([studio.submission() for _ in range(30)])
    codes = [getattr(result, "code", "accepted") for result in results]
    assert codes == ["accepted"] * 20 + ["insufficient_credits"] * 10
    assert (studio.wallet().balance, studio.wallet().held) == (0, 100)


def test_the_running_balance_of_every_entry_recomputes(studio: Studio) -> None:
    # R41, R273, M1, M11
    for n in range(4):
        job = studio.ask()
        (studio.complete if n % 2 else studio.fail)(studio.take())
        assert studio.job(job).finished_at is not None
    total = 0
    for number, entry in enumerate(studio.read.ledger("acme", "ada"), 1):
        total += entry.amount
        assert (entry.seq, entry.balance) == (number, total)
    assert studio.balance() == total == 90


def test_automatic_tries_move_no_money(studio: Studio) -> None:
    # R77, R261
    job = studio.ask()
    studio.requeue(studio.take())
    studio.fail(studio.take(), retryable=True)
    studio.advance(10)
    assert studio.ledger(job) == [("reserve", -5, 0)]
    studio.complete(studio.take())
    assert studio.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5)]


def test_wallets_of_one_user_name_in_two_tenants_are_two(studio: Studio) -> None:
    # R159, M12
    studio.tenant("other")
    assert studio.balance(tenant="other") == 0
    assert studio.refused(studio.submission(tenant="other")).code == "insufficient_credits"
    studio.top_up(5, tenant="other")
    studio.ask(tenant="other")
    assert (studio.balance(), studio.balance(tenant="other")) == (100, 0)
