"""Refunds by an admin: the consumed credits of a run, once, and nothing that was refunded automatically."""

from functools import partial

import pytest

from callsheet.core.model.commands import Balance, Refund
from callsheet.core.model.workflow_definition import RefundPolicy
from tests.support.engine.concurrency import run_concurrently, servers
from tests.support.engine.engine_harness import TENANT, EngineHarness


def refund(job: str, run: int | None = None, reason: str = "Too dark.") -> Refund:
    return Refund(tenant=TENANT, job_id=job, run=run, reason=reason, actor="admin", requested_by="bea")


def test_a_completed_job_is_refunded_once(harness: EngineHarness) -> None:
    # R79
    job = harness.submit_job()
    harness.finish(job)
    before = harness.balance()
    assert harness.do(refund(job)) == Balance(before + 5, 0)
    assert harness.do(refund(job, 1, "Requested twice.")) == Balance(before + 5, 0, replay=True)
    assert harness.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5), ("adjust", 5, -5)]
    assert harness.events(job)[-1] == "job.refunded"
    assert harness.status(job) == "completed"


def test_the_part_that_a_failed_job_consumed_can_be_refunded(harness: EngineHarness) -> None:
    harness.workflow("strict", price=10, refunds=RefundPolicy(failed=70))
    job = harness.submit_job("strict")
    harness.fail(harness.claim_one())
    before = harness.balance()
    harness.do(refund(job))
    assert harness.ledger(job)[1:] == [("consume", 7, 3), ("adjust", 3, -3)]
    assert harness.balance() == before + 3


def test_each_run_is_refunded_separately(harness: EngineHarness) -> None:
    harness.workflow("strict", price=10, refunds=RefundPolicy(failed=70))
    job = harness.submit_job("strict")
    harness.fail(harness.claim_one())
    harness.retry(job)
    assert harness.expect_refusal(refund(job)).code == "run_not_ended"
    harness.do(refund(job, 1))
    harness.finish(job)
    harness.do(refund(job))
    assert [entry for entry in harness.ledger(job) if entry[0] == "adjust"] == [("adjust", 3, -3), ("adjust", 10, -10)]
    assert harness.wallet().consumed == 0


@pytest.mark.parametrize(("run", "code"), [(None, "nothing_to_refund"), (2, "run_not_found"), (0, "run_not_found")])
def test_a_refund_of_a_refunded_or_unknown_run_is_refused(harness: EngineHarness, run: int | None, code: str) -> None:
    # R79
    job = harness.submit_job()
    harness.cancel(job)
    before = harness.snapshot()
    assert harness.expect_refusal(refund(job, run)).code == code
    assert harness.snapshot() == before


def test_concurrent_refunds_at_two_servers_have_one_effect(database_url: str) -> None:
    with servers(database_url, 2) as (one, two):
        one.tenant()
        one.workflow()
        one.top_up(1_000, key="welcome")
        for _ in range(10):
            job = one.submit_job()
            one.finish(job)
            answers = run_concurrently(partial(one.do, refund(job)), partial(two.do, refund(job)))
            assert sorted(answer.replay for answer in answers) == [False, True]
            assert one.ledger(job) == [("reserve", -5, 0), ("consume", 0, 5), ("adjust", 5, -5)]
