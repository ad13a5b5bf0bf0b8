"""Explanations of a job: its constraints with their numbers, and estimates of start and end."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.ids import child_id
from callsheet.core.model.rows import Attempt, Call, Job
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from callsheet.core.policy.explanation.blocking_reasons import NO_WORKER_SECONDS, LimitUsage, Observation
from callsheet.core.policy.explanation.job_explanation import Explanation, explain, first_ready
from callsheet.core.policy.task_start_limits import Limit
from tests.core.rule_harness import DRAW, CoreHarness

FILM = WorkflowDefinition(
    name="film",
    stages=[StageSpec(name="script", kind="draw", tasks=3), StageSpec(name="cut", kind="cut", approval=True)],
)
RETRYING = WorkflowDefinition(
    name="retrying", stages=[StageSpec(name="draw", kind="draw")],
    retry=RetryPolicy(on="any", backoff=Backoff(base_seconds=60, jitter=0)),
)  # fmt: skip
WITH_PROVIDER = WorkflowDefinition(name="with_provider", stages=[StageSpec(name="draw", kind="draw", provider="fal")])
INLINE = WorkflowDefinition(name="inline", inline=True)
ONE_MINUTE = [60 * SECOND] * 10


def explain_job(harness: CoreHarness, job_id: str, **observed: Any) -> Explanation:
    """Explain a job of the harness, with other observations."""
    job = harness.job(job_id)
    stages = harness.stages(job_id)
    stage = stages[job.stages_completed] if job.stages_completed < len(stages) else None
    tasks = [t for t in harness.tasks(job_id) if stage and t.stage_id == stage.id and t.finished_at is None]
    running = [task for task in tasks if task.status == "running"]
    leased_at = {task.id: harness.get(Attempt, (task.id, task.attempts)).leased_at for task in running}
    calls = {task.id: harness.get(Call, child_id(task.id, task.attempts)) for task in running if task.has_call}
    observation = Observation(**{"now": harness.now, "leased_at": leased_at, "calls": calls, **observed})
    return explain(job, stage, tasks, observation)


def codes(found: Explanation) -> list[str]:
    return [constraint.code for constraint in found.constraints]


def only_constraint(found: Explanation, code: str) -> Any:
    """Return the constraint and check that there is no other."""
    assert codes(found) == [code]
    return found.constraints[0]


def test_an_ended_job_has_its_status_and_end_time() -> None:
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Complete(lease=lease))
    found = explain_job(harness, job_id)
    constraint = only_constraint(found, "ended")
    assert (constraint.message, constraint.active_since_at) == ("The job has ended: it is completed.", harness.now)
    assert (found.position, found.start.wait, found.start.reason) == (None, None, "The job has ended.")


def test_a_scheduled_job_has_its_scheduled_time() -> None:
    harness = CoreHarness(DRAW)
    found = explain_job(harness, harness.submit(start_in_seconds=90))
    constraint = only_constraint(found, "scheduled")
    assert (constraint.active_until_at, constraint.message) == (
        harness.now + 90 * SECOND,
        "It is scheduled: it is queued in 90 seconds.",
    )
    assert (found.start.wait, found.position) == (90 * SECOND, None)


def test_a_paused_job_must_be_resumed() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    found = explain_job(harness, job_id, durations=ONE_MINUTE)
    assert "resume" in only_constraint(found, "paused").message
    assert (found.start.wait, found.start.reason) == (None, "It starts after it is resumed.")


def test_a_paused_job_with_a_running_task_has_both_constraints() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    assert codes(explain_job(harness, job_id)) == ["paused", "running"]


def test_a_stage_that_waits_for_approval_is_named() -> None:
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    for leased in harness.claim(3):
        harness.do(c.Complete(lease=leased.lease))
    found = explain_job(harness, job_id)
    constraint = only_constraint(found, "approval")
    assert (constraint.name, constraint.message) == ("cut", "Stage 2 (cut) waits for approval.")
    assert found.start.reason == "It starts after its approval."


def test_a_job_that_is_being_canceled_has_the_end_of_its_grace_time() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    harness.do(c.Cancel(tenant="acme", job_id=job_id, grace_seconds=30))
    harness.advance(10)
    found = explain_job(harness, job_id)
    assert codes(found) == ["canceling", "running"]
    grace = found.constraints[0]
    assert (grace.active_since_at, grace.active_until_at) == (harness.now - 10 * SECOND, harness.now + 20 * SECOND)
    assert grace.running == 1
    assert "20 seconds" in grace.message


def test_a_job_without_stages_and_a_stage_without_tasks_are_explained() -> None:
    harness = CoreHarness(INLINE)
    without_stages = explain_job(harness, harness.submit("inline"))
    stages = [StageSpec(name="later", kind="draw", tasks=0)]
    without_tasks = explain_job(harness, harness.submit("inline", stages=stages))
    assert only_constraint(without_stages, "no_stages").message == "It has no stages yet: add one."
    assert only_constraint(without_tasks, "no_tasks").name == "later"


# -- in the queue


def test_a_queued_job_has_its_position_and_the_number_of_tasks_ahead() -> None:
    harness = CoreHarness(DRAW)
    found = explain_job(harness, harness.submit(), ahead=4, running=2, live_leases=2)
    constraint = only_constraint(found, "queued")
    assert (constraint.ahead, constraint.running, constraint.tasks, found.position) == (4, 2, 1, 5)
    assert constraint.message == "It is queued after 4 other tasks."


def test_the_message_of_a_queued_job_agrees_with_the_number_of_tasks_ahead() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    for ahead, message in (
        (0, "It is next in its queue."),
        (1, "after 1 other task."),
        (10_000, "after 10000 other tasks."),
    ):
        found = explain_job(harness, job_id, live_leases=1, ahead=ahead)
        assert message in only_constraint(found, "queued").message


def test_a_capped_count_of_tasks_ahead_is_a_lower_bound_in_every_part_of_the_explanation() -> None:
    harness = CoreHarness(DRAW)
    found = explain_job(
        harness, harness.submit(), live_leases=1, ahead=100, ahead_is_capped=True, running=7, running_is_capped=True,
        durations=ONE_MINUTE,
    )  # fmt: skip
    constraint = only_constraint(found, "queued")
    assert constraint.message == "It is queued after more than 100 other tasks."
    assert (constraint.ahead, constraint.ahead_is_capped, constraint.running_is_capped) == (100, True, True)
    assert (found.position, found.position_is_capped) == (101, True)
    assert "A lower bound: more than 100 tasks are ahead." in found.start.reason


@pytest.mark.parametrize("of", ["workflow", "kind", "provider"])
def test_a_reached_running_limit_is_a_constraint_with_its_numbers(of: str) -> None:
    harness = CoreHarness(DRAW)
    reached, unreached = LimitUsage(Limit(of, "a", 3), 3), LimitUsage(Limit("kind", "b", 3), 2)
    found = explain_job(harness, harness.submit(), limits=[reached, unreached], running=3)
    assert codes(found) == ["running_limit", "queued"]
    limit = found.constraints[0]
    assert (limit.of, limit.name, limit.running, limit.running_max, limit.tasks) == (of, "a", 3, 3, 1)


@pytest.mark.parametrize("of", ["workflow", "kind", "provider"])
def test_a_reached_rate_limit_is_a_constraint_with_its_numbers_and_the_next_start(of: str) -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    oldest = harness.now - 48 * SECOND
    reached, unreached = LimitUsage(Limit(of, "a", 3, 60), 3, oldest), LimitUsage(Limit("kind", "b", 3, 60), 2, oldest)
    found = explain_job(harness, job_id, limits=[reached, unreached], live_leases=1)
    assert codes(found) == ["rate_limit", "queued"]
    limit = found.constraints[0]
    assert limit.message == (
        f"3 tasks of {of} a started in the last minute, which is the limit: the next one may start in 12 seconds."
    )
    assert (limit.of, limit.name, limit.tasks) == (of, "a", 1)
    assert (limit.started, limit.started_in_window_max, limit.within_seconds) == (3, 3, 60)
    assert limit.active_until_at == oldest + 60 * SECOND
    assert (found.start.wait, found.start.p50) == (12 * SECOND, None)


@pytest.mark.parametrize(("ahead", "seconds"), [(0, 0), (1, 12), (3, 12), (4, 72), (7, 132)])
def test_a_rate_limit_delays_later_tasks_by_whole_windows(ahead: int, seconds: int) -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    rate = LimitUsage(Limit("kind", "draw", 3, 60), 2, harness.now - 48 * SECOND)
    found = explain_job(harness, job_id, limits=[rate], ahead=ahead, durations=[SECOND] * 20, live_leases=1)
    assert found.start.wait == max(seconds * SECOND, (ahead + 1) * SECOND)
    assert ("rate" in found.start.reason) == bool(seconds)


def test_a_missing_worker_is_a_constraint_after_a_minimum_time() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    since = harness.now
    harness.advance(NO_WORKER_SECONDS - 0.1)
    assert codes(explain_job(harness, job_id)) == ["queued"]
    harness.advance(0.1)
    found = explain_job(harness, job_id, durations=ONE_MINUTE)
    assert codes(found) == ["no_worker", "queued"]
    missing = found.constraints[0]
    assert (missing.of, missing.name, missing.active_since_at, missing.workers) == ("kind", "draw", since, 0)
    assert (found.start.wait, found.start.reason) == (None, "No worker serves this kind of task now.")


def test_a_live_lease_or_a_recent_completion_shows_that_a_worker_exists() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    harness.advance(600)
    assert codes(explain_job(harness, job_id, live_leases=1)) == ["queued"]
    assert codes(explain_job(harness, job_id, last_completed_at=harness.now - SECOND)) == ["queued"]
    assert codes(explain_job(harness, job_id, last_completed_at=harness.now - NO_WORKER_SECONDS * SECOND)) == [
        "no_worker",
        "queued",
    ]
    assert "no_worker" not in codes(explain_job(harness, job_id, limits=[LimitUsage(Limit("kind", "draw", 0), 0)]))


def test_a_paused_job_does_not_lack_a_worker() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    harness.advance(600)
    assert codes(explain_job(harness, job_id)) == ["paused"]


# -- running and retried tasks


def test_a_failed_attempt_has_the_time_of_its_retry() -> None:
    harness = CoreHarness(RETRYING)
    job_id = harness.submit("retrying")
    harness.do(c.Fail(lease=harness.lease()))
    harness.advance(20)
    found = explain_job(harness, job_id)
    constraint = only_constraint(found, "backoff")
    assert (constraint.active_until_at, constraint.tasks) == (harness.now + 40 * SECOND, 1)
    assert constraint.message == "1 task failed and will be retried: the first in 40 seconds."
    assert found.start.wait == 40 * SECOND


def test_a_backoff_that_has_elapsed_but_was_not_swept_has_no_wait() -> None:
    harness = CoreHarness(RETRYING)
    job_id = harness.submit("retrying")
    harness.do(c.Fail(lease=harness.lease()))
    harness.advance(61)
    found = explain_job(harness, job_id)
    assert "less than a second" in only_constraint(found, "backoff").message
    assert found.start.wait == 0


def test_a_task_at_a_provider_has_its_start_and_deadline_but_not_its_reference() -> None:
    harness = CoreHarness(WITH_PROVIDER)
    job_id = harness.submit("with_provider")
    lease = harness.lease()
    harness.do(c.RecordIntent(lease=lease, provider="fal"))
    assert codes(explain_job(harness, job_id)) == ["running"], "the worker has not made the call yet"
    harness.do(c.HandOff(lease=lease, ref="ref-secret"))
    at = harness.now
    harness.advance(30)
    found = explain_job(harness, job_id)
    constraint = only_constraint(found, "provider")
    assert (constraint.name, constraint.active_since_at, constraint.active_until_at) == ("fal", at, at + 3_600 * SECOND)
    assert "ref-secret" not in str(found)


def test_a_call_without_an_answer_is_explained() -> None:
    harness = CoreHarness(WITH_PROVIDER)
    job_id = harness.submit("with_provider")
    harness.do(c.RecordIntent(lease=harness.lease(), provider="fal"))
    harness.advance(1_000)
    harness.tick()
    constraint = only_constraint(explain_job(harness, job_id), "provider")
    assert constraint.message == "It is unknown whether fal accepted 1 task: the server looks it up."


def test_a_running_job_has_its_start_its_progress_and_its_workers() -> None:
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    since = harness.now
    first = harness.lease(worker="w1")
    harness.advance(5)
    harness.lease(worker="w2")
    harness.do(c.Heartbeat(lease=first, progress=40))
    found = explain_job(harness, job_id, live_leases=2, running=2)
    assert codes(found) == ["queued", "running"]
    constraint = found.constraints[1]
    assert (constraint.tasks, constraint.workers, constraint.progress, constraint.active_since_at) == (2, 2, 20, since)
    assert constraint.message == "2 tasks are running on 2 workers."


def test_every_constraint_has_its_number_of_tasks() -> None:
    harness = CoreHarness(replace(FILM, retry=RETRYING.retry))
    job_id = harness.submit("film")
    leased = harness.claim(2)
    harness.do(c.Fail(lease=leased[0].lease))
    found = explain_job(harness, job_id, live_leases=1, running=1)
    assert [(constraint.code, constraint.tasks) for constraint in found.constraints] == [
        ("queued", 1),
        ("backoff", 1),
        ("running", 1),
    ]


# -- estimates


def test_the_start_is_estimated_from_the_position_the_leases_and_past_durations() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    found = explain_job(harness, job_id, ahead=3, running=2, live_leases=2, durations=ONE_MINUTE)
    start = found.start
    assert (start.wait, start.p50, start.p90, start.samples) == (120 * SECOND, 60 * SECOND, 60 * SECOND, 10)
    assert explain_job(harness, job_id, durations=ONE_MINUTE).start.wait == 0
    assert explain_job(harness, job_id, ahead=2, durations=ONE_MINUTE).start.wait == 120 * SECOND
    assert explain_job(harness, job_id, live_leases=9, durations=ONE_MINUTE).start.wait == 60 * SECOND


def test_without_enough_samples_there_is_a_reason_instead_of_an_estimate() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    start = explain_job(harness, job_id, durations=ONE_MINUTE[:4]).start
    assert (start.wait, start.p50, start.p90, start.samples) == (None, None, None, 4)
    assert start.reason == "4 tasks of its queue completed so far; an estimate needs at least 5."


def test_progress_is_estimated_if_the_worker_reports_none() -> None:
    """R267."""
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    estimates = []
    for _ in range(5):
        remaining = explain_job(harness, job_id, durations=ONE_MINUTE).remaining
        estimates.append((remaining.percent, remaining.p50, remaining.p90))
        harness.advance(20)
    assert estimates == [
        (0, 60 * SECOND, 60 * SECOND), (30, 40 * SECOND, 40 * SECOND), (60, 20 * SECOND, 20 * SECOND),
        (99, None, None), (99, None, None),
    ]  # fmt: skip
    late = explain_job(harness, job_id, durations=ONE_MINUTE).remaining
    assert (late.samples, late.reason) == (10, "It has taken longer than each of the last 10.")


def test_reported_progress_overrides_an_estimate() -> None:
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.advance(50)
    harness.do(c.Heartbeat(lease=lease, progress=10))
    remaining = explain_job(harness, job_id, durations=ONE_MINUTE).remaining
    assert (remaining.percent, remaining.p50) == (10, 10 * SECOND)


def test_estimated_progress_includes_completed_tasks_and_names_what_it_leaves_out() -> None:
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    leased = harness.claim(3)
    harness.do(c.Complete(lease=leased[0].lease))
    harness.advance(20)
    remaining = explain_job(harness, job_id, durations=ONE_MINUTE).remaining
    assert (remaining.percent, remaining.reason) == (26, "Time until its running tasks end; more tasks follow.")
    assert harness.job(job_id).progress <= 26


def test_progress_is_not_estimated_without_a_running_task() -> None:
    harness = CoreHarness(DRAW)
    remaining = explain_job(harness, harness.submit(), durations=ONE_MINUTE).remaining
    assert (remaining.percent, remaining.reason) == (None, "None of its tasks is running.")


def test_the_first_ready_task_is_the_next_one_to_be_claimed() -> None:
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    first = first_ready(harness.tasks(job_id))
    assert first is not None
    assert first.id == harness.lease().task_id
    assert first_ready([]) is None


def test_the_limit_of_active_jobs_is_never_a_constraint() -> None:
    """It refuses submits and never delays an accepted job."""
    harness = CoreHarness(DRAW)
    harness.do(c.PutTenant(tenant="acme", active_jobs_max=1))
    job_id = harness.submit()
    assert harness.expect_refusal(c.Submit(tenant="acme", user="ann", workflow="draw")).code == "too_many_active_jobs"
    assert codes(explain_job(harness, job_id, live_leases=1)) == ["queued"]
    assert len(list(harness.all(Job))) == 1
