"""Leases: only the newest token counts, a repeated report gets the same answer, and tries are counted once."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Attempt, Document, Task
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from tests.core.rule_harness import DRAW, CoreHarness

STEADY = replace(DRAW, retry=RetryPolicy(on="any", attempts_max=3, requeues_max=2, backoff=Backoff(jitter=0)))


def _reports(lease: c.Lease) -> list[c.Command]:
    return [
        c.Heartbeat(lease=lease),
        c.Complete(lease=lease, output=1),
        c.Fail(lease=lease, message="x"),
        c.Requeue(lease=lease, reason="x"),
        c.RecordIntent(lease=lease, provider="p"),
    ]


# -- claim


def test_a_claim_takes_the_task_and_starts_stage_job_and_try() -> None:
    """R14, R106, R191, R193, R384, R400, R412."""
    harness = CoreHarness(DRAW)
    job_id = harness.submit(input={"n": 1}, trace={"traceparent": "00-1"})
    harness.advance(5)
    [leased] = harness.claim(worker="w7")
    task = harness.get(Task, leased.lease.task_id)
    assert (task.status, task.worker_id, task.attempts, task.attempts_counted) == ("running", "w7", 1, 1)
    assert task.lease_expires_at == task.due_at == harness.now + 900 * SECOND
    assert (leased.input, leased.lease_seconds, leased.stage, leased.task_no) == ('{"n":1}', 900, "draw", 1)
    assert leased.trace == '{"traceparent":"00-1"}'
    assert harness.job(job_id).started_at == harness.now
    assert harness.claim() == [], "R184: nobody else gets it"


def test_the_token_is_stored_only_as_its_hash() -> None:
    """A1, R205, L10."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    kept = [harness.get(Task, lease.task_id), harness.get(Attempt, (lease.task_id, 1)), *harness.events(job_id)]
    assert not [row for row in kept if lease.token in str(row)]


def test_two_claims_of_one_batch_share_what_there_is() -> None:
    """R150, R184."""
    harness = CoreHarness(DRAW)
    for _ in range(3):
        harness.submit()
    claim = c.Claim(worker_id="w", kinds=("draw",), count=2)
    one, two = harness.batch(claim, claim)
    assert len({leased.lease.task_id for leased in [*one, *two]}) == 3


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"count": 0}, "out_of_range"),
        ({"count": 1_001}, "out_of_range"),
        ({"kinds": ()}, "invalid_claim"),
        ({"worker_id": ""}, "invalid_claim"),
        ({"lease_seconds": 0}, "out_of_range"),
        ({"lease_seconds": 86_401}, "out_of_range"),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(wrong: dict[str, Any], code: str) -> None:
    harness = CoreHarness(DRAW)
    harness.submit()
    assert harness.expect_refusal(c.Claim(**{"worker_id": "w", "kinds": ("draw",), **wrong})).code == code


def test_a_claim_whose_answer_was_lost_gets_its_own_tasks_again() -> None:
    """H6, F7: the same tokens, so no try is used up."""
    harness = CoreHarness(DRAW)
    for _ in range(3):
        harness.submit()
    claim = c.Claim(worker_id="w", kinds=("draw",), count=2, tokens=("t1", "t2"), lease_seconds=60)
    first = harness.do(claim)
    [retrying] = harness.batch(claim, retrying=True)
    assert sorted(retrying, key=str) == sorted(first, key=str)
    assert [task.attempts for task in harness.all(Task)].count(1) == 2


# -- fencing


def _stale(harness: CoreHarness, how: str) -> c.Lease:
    """Return a lease that does not count any more."""
    _, lease = harness.started("steady")
    if how == "expired and taken again":
        harness.advance(901)
        harness.tick()
        harness.advance(10)
        harness.tick()
        assert harness.lease().attempt == 2
    elif how == "another token":
        return replace(lease, token="guessed")
    elif how == "handed over":
        harness.do(c.RecordIntent(lease=lease, provider="p"))
        harness.do(c.HandOff(lease=lease, ref="r"))
    elif how == "an attempt that never was":
        return replace(lease, attempt=7, token="guessed")
    return lease


@pytest.mark.parametrize(
    "how", ["expired and taken again", "another token", "handed over", "an attempt that never was"]
)
@pytest.mark.parametrize("report", range(5), ids=["heartbeat", "complete", "fail", "requeue", "intend"])
def test_a_stale_lease_changes_nothing(how: str, report: int) -> None:
    """R194, R228, R240, R250, R257, H7, L5: compared row by row."""
    harness = CoreHarness(replace(STEADY, name="steady"))
    lease = _stale(harness, how)
    made_up = how in {"another token", "an attempt that never was"}
    assert harness.expect_refusal(_reports(lease)[report]).code == ("lease_not_found" if made_up else "lease_lost")


