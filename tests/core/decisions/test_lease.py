"""Leases: only the newest token is valid, repeated reports get the same answer, and each attempt counts once."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Attempt, Document, Task
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy, StageSpec, WorkflowDefinition
from tests.core.rule_harness import DRAW, CoreHarness

RETRYING = replace(DRAW, retry=RetryPolicy(on="any", attempts_max=3, requeues_max=2, backoff=Backoff(jitter=0)))


def _reports(lease: c.Lease) -> list[c.Command]:
    return [
        c.Heartbeat(lease=lease),
        c.Complete(lease=lease, output=1),
        c.Fail(lease=lease, message="x"),
        c.Requeue(lease=lease, reason="x"),
        c.RecordIntent(lease=lease, provider="p"),
    ]


# -- claim


def test_a_claim_starts_the_task_its_stage_and_its_job() -> None:
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
    job = harness.job(job_id)
    assert (job.status, job.started_at, job.finished_at) == ("running", harness.now, None)
    assert [stage.status for stage in harness.stages(job_id)] == ["running"]
    assert harness.claim() == [], "no other worker gets the task"


def test_only_the_hash_of_a_lease_token_is_stored() -> None:
    """A1."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    task, attempt = harness.get(Task, lease.task_id), harness.get(Attempt, (lease.task_id, 1))
    assert not [row for row in (task, attempt, *harness.events(job_id)) if lease.token in str(row)]
    assert re.fullmatch("[0-9a-f]{64}", task.token_hash or "")
    assert attempt.token_hash == task.token_hash


def test_two_claims_of_one_batch_get_different_tasks() -> None:
    """R184."""
    harness = CoreHarness(DRAW)
    for _ in range(3):
        harness.submit()
    claim = c.Claim(worker_id="w", kinds=("draw",), count=2)
    one, two = harness.batch(claim, claim)
    assert len({leased.lease.task_id for leased in [*one, *two]}) == 3


@pytest.mark.parametrize(
    ("invalid", "code"),
    [
        ({"count": 0}, "out_of_range"),
        ({"count": 1_001}, "out_of_range"),
        ({"kinds": ()}, "invalid_claim"),
        ({"worker_id": ""}, "invalid_claim"),
        ({"lease_seconds": 0}, "out_of_range"),
        ({"lease_seconds": 86_401}, "out_of_range"),
    ],
)
def test_an_invalid_claim_is_refused(invalid: dict[str, Any], code: str) -> None:
    harness = CoreHarness(DRAW)
    harness.submit()
    assert harness.expect_refusal(c.Claim(**{"worker_id": "w", "kinds": ("draw",), **invalid})).code == code


def test_a_repeated_claim_gets_the_same_tasks() -> None:
    """F7: it has the same tokens, so no attempt is counted twice."""
    harness = CoreHarness(DRAW)
    for _ in range(3):
        harness.submit()
    claim = c.Claim(worker_id="w", kinds=("draw",), count=2, tokens=("t1", "t2"), lease_seconds=60)
    first = harness.do(claim)
    [retrying] = harness.batch(claim, retrying=True)
    assert sorted(retrying, key=str) == sorted(first, key=str)
    assert [task.attempts for task in harness.all(Task)].count(1) == 2


# -- stale leases and repeated reports


def _stale_lease(harness: CoreHarness, how: str) -> c.Lease:
    """Return a lease that is not valid."""
    _, lease = harness.started("retrying")
    if how == "expired and leased again":
        harness.advance(901)
        harness.tick()
        harness.advance(10)
        harness.tick()
        assert harness.lease().attempt == 2
    elif how == "another token":
        return replace(lease, token="guessed")
    elif how == "handed off":
        harness.do(c.RecordIntent(lease=lease, provider="p"))
        harness.do(c.HandOff(lease=lease, ref="r"))
    elif how == "an unknown attempt":
        return replace(lease, attempt=7, token="guessed")
    return lease


@pytest.mark.parametrize("how", ["expired and leased again", "another token", "handed off", "an unknown attempt"])
@pytest.mark.parametrize("report", range(5), ids=["heartbeat", "complete", "fail", "requeue", "intend"])
def test_a_stale_lease_changes_nothing(how: str, report: int) -> None:
    """R194, R228, R240, R250, R257, H7, L5."""
    harness = CoreHarness(replace(RETRYING, name="retrying"))
    lease = _stale_lease(harness, how)
    unknown = how in {"another token", "an unknown attempt"}
    assert harness.expect_refusal(_reports(lease)[report]).code == ("lease_not_found" if unknown else "lease_lost")


