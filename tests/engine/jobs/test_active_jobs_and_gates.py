"""Who may not: the cap of active jobs, and gates that say no before a job is accepted."""

from typing import Any

from callsheet.config import Settings
from callsheet.core.model.commands import Retry, Submit, Verdict
from callsheet.core.policy.engine_limits import Limits
from tests.support.engine.engine_harness import EngineHarness

FIVE = Settings(limits=Limits(active_jobs_max=5))


def no_cats(command: Submit) -> Verdict | None:
    if command.input == "cat":
        return Verdict("unsafe_prompt", "No cats here.", block=True)
    return Verdict("not_entitled", "Dogs are for gold members.") if command.input == "dog" else None


def test_a_user_has_at_most_five_active_jobs(open_harness: Any) -> None:
    # R171, R172, C20
    harness: EngineHarness = open_harness(FIVE)
    jobs = [harness.submit_job() for _ in range(4)] + [harness.submit_job(start_in_seconds=60)]
    harness.pause(jobs[3])
    refusal = harness.expect_refusal(harness.submission())
    assert (refusal.code, refusal.details) == ("too_many_active_jobs", {"active": 5, "max": 5})
    harness.finish(jobs[0])
    assert harness.submit().status == "queued"
    assert harness.expect_refusal(harness.submission()).code == "too_many_active_jobs"


def test_every_end_frees_a_place(open_harness: Any) -> None:
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


def test_twenty_submits_in_one_call_fill_the_five_places(open_harness: Any) -> None:
    # R172
    harness: EngineHarness = open_harness(FIVE)
    results = harness.engine.execute_many([harness.submission() for _ in range(20)])
    codes = [getattr(result, "code", "accepted") for result in results]
    assert codes == ["accepted"] * 5 + ["too_many_active_jobs"] * 15
    assert harness.balance() == 75


def test_the_cap_is_per_user_and_a_tenant_may_have_its_own(open_harness: Any) -> None:
    # R171
    harness: EngineHarness = open_harness(FIVE)
    harness.tenant(active_jobs_max=1)
    harness.top_up(10, user="bob")
    harness.submit_job()
    assert harness.expect_refusal(harness.submission()).code == "too_many_active_jobs"
    assert harness.submit(user="bob").status == "queued"


def test_a_retry_needs_a_place_too(open_harness: Any) -> None:
    # R171: S3 holds for whatever makes a job active again
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


def test_a_gate_refuses_without_a_trace(open_harness: Any) -> None:
    # R298, R323, C12
    harness: EngineHarness = open_harness(gates=[no_cats])
    before = harness.snapshot()
    assert harness.expect_refusal(harness.submission(input="cat")).code == "unsafe_prompt"
    assert harness.expect_refusal(harness.submission(input="dog")).code == "not_entitled"
    assert harness.snapshot() == before


def test_a_blocked_request_is_recorded_if_the_server_keeps_such_records(open_harness: Any) -> None:
    # R91, R294, R298, C12, M13
    harness: EngineHarness = open_harness(Settings(record_blocked=True), gates=[no_cats])
    made = harness.submit(input="cat", idempotency_key="k")
    assert (made.status, made.price, made.run) == ("blocked", 0, 0)
    job = harness.job(made.job_id)
    assert (job.error_code, job.started_at, job.finished_at) == ("unsafe_prompt", None, harness.clock.now())
    assert (harness.balance(), harness.ledger(made.job_id), harness.runs(made.job_id)) == (100, [], [])
    assert (harness.tasks(made.job_id), harness.claim()) == ([], [])
    assert harness.events(made.job_id) == ["job.blocked"]
    assert harness.expect_refusal(Retry(tenant="acme", job_id=made.job_id)).code == "illegal_transition"
    assert harness.submit(input="bird", idempotency_key="k").status == "queued", "the key is not burnt"


def test_a_gate_that_does_not_block_refuses_even_where_blocks_are_recorded(open_harness: Any) -> None:
    # C12
    harness: EngineHarness = open_harness(Settings(record_blocked=True), gates=[no_cats])
    assert harness.expect_refusal(harness.submission(input="dog")).code == "not_entitled"


def test_the_first_objection_counts_and_later_gates_are_not_asked(open_harness: Any) -> None:
    # R323
    asked: list[str] = []

    def first(_: Submit) -> Verdict:
        asked.append("first")
        return Verdict("first", "No.")

    def second(_: Submit) -> Verdict:
        asked.append("second")
        return Verdict("second", "No.")

    harness: EngineHarness = open_harness(gates=[first, second])
    assert harness.expect_refusal(harness.submission()).code == "first"
    assert asked == ["first"]


def test_a_known_key_is_answered_before_any_gate_is_asked(open_harness: Any) -> None:
    # R89, C10
    closed: list[Verdict] = []
    harness: EngineHarness = open_harness(gates=[lambda _: closed[0] if closed else None])
    job = harness.submit_job(idempotency_key="k")
    closed.append(Verdict("closed", "Not today."))
    assert harness.submit(idempotency_key="k").job_id == job
    assert harness.expect_refusal(harness.submission()).code == "closed"


def test_a_blocked_job_does_not_count_as_active(open_harness: Any) -> None:
    # R171, R298
    harness: EngineHarness = open_harness(Settings(record_blocked=True), gates=[no_cats])
    harness.tenant(active_jobs_max=1)
    harness.submit_job(input="cat")
    assert harness.submit().status == "queued"
