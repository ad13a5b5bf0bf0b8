"""Leases: one holder at a time, identified by a token and an attempt; a repeated report gets the same answer."""

import pytest
from msgspec.structs import replace

from callsheet.core.decisions.lease_check import hash_token
from callsheet.core.model.commands import Claim, Command, Complete, Fail, Heartbeat, Lease, RecordIntent, Requeue
from tests.support.engine.engine_harness import EngineHarness, stage


def reports(lease: Lease) -> list[Command]:
    return [
        Heartbeat(lease=lease),
        Heartbeat(lease=lease, progress=50),
        Complete(lease=lease, output={"late": True}),
        Fail(lease=lease, message="late"),
        Requeue(lease=lease, reason="late"),
        RecordIntent(lease=lease, provider="p"),
    ]


def test_a_task_is_leased_once(harness: EngineHarness) -> None:
    # R150, R184, R304, R412, L1
    harness.submit_job()
    assert len(harness.claim(count=5)) == 1
    assert harness.claim(worker="w2") == []


def test_a_lease_has_a_token_an_attempt_number_and_an_expiry(harness: EngineHarness) -> None:
    # R191, R196, R304, L3, L10, A1: the expiry uses the clock of the database
    job = harness.submit_job()
    (leased,) = harness.claim(lease_seconds=77)
    assert (leased.lease.attempt, leased.lease_seconds, len(leased.lease.token) >= 32) == (1, 77, True)
    (task,) = harness.tasks(job)
    assert task.lease_expires_at == harness.clock.now() + 77_000_000
    assert (task.worker_id, task.token_hash) == ("w1", hash_token(leased.lease.token))
    assert leased.lease.token not in repr(harness.snapshot()), "only the token's hash is stored"


def test_a_task_row_has_its_queue_lease_worker_attempts_and_last_error(harness: EngineHarness) -> None:
    # R179, R182, R185
    harness.workflow("film", stages=[stage("render", provider="cloud")])
    job = harness.submit_job("film", priority=70)
    (leased,) = harness.claim("render")
    (task,) = harness.tasks(job)
    (queue,) = harness.reads.fetch("queues_sharing", kinds=[], workflows=["film"], providers=[])
    assert (task.tenant, task.job_id, task.queue, leased.workflow, leased.kind) == (
        "acme", job, queue[0], "film", "render",
    )  # fmt: skip
    assert harness.stages(job)[0].provider == "cloud"
    assert (task.status, task.token_hash, task.lease_expires_at, task.worker_id) == (
        "running", hash_token(leased.lease.token), harness.clock.now() + 900_000_000, "w1",
    )  # fmt: skip
    assert (task.attempts, task.priority) == (1, 70)
    harness.clock.advance(8)
    harness.fail(leased.lease, "FFmpeg exited with 1")
    (task,) = harness.tasks(job)
    assert (task.status, task.error_message) == ("failed", "FFmpeg exited with 1")
    assert (task.finished_at or 0) - (task.started_at or 0) == 8_000_000


def test_the_workflow_sets_the_length_of_a_lease(harness: EngineHarness) -> None:
    # R191
    harness.submit_job()
    assert harness.claim()[0].lease_seconds == 900
    harness.workflow(lease_seconds=60)
    harness.submit_job()
    assert harness.claim()[0].lease_seconds == 60


def test_a_worker_gets_only_tasks_of_the_kinds_that_it_names(harness: EngineHarness) -> None:
    # R187, L7
    harness.workflow("film", stages=[stage("cut")])
    harness.submit_job()
    harness.submit_job("film")
    assert harness.claim("paint") == []
    assert [leased.kind for leased in harness.claim("cut", count=9)] == ["cut"]
    assert [leased.kind for leased in harness.claim("paint", "draw", count=9)] == ["draw"]


def test_one_claim_can_name_several_kinds(harness: EngineHarness) -> None:
    # R187
    harness.workflow("film", stages=[stage("cut")])
    for _ in range(3):
        harness.submit_job()
        harness.submit_job("film")
    kinds = [harness.claim("draw", "cut")[0].kind for _ in range(4)]
    assert sorted(kinds[:2]) == sorted(kinds[2:]) == ["cut", "draw"], "the two queues take turns"
    assert len(harness.claim("draw", "cut", count=9)) == 2


def test_a_claim_without_work_is_empty_and_writes_nothing(harness: EngineHarness) -> None:
    # R216
    before = harness.snapshot()
    assert harness.claim("draw", "nothing", count=100) == []
    assert harness.snapshot() == before


@pytest.mark.parametrize(
    "fields",
    [{"kinds": ()}, {"worker_id": ""}, {"count": 0}, {"count": 1_001}, {"lease_seconds": 0}, {"lease_seconds": 86_401}],
)
def test_an_invalid_claim_is_refused(harness: EngineHarness, fields: dict[str, object]) -> None:
    harness.submit_job()
    command = replace(Claim(worker_id="w1", kinds=("draw",)), **fields)
    assert harness.expect_refusal(command).code in {"invalid_claim", "out_of_range"}
    assert len(harness.claim()) == 1