@pytest.mark.parametrize("report", range(5), ids=["heartbeat", "complete", "fail", "requeue", "intend"])
def test_a_token_of_another_task_is_refused(report: int) -> None:
    """R240, R250, R257."""
    harness = CoreHarness(DRAW)
    _, one = harness.started()
    other_job, two = harness.started()
    for lease in (replace(one, job_id=other_job), replace(one, task_id="no-task")):
        assert harness.expect_refusal(_reports(lease)[report]).code == "task_not_found"
    assert harness.expect_refusal(_reports(replace(one, token=two.token))[report]).code == "lease_not_found"


def test_a_repeated_completion_gets_the_same_answer_and_a_different_one_is_refused() -> None:
    """R241, R316, H8."""
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    first = harness.do(c.Complete(lease=lease, output={"a": 1}))
    before = harness.snapshot()
    repeated = harness.do(c.Complete(lease=lease, output={"a": 1}))
    assert repeated == replace(first, replay=True)
    assert harness.snapshot() == before
    assert harness.expect_refusal(c.Complete(lease=lease, output={"a": 2})).code == "lease_lost"
    assert harness.expect_refusal(c.Fail(lease=lease)).code == "lease_lost"
    assert harness.expect_refusal(c.Requeue(lease=lease, reason="x")).code == "lease_lost"


@pytest.mark.parametrize("report", ["fail", "requeue"])
def test_a_repeated_failure_or_requeue_counts_once(report: str) -> None:
    """R316: even if the task has been leased again."""
    harness = CoreHarness(RETRYING)
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


# -- heartbeats


def test_a_heartbeat_extends_the_lease_and_never_shortens_it() -> None:
    """R227: the answer is a duration, so the clocks of server and worker need not agree."""
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    harness.advance(100)
    assert harness.do(c.Heartbeat(lease=lease)) == c.HeartbeatResult(900.0, cancel=False)
    assert harness.do(c.Heartbeat(lease=lease, lease_seconds=5)) == c.HeartbeatResult(900.0, cancel=False)
    harness.now -= 50 * SECOND
    assert harness.do(c.Heartbeat(lease=lease)).lease_seconds == 950.0
    assert harness.do(c.Heartbeat(lease=lease, lease_seconds=2_000)).lease_seconds == 2_000.0


@pytest.mark.parametrize(
    ("invalid", "code"),
    [
        ({"progress": -1}, "out_of_range"),
        ({"progress": 101}, "out_of_range"),
        ({"progress": True}, "out_of_range"),
        ({"message": "x" * 2_001}, "message_too_long"),
        ({"log": ("line",) * 101}, "out_of_range"),
    ],
)
def test_an_invalid_heartbeat_is_refused(invalid: dict[str, Any], code: str) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    assert harness.expect_refusal(c.Heartbeat(lease=lease, **invalid)).code == code


@pytest.mark.parametrize(("requested", "granted"), [(10**9, 86_400.0), (-5, 900.0)])
def test_a_requested_lease_time_is_clamped_to_its_limits(requested: int, granted: float) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    assert harness.do(c.Heartbeat(lease=lease, lease_seconds=requested)).lease_seconds == granted


def test_progress_is_an_event_and_the_progress_of_a_job_never_decreases() -> None:
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
    data = [event.data for event in harness.events(job_id) if event.type == "task.progressed"]
    assert '"message":"half way"' in (data[0] or "")