@pytest.mark.parametrize("report", range(5), ids=["heartbeat", "complete", "fail", "requeue", "intend"])
def test_a_foreign_task_looks_absent(report: int) -> None:
    """R159: a right token under a wrong job or task tells nothing."""
    harness = CoreHarness(DRAW)
    _, one = harness.started()
    other_job, two = harness.started()
    for lease in (replace(one, job_id=other_job), replace(one, task_id="no-task")):
        assert harness.expect_refusal(_reports(lease)[report]).code == "task_not_found"
    assert harness.expect_refusal(_reports(replace(one, token=two.token))[report]).code == "lease_not_found"


def test_a_repeated_completion_gets_the_same_answer_and_another_result_does_not() -> None:
    """R241, R316, H8."""
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    first = harness.do(c.Complete(lease=lease, output={"a": 1}))
    before = harness.snapshot()
    retrying = harness.do(c.Complete(lease=lease, output={"a": 1}))
    assert retrying == replace(first, replay=True)
    assert harness.snapshot() == before
    assert harness.expect_refusal(c.Complete(lease=lease, output={"a": 2})).code == "lease_lost"
    assert harness.expect_refusal(c.Fail(lease=lease)).code == "lease_lost"
    assert harness.expect_refusal(c.Requeue(lease=lease, reason="x")).code == "lease_lost"


@pytest.mark.parametrize("report", ["fail", "requeue"])
def test_a_repeated_failure_or_requeue_counts_once_even_after_the_next_lease(report: str) -> None:
    """R252, R317, H25."""
    harness = CoreHarness(STEADY)
    _, lease = harness.started()
    command: c.Command = c.Fail(lease=lease) if report == "fail" else c.Requeue(lease=lease, reason="spot")
    assert harness.do(command).status == "retried"
    harness.advance(10)
    harness.tick()
    harness.lease()
    before = harness.snapshot()
    assert harness.do(command).replay
    assert harness.snapshot() == before
    assert harness.expect_refusal(c.Complete(lease=lease)).code == "lease_lost"


# -- while it runs


def test_a_heartbeat_prolongs_from_now_and_never_back() -> None:
    """R227: and it answers with a duration, not an instant."""
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    harness.advance(100)
    assert harness.do(c.Heartbeat(lease=lease)) == c.HeartbeatResult(900.0, cancel=False)
    assert harness.do(c.Heartbeat(lease=lease, lease_seconds=5)) == c.HeartbeatResult(900.0, cancel=False)
    harness.now -= 50 * SECOND
    assert harness.do(c.Heartbeat(lease=lease)).lease_seconds == 950.0
    assert harness.do(c.Heartbeat(lease=lease, lease_seconds=2_000)).lease_seconds == 2_000.0


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"progress": -1}, "out_of_range"),
        ({"progress": 101}, "out_of_range"),
        ({"progress": True}, "out_of_range"),
        ({"message": "x" * 2_001}, "message_too_long"),
        ({"log": ("line",) * 101}, "out_of_range"),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(wrong: dict[str, Any], code: str) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    assert harness.expect_refusal(c.Heartbeat(lease=lease, **wrong)).code == code


@pytest.mark.parametrize(("asked", "given"), [(10**9, 86_400.0), (-5, 900.0)])
def test_a_lease_asked_for_too_long_or_too_short_is_held_within_its_limits(asked: int, given: float) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    assert harness.do(c.Heartbeat(lease=lease, lease_seconds=asked)).lease_seconds == given


def test_progress_is_told_and_the_jobs_own_never_goes_back() -> None:
    """R107."""
    stages = [StageSpec(name="a", kind="draw", tasks=2), StageSpec(name="b", kind="draw")]
    harness = CoreHarness(WorkflowDefinition(name="two", stages=stages))
    job_id = harness.submit("two")
    one, two = harness.claim(2)
    harness.do(c.Heartbeat(lease=one.lease, progress=60, message="half way"))
    assert (harness.tasks(job_id)[0].progress, harness.job(job_id).progress) == (60, 15)
    harness.do(c.Heartbeat(lease=one.lease, progress=10))
    assert (harness.tasks(job_id)[0].progress, harness.job(job_id).progress) == (10, 15)
    harness.do(c.Complete(lease=one.lease))
    harness.do(c.Complete(lease=two.lease))
    assert harness.job(job_id).progress == 50
    assert harness.event_types(job_id).count("task.progressed") == 2
    told = [event.data for event in harness.events(job_id) if event.type == "task.progressed"]
    assert '"message":"half way"' in (told[0] or "")


