"""Many commands in one call: each has its own outcome, in the order in which they were given."""

from collections import Counter
from typing import Any

import pytest

from callsheet.core.commands import Cancel, Complete, Heartbeat, Pause, Retry, Submit, TopUp
from callsheet.core.errors import BadInput, Refusal
from tests.support.studio import Studio


def test_a_thousand_jobs_in_one_call_have_their_own_outcomes(studio: Studio) -> None:
    # R34, R59, H5
    studio.top_up(10, user="poor")
    studio.top_up(5_000)
    fields: list[dict[str, Any]] = [{}, {}, {"priority": 101}, {"user": "poor"}, {"workflow": "nothing"}]
    many = [studio.submission(**fields[n % 5], metadata={"n": n}) for n in range(1_000)]
    results = studio.engine.execute_many(many)
    assert Counter(getattr(result, "code", "accepted") for result in results) == {
        "accepted": 402, "out_of_range": 200, "insufficient_credits": 198, "workflow_not_found": 200,
    }  # fmt: skip
    assert studio.balance() == 5_100 - 400 * 5
    assert studio.balance("poor") == 0
    for n in (0, 1, 3, 8, 995, 996):
        job = studio.job(results[n].job_id)
        assert (job.metadata, job.user_id) == (f'{{"n":{n}}}', many[n].user)


def test_more_than_the_limit_is_refused_as_a_whole(studio: Studio) -> None:
    before = studio.snapshot()
    with pytest.raises(BadInput, match="1000 commands"):
        studio.engine.execute_many([studio.submission()] * 1_001)
    assert studio.snapshot() == before


def test_no_commands_give_no_outcomes(studio: Studio) -> None:
    assert studio.engine.execute_many([]) == []


def test_commands_about_one_job_take_effect_in_their_order(studio: Studio) -> None:
    # R27: each command sees what the one before it did, also one that needs rows the other did not
    job = studio.ask()
    studio.fail(studio.take())
    many = [Retry(tenant="acme", job_id=job, actor="admin"), Pause(tenant="acme", job_id=job)]
    retried, paused = studio.engine.execute_many(many)
    assert not isinstance(retried, Exception)
    assert not isinstance(paused, Exception), paused
    assert studio.status(job) == "paused"


def test_of_a_completion_and_a_cancel_the_first_one_wins(studio: Studio) -> None:
    # H10, R27
    first, second = studio.ask(), studio.ask()
    leases = {leased.lease.job_id: leased.lease for leased in studio.claim(count=2)}
    completed, late = studio.engine.execute_many(
        [Complete(lease=leases[first]), Cancel(tenant="acme", job_id=first, grace_seconds=0)]
    )
    assert (completed.job_status, late.code) == ("completed", "illegal_transition")
    canceled, noop = studio.engine.execute_many(
        [Cancel(tenant="acme", job_id=second, grace_seconds=0), Complete(lease=leases[second])]
    )
    assert (canceled.status, noop.skipped) == ("canceled", "The job is canceled.")
    assert studio.ledger(first)[-1] == ("consume", 0, 5)
    assert studio.ledger(second)[-1] == ("refund", 5, 0)


def test_a_text_that_no_database_can_hold_harms_only_its_sender(studio: Studio) -> None:
    # R59, R431: a refused command does not disturb its neighbours
    studio.ask()
    lease = studio.take()
    for bad in ("\ud800", "a\0b"):
        many = [
            TopUp(tenant="acme", user="ada", amount=1),
            Heartbeat(lease=lease, message=bad),
            Cancel(tenant="acme", job_id=bad),
            TopUp(tenant="acme", user="ada", amount=1, idempotency_key=bad),
        ]
        good, *refused = studio.engine.execute_many(many)
        assert not isinstance(good, Exception), good
        assert [isinstance(result, Refusal) for result in refused] == [True] * 3, refused


def test_submits_of_several_users_are_answered_in_their_places(studio: Studio) -> None:
    users = [f"user-{n}" for n in range(20)]
    for user in users:
        studio.top_up(5, user=user)
    many: list[Submit] = [studio.submission(user=user) for user in users * 2]
    results = studio.engine.execute_many(many)
    assert [studio.job(result.job_id).user_id for result in results[:20]] == users
    assert {result.code for result in results[20:]} == {"insufficient_credits"}