def test_progress_after_the_end_of_a_job_is_ignored() -> None:
    """R112, J12."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Cancel(tenant="acme", job_id=job_id, grace_seconds=0))
    before = harness.snapshot()
    assert harness.do(c.Heartbeat(lease=lease, progress=50, message="late")).cancel
    assert harness.snapshot() == before


# -- the end of an attempt


@pytest.mark.parametrize("how", ["fail", "expire"])
def test_a_job_fails_after_its_last_attempt(how: str) -> None:
    """R74, R151, R189, R192, R402, R410, R413, R417, G4, G7."""
    harness = CoreHarness(RETRYING)
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
    assert [stage.status for stage in harness.stages(job_id)] == ["failed"]
    assert harness.claim() == []
    assert harness.job(job_id).error_code == {"fail": "oom", "expire": "lease_expired"}[how]
    assert harness.ledger(job_id)[-1] == ("refund", 10, 0)
    outcomes = [attempt.outcome for attempt in harness.all(Attempt)]
    assert outcomes == [{"fail": "failed", "expire": "lost"}[how]] * 3


def test_a_failed_attempt_is_retried_after_its_backoff_and_the_job_stays_running() -> None:
    """R115, R116, R193, R414, C5, L12."""
    harness = CoreHarness(RETRYING)
    job_id, lease = harness.started()
    started_at = harness.job(job_id).started_at
    harness.do(c.Fail(lease=lease))
    assert (harness.job(job_id).status, harness.tasks(job_id)[0].status) == ("running", "retried")
    harness.advance(1.9)
    harness.tick()
    assert harness.claim() == []
    harness.advance(0.1)
    harness.tick()
    assert harness.lease().attempt == 2
    assert harness.job(job_id).started_at == started_at


def test_a_requeue_counts_no_attempt_and_the_task_is_claimable_at_once() -> None:
    """R258, R259, R260, H25."""
    harness = CoreHarness(RETRYING)
    job_id, lease = harness.started()
    harness.do(c.Requeue(lease=lease, reason="spot notice"))
    task = harness.tasks(job_id)[0]
    assert (task.status, task.attempts, task.attempts_counted, task.requeues) == ("retried", 1, 0, 1)
    assert (task.token_hash, task.lease_expires_at, task.error_message) == (None, None, "Requeued: spot notice")
    assert harness.get(Attempt, (task.id, 1)).uncounted == 1
    assert harness.lease().attempt == 2


def test_a_task_fails_when_it_exceeds_the_limit_of_requeues() -> None:
    """R262, G7."""
    harness = CoreHarness(RETRYING)
    job_id = harness.submit()
    for _ in range(3):
        harness.do(c.Requeue(lease=harness.lease(), reason="spot"))
    assert (harness.job(job_id).status, harness.job(job_id).error_code) == ("failed", "requeue_exhausted")
    assert harness.tasks(job_id)[0].attempts_counted == 0


def test_a_requeue_needs_a_reason() -> None:
    """R257."""
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    assert harness.expect_refusal(c.Requeue(lease=lease, reason="  ")).code == "reason_required"


def test_a_task_with_an_expired_lease_is_leased_to_the_next_worker() -> None:
    """R151, R307, H6, V2: a second tick changes nothing."""
    harness = CoreHarness(RETRYING)
    job_id, lease = harness.started()
    harness.advance(900)
    harness.tick()
    before = harness.snapshot()
    harness.tick()
    assert harness.snapshot() == before
    harness.advance(2)
    harness.tick()
    next_lease = harness.lease(worker="w2")
    assert (next_lease.attempt, next_lease.task_id) == (2, lease.task_id)
    assert harness.do(c.Complete(lease=next_lease)).job_status == "completed"
    assert harness.event_types(job_id).count("task.completed") == 1


def test_an_extended_lease_does_not_expire() -> None:
    """R227."""
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    harness.advance(899)
    harness.do(c.Heartbeat(lease=lease))
    harness.advance(2)
    harness.do(c.TickTask(job_id=lease.job_id, task_id=lease.task_id))
    assert harness.get(Task, lease.task_id).status == "running"


def test_the_output_is_stored_under_its_attempt() -> None:
    """R6, R48, O1."""
    harness = CoreHarness(RETRYING)
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
def test_an_invalid_output_is_refused_and_the_lease_stays(output: Any, code: str) -> None:
    harness = CoreHarness(DRAW)
    _, lease = harness.started()
    assert harness.expect_refusal(c.Complete(lease=lease, output=output)).code == code
    assert harness.do(c.Complete(lease=lease, output=1)).status == "completed"


def test_a_failed_job_has_a_cleaned_error_code_and_message() -> None:
    """R60, R251, R253, R263."""
    harness = CoreHarness(DRAW)
    job_id, lease = harness.started()
    harness.do(c.Fail(lease=lease, code="bad code\n!", message="see https://x.example/a?token=abc\nline two"))
    job = harness.job(job_id)
    assert (job.error_code, job.error_message, job.finished_at) == ("badcode", "see [url]", harness.now)
    assert "x.example" not in str(harness.events(job_id))