def test_no_progress_is_told_after_the_end() -> None:
    """R112, J12."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Cancel(tenant="acme", job_id=job_id, grace_seconds=0))
    before = harness.snapshot()
    assert harness.do(c.Heartbeat(lease=lease, progress=50, message="late")).cancel
    assert harness.snapshot() == before


# -- the end of a try


@pytest.mark.parametrize("how", ["fail", "lapse"])
def test_tries_are_used_up_one_by_one_and_then_the_job_fails(how: str) -> None:
    """R74, R151, R192, R402, R410, R413, R417, G4, G7: three tries are three starts."""
    harness = CoreHarness(STEADY)
    job_id = harness.submit()
    for attempt in (1, 2, 3):
        harness.advance(60)
        harness.tick()
        lease = harness.lease()
        assert lease.attempt == attempt
        if how == "fail":
            harness.do(c.Fail(lease=lease, code="oom"))
        else:
            harness.advance(901)
            harness.tick()
    assert harness.job(job_id).status == "failed"
    assert harness.job(job_id).error_code == {"fail": "oom", "lapse": "lease_expired"}[how]
    assert harness.ledger(job_id)[-1] == ("refund", 10, 0)
    outcomes = [attempt.outcome for attempt in harness.all(Attempt)]
    assert outcomes == [{"fail": "failed", "lapse": "lost"}[how]] * 3


def test_a_failed_try_waits_out_its_backoff_and_the_job_stays_running() -> None:
    """R115, R414, C5, L12."""
    harness = CoreHarness(STEADY)
    job_id, lease = harness.started()
    started = harness.job(job_id).started_at
    harness.do(c.Fail(lease=lease))
    assert (harness.job(job_id).status, harness.tasks(job_id)[0].status) == ("running", "retried")
    harness.advance(1.9)
    harness.tick()
    assert harness.claim() == []
    harness.advance(0.1)
    harness.tick()
    assert harness.lease().attempt == 2
    assert harness.job(job_id).started_at == started, "R116"


def test_a_requeue_uses_up_no_try_and_is_offered_at_once() -> None:
    """R231, R257, R258, R259, R260, H25."""
    harness = CoreHarness(STEADY)
    job_id, lease = harness.started()
    harness.do(c.Requeue(lease=lease, reason="spot notice"))
    task = harness.tasks(job_id)[0]
    assert (task.status, task.attempts, task.attempts_counted, task.requeues) == ("retried", 1, 0, 1)
    assert (task.token_hash, task.lease_expires_at, task.error_message) == (None, None, "Requeued: spot notice")
    assert harness.get(Attempt, (task.id, 1)).uncounted == 1
    assert harness.lease().attempt == 2


def test_requeues_have_their_own_limit() -> None:
    """R262: a worker that gives back for ever fails the task in the end."""
    harness = CoreHarness(STEADY)
    job_id = harness.submit()
    for _ in range(3):
        harness.do(c.Requeue(lease=harness.lease(), reason="spot"))
    assert (harness.job(job_id).status, harness.job(job_id).error_code) == ("failed", "requeue_exhausted")
    assert harness.tasks(job_id)[0].attempts_counted == 0


def test_a_requeue_says_why() -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    assert harness.expect_refusal(c.Requeue(lease=lease, reason="  ")).code == "reason_required"


def test_a_lease_that_ran_out_is_given_to_the_next_worker() -> None:
    """R151, R194, R307, H6, V2: and the clock may look twice."""
    harness = CoreHarness(STEADY)
    job_id, lease = harness.started()
    harness.advance(900)
    harness.tick()
    before = harness.snapshot()
    harness.tick()
    assert harness.snapshot() == before
    harness.advance(2)
    harness.tick()
    retrying = harness.lease(worker="w2")
    assert (retrying.attempt, retrying.task_id) == (2, lease.task_id)
    assert harness.do(c.Complete(lease=retrying)).job_status == "completed"
    assert harness.event_types(job_id).count("task.completed") == 1


def test_the_clock_leaves_a_prolonged_lease_alone() -> None:
    """R227."""
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    harness.advance(899)
    harness.do(c.Heartbeat(lease=lease))
    harness.advance(2)
    harness.do(c.TickTask(job_id=lease.job_id, task_id=lease.task_id))
    assert harness.get(Task, lease.task_id).status == "running"


def test_the_result_is_kept_under_its_attempt() -> None:
    """R6, R48, O2: the accepted one is told with its digest."""
    harness = CoreHarness(STEADY)
    _, lease = harness.started()
    harness.do(c.Requeue(lease=lease, reason="spot"))
    harness.do(c.Complete(lease=harness.lease(), output={"url": "x"}))
    assert [(d.name, d.body) for d in harness.all(Document)] == [("output:2", '{"url":"x"}')]
    assert harness.get(Attempt, (lease.task_id, 2)).digest


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("x" * 2**20, "output_too_large"),
        (float("nan"), "invalid_output"),
        ({"a": object()}, "invalid_output"),
    ],
)
def test_a_result_that_is_no_result_is_refused_and_the_lease_is_kept(output: Any, code: str) -> None:
    """H9."""
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    assert harness.expect_refusal(c.Complete(lease=lease, output=output)).code == code
    assert harness.do(c.Complete(lease=lease, output=1)).status == "completed"


def test_an_error_is_told_without_its_secrets_and_its_code_is_a_word() -> None:
    """R60, R63, R99, R253, R263."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Fail(lease=lease, code="bad code\n!", message="see https://x.example/a?token=abc\nline two"))
    job = harness.job(job_id)
    assert (job.error_code, job.error_message) == ("badcode", "see [address]")
    assert "x.example" not in str(harness.events(job_id))
