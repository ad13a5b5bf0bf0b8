"""Why a job is where it is: every constraint by its code, with its numbers, from rows alone."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.ids import child_id
from callsheet.core.model.rows import Attempt, Call, Job
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from callsheet.core.policy.blocking_reasons import AHEAD_MAX, NO_WORKER_SECONDS, LimitUsage, Observation
from callsheet.core.policy.concurrency_and_rates import Limit
from callsheet.core.policy.job_explanation import Explanation, explain, first_ready
from tests.core.rule_harness import DRAW, CoreHarness

FILM = WorkflowDefinition(
    name="film",
    stages=[StageSpec(name="script", kind="draw", tasks=3), StageSpec(name="cut", kind="cut", approval=True)],
)
STEADY = WorkflowDefinition(
    name="steady", stages=[StageSpec(name="draw", kind="draw")],
    retry=RetryPolicy(on="any", backoff=Backoff(base_seconds=60, jitter=0)),
)  # fmt: skip
CLOUD = WorkflowDefinition(name="cloud", stages=[StageSpec(name="draw", kind="draw", provider="fal")])
OPEN = WorkflowDefinition(name="open", inline=True)
MINUTE = [60 * SECOND] * 10


def why(harness: CoreHarness, job_id: str, **counted: Any) -> Explanation:
    """Explain a job of a world, with whatever else was counted."""
    job = harness.job(job_id)
    stages = harness.stages(job_id)
    stage = stages[job.stages_completed] if job.stages_completed < len(stages) else None
    tasks = [t for t in harness.tasks(job_id) if stage and t.stage_id == stage.id and t.finished_at is None]
    running = [task for task in tasks if task.status == "running"]
    leased_at = {task.id: harness.get(Attempt, (task.id, task.attempts)).leased_at for task in running}
    calls = {task.id: harness.get(Call, child_id(task.id, task.attempts)) for task in running if task.has_call}
    seen = Observation(**{"now": harness.now, "leased_at": leased_at, "calls": calls, **counted})
    return explain(job, stage, tasks, seen)


def codes(found: Explanation) -> list[str]:
    return [held.code for held in found.constraints]


def only(found: Explanation, code: str) -> Any:
    """Return the one constraint that there must be."""
    assert codes(found) == [code]
    return found.constraints[0]


def test_an_ended_job_says_how_and_when() -> None:
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Complete(lease=lease))
    found = why(harness, job_id)
    held = only(found, "ended")
    assert (held.message, held.active_since_at) == ("The job has ended: it is completed.", harness.now)
    assert (found.position, found.start.wait, found.start.reason) == (None, None, "The job has ended.")


def test_a_scheduled_job_says_until_when() -> None:
    harness = CoreHarness(DRAW)
    found = why(harness, harness.submit(start_in_seconds=90))
    held = only(found, "scheduled")
    assert (held.active_until_at, held.message) == (
        harness.now + 90 * SECOND,
        "It is scheduled: it is queued in 90 seconds.",
    )
    assert (found.start.wait, found.position) == (90 * SECOND, None)


def test_a_paused_job_says_that_somebody_must_resume_it() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    found = why(harness, job_id, durations=MINUTE)
    assert "resume" in only(found, "paused").message
    assert (found.start.wait, found.start.reason) == (None, "It starts after it is resumed.")


def test_a_paused_job_whose_task_goes_on_says_both() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    assert codes(why(harness, job_id)) == ["paused", "running"]


def test_a_waiting_stage_is_named() -> None:
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    for leased in harness.claim(3):
        harness.do(c.Complete(lease=leased.lease))
    found = why(harness, job_id)
    held = only(found, "approval")
    assert (held.name, held.message) == ("cut", "Stage 2 (cut) waits for approval.")
    assert found.start.reason == "It starts after its approval."


def test_a_job_that_is_being_canceled_says_how_long_its_workers_have() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    harness.do(c.Cancel(tenant="acme", job_id=job_id, grace_seconds=30))
    harness.advance(10)
    found = why(harness, job_id)
    assert codes(found) == ["canceling", "running"]
    held = found.constraints[0]
    assert (held.active_since_at, held.active_until_at, held.running) == (
        harness.now - 10 * SECOND,
        harness.now + 20 * SECOND,
        1,
    )
    assert "20 seconds" in held.message


def test_a_job_without_stages_and_a_stage_without_tasks_wait_for_them() -> None:
    harness = CoreHarness(OPEN)
    empty, bare = harness.submit("open"), harness.submit("open", stages=[StageSpec(name="later", kind="draw", tasks=0)])
    assert only(why(harness, empty), "no_stages").message == "It has no stages yet: add one."
    assert only(why(harness, bare), "no_tasks").name == "later"


# -- in the queue


def test_a_queued_job_says_how_many_are_ahead_and_its_position() -> None:
    harness = CoreHarness(DRAW)
    found = why(harness, harness.submit(), ahead=4, running=2, live_leases=2)
    held = only(found, "queued")
    assert (held.ahead, held.running, held.tasks, found.position) == (4, 2, 1, 5)
    assert held.message == "It is queued after 4 other tasks."


def test_the_first_in_the_queue_is_next_and_one_is_no_plural() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    assert only(why(harness, job_id, live_leases=1), "queued").message == "It is next in its queue."
    assert only(why(harness, job_id, live_leases=1, ahead=1), "queued").message.endswith("after 1 other task.")
    assert "more than 10000" in only(why(harness, job_id, live_leases=1, ahead=AHEAD_MAX), "queued").message


@pytest.mark.parametrize("of", ["workflow", "kind", "provider"])
def test_a_full_running_limit_is_named_with_its_numbers(of: str) -> None:
    harness = CoreHarness(DRAW)
    full, free = LimitUsage(Limit(of, "a", 3), 3), LimitUsage(Limit("kind", "b", 3), 2)
    found = why(harness, harness.submit(), limits=[full, free], running=3)
    assert codes(found) == ["running_limit", "queued"]
    held = found.constraints[0]
    assert (held.of, held.name, held.running, held.running_max, held.tasks) == (of, "a", 3, 3, 1)


@pytest.mark.parametrize("of", ["workflow", "kind", "provider"])
def test_a_full_rate_is_named_with_its_numbers_and_when_it_lets_the_next_one_start(of: str) -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    oldest = harness.now - 48 * SECOND
    full, free = LimitUsage(Limit(of, "a", 3, 60), 3, oldest), LimitUsage(Limit("kind", "b", 3, 60), 2, oldest)
    found = why(harness, job_id, limits=[full, free], live_leases=1)
    assert codes(found) == ["rate_limit", "queued"]
    held = found.constraints[0]
    assert held.message == (
        f"3 tasks of {of} a started in the last minute, which is the limit: the next one may start in 12 seconds."
    )
    assert (held.of, held.name, held.started, held.started_in_window_max, held.within_seconds, held.tasks) == (
        of,
        "a",
        3,
        3,
        60,
        1,
    )
    assert held.active_until_at == oldest + 60 * SECOND
    assert (found.start.wait, found.start.p50) == (12 * SECOND, None)


@pytest.mark.parametrize(("ahead", "seconds"), [(0, 0), (1, 12), (3, 12), (4, 72), (7, 132)])
def test_a_rate_lets_the_later_ones_start_a_stretch_at_a_time(ahead: int, seconds: int) -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    rate = LimitUsage(Limit("kind", "draw", 3, 60), 2, harness.now - 48 * SECOND)
    found = why(harness, job_id, limits=[rate], ahead=ahead, durations=[SECOND] * 20, live_leases=1)
    assert found.start.wait == max(seconds * SECOND, (ahead + 1) * SECOND)
    assert ("rate" in found.start.reason) == bool(seconds)


def test_no_worker_is_said_only_after_nobody_came_for_a_while() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    since = harness.now
    harness.advance(NO_WORKER_SECONDS - 0.1)
    assert codes(why(harness, job_id)) == ["queued"]
    harness.advance(0.1)
    found = why(harness, job_id, durations=MINUTE)
    assert codes(found) == ["no_worker", "queued"]
    held = found.constraints[0]
    assert (held.of, held.name, held.active_since_at, held.workers) == ("kind", "draw", since, 0)
    assert (found.start.wait, found.start.reason) == (None, "No worker serves this kind of task now.")


def test_a_worker_that_works_or_has_just_ended_is_a_worker() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    harness.advance(600)
    assert codes(why(harness, job_id, live_leases=1)) == ["queued"]
    assert codes(why(harness, job_id, last_completed_at=harness.now - SECOND)) == ["queued"]
    assert codes(why(harness, job_id, last_completed_at=harness.now - NO_WORKER_SECONDS * SECOND)) == [
        "no_worker",
        "queued",
    ]
    assert "no_worker" not in codes(why(harness, job_id, limits=[LimitUsage(Limit("kind", "draw", 0), 0)]))


def test_what_is_held_back_is_not_missing_a_worker() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    harness.do(c.Pause(tenant="acme", job_id=job_id))
    harness.advance(600)
    assert codes(why(harness, job_id)) == ["paused"]


# -- at work


def test_a_failed_try_says_when_the_next_one_comes() -> None:
    harness = CoreHarness(STEADY)
    job_id = harness.submit("steady")
    harness.do(c.Fail(lease=harness.lease()))
    harness.advance(20)
    found = why(harness, job_id)
    held = only(found, "backoff")
    assert (held.active_until_at, held.tasks) == (harness.now + 40 * SECOND, 1)
    assert held.message == "1 task failed and will be retried: the first in 40 seconds."
    assert found.start.wait == 40 * SECOND


def test_a_wait_that_is_over_but_not_yet_looked_at_is_told_as_such() -> None:
    harness = CoreHarness(STEADY)
    job_id = harness.submit("steady")
    harness.do(c.Fail(lease=harness.lease()))
    harness.advance(61)
    found = why(harness, job_id)
    assert "less than a second" in only(found, "backoff").message
    assert found.start.wait == 0


def test_work_at_a_provider_says_since_when_and_until_when_and_never_its_reference() -> None:
    harness = CoreHarness(CLOUD)
    job_id = harness.submit("cloud")
    lease = harness.lease()
    harness.do(c.RecordIntent(lease=lease, provider="fal"))
    assert codes(why(harness, job_id)) == ["running"], "a worker is about to make the call"
    harness.do(c.HandOff(lease=lease, ref="ref-secret"))
    at = harness.now
    harness.advance(30)
    found = why(harness, job_id)
    held = only(found, "provider")
    assert (held.name, held.active_since_at, held.active_until_at) == ("fal", at, at + 3_600 * SECOND)
    assert "ref-secret" not in str(found)


def test_a_call_without_an_answer_says_that_it_is_looked_up() -> None:
    harness = CoreHarness(CLOUD)
    job_id = harness.submit("cloud")
    harness.do(c.RecordIntent(lease=harness.lease(), provider="fal"))
    harness.advance(1_000)
    harness.tick()
    held = only(why(harness, job_id), "provider")
    assert held.message == "It is unknown whether fal accepted 1 task: the server looks it up."


def test_a_running_job_says_since_when_how_far_and_on_how_many_workers() -> None:
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    since = harness.now
    first = harness.lease(worker="w1")
    harness.advance(5)
    harness.lease(worker="w2")
    harness.do(c.Heartbeat(lease=first, progress=40))
    found = why(harness, job_id, live_leases=2, running=2)
    assert codes(found) == ["queued", "running"]
    held = found.constraints[1]
    assert (held.tasks, held.workers, held.progress, held.active_since_at) == (2, 2, 20, since)
    assert held.message == "2 tasks are running on 2 workers."


def test_every_reason_of_a_stage_is_told_with_its_count() -> None:
    harness = CoreHarness(replace(FILM, retry=STEADY.retry))
    job_id = harness.submit("film")
    leased = harness.claim(2)
    harness.do(c.Fail(lease=leased[0].lease))
    found = why(harness, job_id, live_leases=1, running=1)
    assert [(held.code, held.tasks) for held in found.constraints] == [("queued", 1), ("backoff", 1), ("running", 1)]


# -- estimates


def test_the_start_is_estimated_from_position_places_and_durations() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    found = why(harness, job_id, ahead=3, running=2, live_leases=2, durations=MINUTE)
    start = found.start
    assert (start.wait, start.p50, start.p90, start.samples) == (120 * SECOND, 60 * SECOND, 60 * SECOND, 10)
    assert why(harness, job_id, durations=MINUTE).start.wait == 0
    assert why(harness, job_id, ahead=2, durations=MINUTE).start.wait == 120 * SECOND
    assert why(harness, job_id, live_leases=9, durations=MINUTE).start.wait == 60 * SECOND


def test_without_enough_samples_there_is_no_estimate_but_a_reason() -> None:
    harness = CoreHarness(DRAW)
    job_id = harness.submit()
    start = why(harness, job_id, durations=MINUTE[:4]).start
    assert (start.wait, start.p50, start.p90, start.samples) == (None, None, None, 4)
    assert start.reason == "4 tasks of its queue completed so far; an estimate needs at least 5."


def test_progress_is_estimated_for_a_kind_that_reports_none() -> None:
    harness = CoreHarness(DRAW)
    job_id, _ = harness.started()
    told = []
    for _ in range(5):
        left = why(harness, job_id, durations=MINUTE).remaining
        told.append((left.percent, left.p50, left.p90))
        harness.advance(20)
    assert told == [
        (0, 60 * SECOND, 60 * SECOND), (30, 40 * SECOND, 40 * SECOND), (60, 20 * SECOND, 20 * SECOND),
        (99, None, None), (99, None, None),
    ]  # fmt: skip
    late = why(harness, job_id, durations=MINUTE).remaining
    assert (late.samples, late.reason) == (10, "It has taken longer than each of the last 10.")


def test_reported_progress_goes_before_an_estimate() -> None:
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.advance(50)
    harness.do(c.Heartbeat(lease=lease, progress=10))
    left = why(harness, job_id, durations=MINUTE).remaining
    assert (left.percent, left.p50) == (10, 10 * SECOND)


def test_progress_counts_what_is_done_and_says_what_is_left_out() -> None:
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    leased = harness.claim(3)
    harness.do(c.Complete(lease=leased[0].lease))
    harness.advance(20)
    left = why(harness, job_id, durations=MINUTE).remaining
    assert (left.percent, left.reason) == (26, "Time until its running tasks end; more tasks follow.")
    assert harness.job(job_id).progress <= 26


def test_nothing_is_estimated_of_what_does_not_run() -> None:
    harness = CoreHarness(DRAW)
    left = why(harness, harness.submit(), durations=MINUTE).remaining
    assert (left.percent, left.reason) == (None, "None of its tasks is running.")


def test_the_first_ready_task_is_the_one_a_claim_would_be_offered() -> None:
    harness = CoreHarness(FILM)
    job_id = harness.submit("film")
    first = first_ready(harness.tasks(job_id))
    assert first is not None
    assert first.id == harness.lease().task_id
    assert first_ready([]) is None


def test_a_user_cap_is_never_a_reason() -> None:
    """It refuses at submit: an accepted job is never held by it."""
    harness = CoreHarness(DRAW)
    harness.do(c.PutTenant(tenant="acme", active_jobs_max=1))
    job_id = harness.submit()
    assert harness.expect_refusal(c.Submit(tenant="acme", user="ann", workflow="draw")).code == "too_many_active_jobs"
    assert codes(why(harness, job_id, live_leases=1)) == ["queued"]
    assert len(list(harness.all(Job))) == 1
