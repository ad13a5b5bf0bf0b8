"""The limit of active jobs per user, and gates that refuse a submit."""

from typing import Any

from callsheet.core.model.commands import Retry, Submit, Verdict
from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from tests.support.engine.engine_harness import EngineHarness

FIVE = Settings(limits=Limits(active_jobs_max=5))


def no_cats(command: Submit) -> Verdict | None:
    if command.input == "cat":
        return Verdict("unsafe_prompt", "No cats here.", block=True)
    return Verdict("not_entitled", "Dogs are for gold members.") if command.input == "dog" else None


def test_a_user_has_at_most_five_active_jobs(open_harness: Any) -> None:
    # R171, C20
    harness: EngineHarness = open_harness(FIVE)
    jobs = [harness.submit_job() for _ in range(4)] + [harness.submit_job(start_in_seconds=60)]
    harness.pause(jobs[3])
    refusal = harness.expect_refusal(harness.submission())
    assert (refusal.code, refusal.details) == ("too_many_active_jobs", {"active": 5, "max": 5})
    harness.finish(jobs[0])
    assert harness.submit().status == "queued"
    assert harness.expect_refusal(harness.submission()).code == "too_many_active_jobs"


def test_every_ended_job_frees_a_place(open_harness: Any) -> None:
    # R171
    harness: EngineHarness = open_harness(FIVE)
    harness.tenant(active_jobs_max=1)
    harness.cancel(harness.submit_job())
    harness.fail(lease_task(harness))
    harness.submit_job(deadline_seconds=10)
    harness.advance(10)
    harness.delete(harness.submit_job())
    assert harness.submit().status == "queued"


def lease_task(harness: EngineHarness) -> Any:
    harness.submit_job()
    return harness.claim_one()


def test_of_twenty_submits_in_one_call_five_are_accepted(open_harness: Any) -> None:
    # R172
    harness: EngineHarness = open_harness(FIVE)
    results = harness.engine.execute_many([harness.submission() for _ in range(20)])
    codes = [getattr(result, "code", "accepted") for result in results]
    assert codes == ["accepted"] * 5 + ["too_many_active_jobs"] * 15
    assert harness.balance() == 75


def test_the_limit_of_active_jobs_is_per_user_and_a_tenant_can_set_its_own(open_harness: Any) -> None:
    # R171
    harness: EngineHarness = open_harness(FIVE)
    harness.tenant(active_jobs_max=1)
    harness.top_up(10, user="bob")
    harness.submit_job()
    assert harness.expect_refusal(harness.submission()).code == "too_many_active_jobs"
    assert harness.submit(user="bob").status == "queued"


def test_a_retry_counts_against_the_limit_of_active_jobs(open_harness: Any) -> None:
    # R171: a retry makes a job active again
    harness: EngineHarness = open_harness(FIVE)
    harness.tenant(active_jobs_max=1)
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    harness.submit_job()
    before = harness.snapshot()
    for how in ("new_run", "new_job"):
        refusal = harness.expect_refusal(Retry(tenant="acme", job_id=job, actor="user", retry_as=how))
        assert refusal.code == "too_many_active_jobs"
    assert harness.snapshot() == before


def test_a_gate_refuses_a_submit_and_nothing_is_stored(open_harness: Any) -> None:
    # R298, R323, C12
    harness: EngineHarness = open_harness(gates=[no_cats])
    before = harness.snapshot()
    assert harness.expect_refusal(harness.submission(input="cat")).code == "unsafe_prompt"
    assert harness.expect_refusal(harness.submission(input="dog")).code == "not_entitled"
    assert harness.snapshot() == before


def test_a_denied_submit_is_stored_as_a_blocked_job_if_configured(open_harness: Any) -> None:
    # R91, R294, R298, C12, M13
    harness: EngineHarness = open_harness(Settings(record_blocked=True), gates=[no_cats])
    submitted = harness.submit(input="cat", idempotency_key="k")
    assert (submitted.status, submitted.price, submitted.run) == ("blocked", 0, 0)
    job = harness.job(submitted.job_id)
    assert (job.error_code, job.started_at, job.finished_at) == ("unsafe_prompt", None, harness.clock.now())
    assert (harness.balance(), harness.ledger(submitted.job_id), harness.runs(submitted.job_id)) == (100, [], [])
    assert (harness.tasks(submitted.job_id), harness.claim()) == ([], [])
    assert harness.events(submitted.job_id) == ["job.blocked"]
    assert harness.expect_refusal(Retry(tenant="acme", job_id=submitted.job_id)).code == "illegal_transition"
    assert harness.submit(input="bird", idempotency_key="k").status == "queued", (
        "a denied submit does not use up its key"
    )


def test_a_gate_that_does_not_block_refuses_also_if_blocked_jobs_are_recorded(open_harness: Any) -> None:
    # C12
    harness: EngineHarness = open_harness(Settings(record_blocked=True), gates=[no_cats])
    assert harness.expect_refusal(harness.submission(input="dog")).code == "not_entitled"


def test_the_first_gate_that_refuses_decides_and_later_gates_are_not_called(open_harness: Any) -> None:
    # R323
    called: list[str] = []

    def first(_: Submit) -> Verdict:
        called.append("first")
        return Verdict("first", "No.")

    def second(_: Submit) -> Verdict:
        called.append("second")
        return Verdict("second", "No.")

    harness: EngineHarness = open_harness(gates=[first, second])
    assert harness.expect_refusal(harness.submission()).code == "first"
    assert called == ["first"]


def test_a_known_key_is_answered_before_any_gate_is_called(open_harness: Any) -> None:
    # C10
    closed: list[Verdict] = []
    harness: EngineHarness = open_harness(gates=[lambda _: closed[0] if closed else None])
    job = harness.submit_job(idempotency_key="k")
    closed.append(Verdict("closed", "Not today."))
    assert harness.submit(idempotency_key="k").job_id == job
    assert harness.expect_refusal(harness.submission()).code == "closed"


def test_a_blocked_job_does_not_count_as_active(open_harness: Any) -> None:
    # R171
    harness: EngineHarness = open_harness(Settings(record_blocked=True), gates=[no_cats])
    harness.tenant(active_jobs_max=1)
    harness.submit_job(input="cat")
    assert harness.submit().status == "queued"
