"""Who may not: the cap of active jobs, and gates that say no before a job is accepted."""

from typing import Any

from callsheet.config import Settings
from callsheet.core.commands import Retry, Submit, Verdict
from callsheet.core.limits import Limits
from tests.support.studio import Studio

FIVE = Settings(limits=Limits(active_jobs_max=5))


def no_cats(command: Submit) -> Verdict | None:
    if command.input == "cat":
        return Verdict("unsafe_prompt", "No cats here.", block=True)
    return Verdict("not_entitled", "Dogs are for gold members.") if command.input == "dog" else None


def test_a_user_has_at_most_five_active_jobs(open_studio: Any) -> None:
    # R171, R172, C20
    studio: Studio = open_studio(FIVE)
    jobs = [studio.ask() for _ in range(4)] + [studio.ask(start_in_seconds=60)]
    studio.pause(jobs[3])
    refusal = studio.refused(studio.submission())
    assert (refusal.code, refusal.details) == ("too_many_active_jobs", {"active": 5, "max": 5})
    studio.finish(jobs[0])
    assert studio.submit().status == "queued"
    assert studio.refused(studio.submission()).code == "too_many_active_jobs"


def test_every_end_frees_a_place(open_studio: Any) -> None:
    # R171
    studio: Studio = open_studio(FIVE)
    studio.tenant(active_jobs_max=1)
    studio.cancel(studio.ask())
    studio.fail(started(studio))
    studio.ask(deadline_seconds=10)
    studio.advance(10)
    studio.delete(studio.ask())
    assert studio.submit().status == "queued"


def started(studio: Studio) -> Any:
    studio.ask()
    return studio.take()


def test_twenty_submits_in_one_call_fill_the_five_places(open_studio: Any) -> None:
    # R172
    studio: Studio = open_studio(FIVE)
    results = studio.engine.execute_many([studio.submission() for _ in range(20)])
    codes = [getattr(result, "code", "accepted") for result in results]
    assert codes == ["accepted"] * 5 + ["too_many_active_jobs"] * 15
    assert studio.balance() == 75


def test_the_cap_is_per_user_and_a_tenant_may_have_its_own(open_studio: Any) -> None:
    # R171
    studio: Studio = open_studio(FIVE)
    studio.tenant(active_jobs_max=1)
    studio.top_up(10, user="bob")
    studio.ask()
    assert studio.refused(studio.submission()).code == "too_many_active_jobs"
    assert studio.submit(user="bob").status == "queued"


def test_a_retry_needs_a_place_too(open_studio: Any) -> None:
    # R171: S3 holds for whatever makes a job active again
    studio: Studio = open_studio(FIVE)
    studio.tenant(active_jobs_max=1)
    job = studio.ask()
    studio.fail(studio.take())
    studio.ask()
    before = studio.snapshot()
    for how in ("new_run", "new_job"):
        refusal = studio.refused(Retry(tenant="acme", job_id=job, actor="user", retry_as=how))
        assert refusal.code == "too_many_active_jobs"
    assert studio.snapshot() == before


def test_a_gate_refuses_without_a_trace(open_studio: Any) -> None:
    # R298, R323, C12
    studio: Studio = open_studio(gates=[no_cats])
    before = studio.snapshot()
    assert studio.refused(studio.submission(input="cat")).code == "unsafe_prompt"
    assert studio.refused(studio.submission(input="dog")).code == "not_entitled"
    assert studio.snapshot() == before


def test_a_blocked_request_is_recorded_if_the_house_keeps_such_records(open_studio: Any) -> None:
    # R91, R294, R298, C12, M13
    studio: Studio = open_studio(Settings(record_blocked=True), gates=[no_cats])
    made = studio.submit(input="cat", idempotency_key="k")
    assert (made.status, made.price, made.run) == ("blocked", 0, 0)
    job = studio.job(made.job_id)
    assert (job.error_code, job.started_at, job.finished_at) == ("unsafe_prompt", None, studio.clock.now())
    assert (studio.balance(), studio.ledger(made.job_id), studio.runs(made.job_id)) == (100, [], [])
    assert (studio.tasks(made.job_id), studio.claim()) == ([], [])
    assert studio.events(made.job_id) == ["job.blocked"]
    assert studio.refused(Retry(tenant="acme", job_id=made.job_id)).code == "illegal_transition"
    assert studio.submit(input="bird", idempotency_key="k").status == "queued", "the key is not burnt"


def test_a_gate_that_does_not_block_refuses_even_where_blocks_are_recorded(open_studio: Any) -> None:
    # C12
    studio: Studio = open_studio(Settings(record_blocked=True), gates=[no_cats])
    assert studio.refused(studio.submission(input="dog")).code == "not_entitled"


def test_the_first_objection_counts_and_later_gates_are_not_asked(open_studio: Any) -> None:
    # R323
    asked: list[str] = []

    def first(_: Submit) -> Verdict:
        asked.append("first")
        return Verdict("first", "No.")

    def second(_: Submit) -> Verdict:
        asked.append("second")
        return Verdict("second", "No.")

    studio: Studio = open_studio(gates=[first, second])
    assert studio.refused(studio.submission()).code == "first"
    assert asked == ["first"]


def test_a_known_key_is_answered_before_any_gate_is_asked(open_studio: Any) -> None:
    # R89, C10
    closed: list[Verdict] = []
    studio: Studio = open_studio(gates=[lambda _: closed[0] if closed else None])
    job = studio.ask(idempotency_key="k")
    closed.append(Verdict("closed", "Not today."))
    assert studio.submit(idempotency_key="k").job_id == job
    assert studio.refused(studio.submission()).code == "closed"


def test_a_blocked_job_does_not_count_as_active(open_studio: Any) -> None:
    # R171, R298
    studio: Studio = open_studio(Settings(record_blocked=True), gates=[no_cats])
    studio.tenant(active_jobs_max=1)
    studio.ask(input="cat")
    assert studio.submit().status == "queued"