def test_a_heartbeat_extends_the_lease_and_never_shortens_it(harness: EngineHarness) -> None:
    # R227
    job = harness.submit_job()
    lease = harness.claim_one(lease_seconds=100)
    harness.clock.advance(60)
    assert harness.heartbeat(lease).lease_seconds == 900
    assert harness.heartbeat(lease, lease_seconds=10).lease_seconds == 900, "a lease is never shortened"
    assert harness.heartbeat(lease, lease_seconds=1_000).lease_seconds == 1_000
    assert harness.tasks(job)[0].lease_expires_at == harness.clock.now() + 1_000_000_000
    harness.advance(999)
    assert harness.complete(lease).job_status == "completed"


def test_heartbeats_keep_a_task_that_takes_longer_than_its_lease(harness: EngineHarness) -> None:
    # R227
    harness.workflow(lease_seconds=30)
    job = harness.submit_job()
    lease = harness.claim_one()
    for _ in range(20):
        harness.advance(20)
        harness.heartbeat(lease)
    assert harness.complete(lease).job_status == "completed"
    assert len(harness.reads.attempts(lease.task_id)) == 1
    assert harness.events(job).count("task.leased") == 1


def test_reports_with_an_old_lease_token_change_nothing(harness: EngineHarness) -> None:
    # R194, H7, L5
    harness.submit_job()
    stale = harness.claim_one(lease_seconds=10)
    harness.advance(10)
    harness.advance(10)
    live = harness.claim_one(worker="w2")
    assert (live.attempt, live.token != stale.token) == (2, True)
    before = harness.snapshot()
    for report in reports(stale):
        assert harness.expect_refusal(report).code == "lease_lost"
    assert harness.snapshot() == before
    assert harness.complete(live).job_status == "completed"
    after = harness.snapshot()
    for report in reports(stale):
        assert harness.expect_refusal(report).code == "lease_lost"
    assert harness.snapshot() == after


def test_reports_with_a_lease_of_another_task_or_an_invented_one_are_refused(harness: EngineHarness) -> None:
    # R240, R250, R257
    job, other = harness.submit_job(), harness.submit_job()
    own, foreign = (leased.lease for leased in harness.claim(count=2))
    before = harness.snapshot()
    for invalid, code in [
        (replace(own, token=foreign.token), "lease_not_found"),
        (replace(own, token=""), "lease_not_found"),
        (replace(own, token=hash_token(own.token)), "lease_not_found"),
        (replace(own, job_id=other), "task_not_found"),
        (replace(own, task_id="unknown"), "task_not_found"),
        (replace(own, job_id="unknown"), "task_not_found"),
    ]:
        for report in reports(invalid):
            assert harness.expect_refusal(report).code == code
    assert harness.snapshot() == before
    assert harness.complete(own).job_id == job


def test_a_repeated_completion_gets_the_same_answer(harness: EngineHarness) -> None:
    # R241, R316, H8
    harness.submit_job()
    lease = harness.claim_one()
    first = harness.complete(lease, {"a": 1, "b": 2})
    before = harness.snapshot()
    repeated = harness.complete(lease, {"b": 2, "a": 1})
    assert (first.replay, repeated.replay) == (False, True)
    assert (repeated.status, repeated.job_status) == (first.status, first.job_status)
    assert harness.expect_refusal(Complete(lease=lease, output={"a": 2})).code == "lease_lost"
    assert harness.expect_refusal(Fail(lease=lease)).code == "lease_lost"
    assert harness.snapshot() == before


def test_a_repeated_failure_or_requeue_counts_once(harness: EngineHarness) -> None:
    # R316
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.requeue(lease)
    assert harness.requeue(lease).replay is True
    assert harness.tasks(job)[0].requeues == 1
    lease = harness.claim_one()
    harness.fail(lease, retryable=True)
    assert harness.fail(lease, retryable=True).replay is True
    assert harness.tasks(job)[0].attempts_counted == 1


def test_a_completion_of_another_task_is_not_a_repetition(harness: EngineHarness) -> None:
    # H8
    harness.workflow("pair", stages=[stage("draw", tasks=2)])
    job = harness.submit_job("pair")
    first, second = (leased.lease for leased in harness.claim(count=2))
    assert harness.complete(first, {"n": 1}).replay is False
    assert harness.complete(second, {"n": 1}).replay is False
    assert harness.status(job) == "completed"


def test_an_invalid_report_is_refused_and_the_lease_stays(harness: EngineHarness) -> None:
    # R257
    harness.submit_job()
    lease = harness.claim_one()
    before = harness.snapshot()
    assert harness.expect_refusal(Complete(lease=lease, output="x" * 1024 * 1024)).code == "output_too_large"
    assert harness.expect_refusal(Complete(lease=lease, output=float("nan"))).code == "invalid_output"
    assert harness.expect_refusal(Heartbeat(lease=lease, message="x" * 2_001)).code == "message_too_long"
    assert harness.expect_refusal(Requeue(lease=lease, reason=" ")).code == "reason_required"
    assert harness.snapshot() == before
    assert harness.complete(lease, "x").job_status == "completed"
