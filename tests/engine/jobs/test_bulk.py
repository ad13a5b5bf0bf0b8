"""Many commands in one call: each has its own result, in the order of the commands."""

from collections import Counter
from typing import Any

import pytest

from callsheet.core.model.commands import Cancel, Complete, Heartbeat, Pause, Retry, Submit, TopUp
from callsheet.core.model.errors import BadInput, Refusal
from tests.support.engine.engine_harness import EngineHarness


def test_each_of_a_thousand_submits_in_one_call_has_its_own_result(harness: EngineHarness) -> None:
    # R59
    harness.top_up(10, user="poor")
    harness.top_up(5_000)
    fields: list[dict[str, Any]] = [{}, {}, {"priority": 101}, {"user": "poor"}, {"workflow": "nothing"}]
    many = [harness.submission(**fields[n % 5], metadata={"n": n}) for n in range(1_000)]
    results = harness.engine.execute_many(many)
    assert Counter(getattr(result, "code", "accepted") for result in results) == {
        "accepted": 402, "out_of_range": 200, "insufficient_credits": 198, "workflow_not_found": 200,
    }  # fmt: skip
    assert harness.balance() == 5_100 - 400 * 5
    assert harness.balance("poor") == 0
    for n in (0, 1, 3, 8, 995, 996):
        job = harness.job(results[n].job_id)
        assert (job.metadata, job.user_id) == (f'{{"n":{n}}}', many[n].user)


def test_a_call_with_too_many_commands_is_refused_as_a_whole(harness: EngineHarness) -> None:
    before = harness.snapshot()
    with pytest.raises(BadInput, match="at most 1000"):
        harness.engine.execute_many([harness.submission()] * 1_001)
    assert harness.snapshot() == before


def test_a_call_without_commands_returns_no_results(harness: EngineHarness) -> None:
    assert harness.engine.execute_many([]) == []


def test_commands_for_one_job_take_effect_in_order(harness: EngineHarness) -> None:
    # Each command sees the changes of the one before it, also if it needs rows that the other did not load.
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    many = [Retry(tenant="acme", job_id=job, actor="admin"), Pause(tenant="acme", job_id=job)]
    retried, paused = harness.engine.execute_many(many)
    assert not isinstance(retried, Exception)
    assert not isinstance(paused, Exception), paused
    assert harness.status(job) == "paused"


def test_of_a_completion_and_a_cancel_the_first_wins(harness: EngineHarness) -> None:
    # H10, R27
    first, second = harness.submit_job(), harness.submit_job()
    leases = {leased.lease.job_id: leased.lease for leased in harness.claim(count=2)}
    completed, late = harness.engine.execute_many(
        [Complete(lease=leases[first]), Cancel(tenant="acme", job_id=first, grace_seconds=0)]
    )
    assert (completed.job_status, late.code) == ("completed", "illegal_transition")
    canceled, skipped = harness.engine.execute_many(
        [Cancel(tenant="acme", job_id=second, grace_seconds=0), Complete(lease=leases[second])]
    )
    assert (canceled.status, skipped.skipped) == ("canceled", "The job is canceled.")
    assert harness.ledger(first)[-1] == ("consume", 0, 5)
    assert harness.ledger(second)[-1] == ("refund", 5, 0)


def test_text_that_a_database_cannot_store_fails_only_its_own_command(harness: EngineHarness) -> None:
    # R59, R431
    harness.submit_job()
    lease = harness.claim_one()
    for bad in ("\ud800", "a\0b"):
        many = [
            TopUp(tenant="acme", user="ada", amount=1),
            Heartbeat(lease=lease, message=bad),
            Cancel(tenant="acme", job_id=bad),
            TopUp(tenant="acme", user="ada", amount=1, idempotency_key=bad),
        ]
        good, *refused = harness.engine.execute_many(many)
        assert not isinstance(good, Exception), good
        assert [isinstance(result, Refusal) for result in refused] == [True] * 3, refused


def test_results_are_in_the_order_of_the_commands(harness: EngineHarness) -> None:
    users = [f"user-{n}" for n in range(20)]
    for user in users:
        harness.top_up(5, user=user)
    many: list[Submit] = [harness.submission(user=user) for user in users * 2]
    results = harness.engine.execute_many(many)
    assert [harness.job(result.job_id).user_id for result in results[:20]] == users
    assert {result.code for result in results[20:]} == {"insufficient_credits"}
