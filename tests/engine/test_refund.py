"""What a run has consumed can be given back by hand: once, all of it, and never what went back by itself."""

from functools import partial

import pytest

from callsheet.core.commands import Balance, Refund
from callsheet.core.recipe import Refunds
from tests.support.racing import at_once, servers
from tests.support.studio import TENANT, Studio


def refund(job: str, run: int | None = None, reason: str = "Too dark.") -> Refund:
    return Refund(tenant=TENANT, job_id=job, run=run, reason=reason, actor="admin", by="bea")


def test_a_completed_job_is_refunded_once(studio: Studio) -> None:
    # R79
    job = studio.ask()
    studio.finish(job)
    before = studio.balance()
    assert studio.do(refund(job)) == Balance(before + 5, 0)
    assert studio.do(refund(job, 1, "Said twice.")) == Balance(before + 5, 0, replay=True)
    assert studio.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5), ("adjust", 5, -5)]
    assert studio.events(job)[-1] == "job.refunded"
    assert studio.status(job) == "completed"


def test_what_a_failed_job_kept_goes_back_and_no_more(studio: Studio) -> None:
    studio.workflow("strict", price=10, refunds=Refunds(failed=70))
    job = studio.ask("strict")
    studio.fail(studio.take())
    before = studio.balance()
    studio.do(refund(job))
    assert studio.ledger(job)[1:] == [("consume", 7, 3), ("adjust", 3, -3)]
    assert studio.balance() == before + 3


def test_each_run_has_its_own(studio: Studio) -> None:
    studio.workflow("strict", price=10, refunds=Refunds(failed=70))
    job = studio.ask("strict")
    studio.fail(studio.take())
    studio.retry(job)
    assert studio.refused(refund(job)).code == "run_open"
    studio.do(refund(job, 1))
    studio.finish(job)
    studio.do(refund(job))
    assert [line for line in studio.ledger(job) if line[0] == "adjust"] == [("adjust", 3, -3), ("adjust", 10, -10)]
    assert studio.wallet().consumed == 0


@pytest.mark.parametrize(("run", "code"), [(None, "nothing_to_refund"), (2, "run_not_found"), (0, "run_not_found")])
def test_nothing_goes_back_twice_or_of_a_run_that_never_was(studio: Studio, run: int | None, code: str) -> None:
    job = studio.ask()
    studio.cancel(job)
    before = studio.snapshot()
    assert studio.refused(refund(job, run)).code == code
    assert studio.snapshot() == before


def test_two_servers_give_back_once(place: str) -> None:
    with servers(place, 2) as (one, two):
        one.tenant()
        one.workflow()
        one.top_up(1_000, key="welcome")
        for _ in range(10):
            job = one.ask()
            one.finish(job)
            answers = at_once(partial(one.do, refund(job)), partial(two.do, refund(job)))
            assert sorted(answer.replay for answer in answers) == [False, True]
            assert one.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5), ("adjust", 5, -5)]
