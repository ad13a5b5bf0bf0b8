"""An expired lease is refused by the clock of the database, whether or not the sweeper has run."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callsheet.api import worker_protocol
from callsheet.blobs.local import LocalBlobs
from callsheet.core.model.commands import (
    Command,
    Complete,
    Fail,
    HandOff,
    Heartbeat,
    Lease,
    RecordIntent,
    RecordSubmission,
    Requeue,
)
from callsheet.core.model.errors import LeaseLost
from callsheet.dispatch.task_payloads import TaskPayloads
from callsheet.dispatch.worker_protocol import TaskReports
from callsheet.http.auth.authenticator import Signer
from tests.support.doubles.fake_provider import NAME, clip_workflow, record_intent
from tests.support.doubles.virtual_time_blobs import PICTURE
from tests.support.engine.engine_harness import WORKER, EngineHarness

MICROSECOND = 1e-6
LEASE_SECONDS = 30
REPORTS: dict[str, Callable[[Lease], Command]] = {
    "heartbeat": lambda lease: Heartbeat(lease=lease),
    "progress": lambda lease: Heartbeat(lease=lease, progress=50, log=("almost done",)),
    "complete": lambda lease: Complete(lease=lease, output={"late": True}),
    "fail": lambda lease: Fail(lease=lease, message="late", retryable=True),
    "requeue": lambda lease: Requeue(lease=lease, reason="late"),
    "submitted": lambda lease: RecordSubmission(lease=lease, provider=NAME, ref="prompt-1"),
    "intent": lambda lease: RecordIntent(lease=lease, provider=NAME),
    "hand-off": lambda lease: HandOff(lease=lease, ref="prompt-1"),
}


@pytest.mark.parametrize("late_seconds", [0, 0.01, 3_600])
@pytest.mark.parametrize("swept", [False, True], ids=["not swept", "swept"])
def test_a_report_after_the_expiry_is_refused_and_changes_nothing(
    harness: EngineHarness, late_seconds: float, swept: bool
) -> None:
    # R186, R196: the answer does not depend on when the sweeper runs, nor on how late the report is
    harness.submit_job()
    lease = harness.claim_one(lease_seconds=LEASE_SECONDS)
    harness.clock.advance(LEASE_SECONDS + late_seconds)
    if swept:
        assert harness.advance(0) == 1
    before = harness.snapshot()
    refused = {name: harness.expect_refusal(make(lease)).code for name, make in REPORTS.items()}
    assert refused == dict.fromkeys(REPORTS, "lease_lost")
    assert harness.snapshot() == before
    assert harness.advance(0) == (0 if swept else 1), "the sweeper ends the lease"
    harness.advance(60)
    assert harness.claim_one().attempt == 2


def test_a_report_a_microsecond_before_the_expiry_is_accepted(harness: EngineHarness) -> None:
    accepted = [name for name in REPORTS if name != "hand-off"]
    for _ in accepted:
        harness.submit_job()
    leases = [leased.lease for leased in harness.claim(count=len(accepted), lease_seconds=LEASE_SECONDS)]
    harness.clock.advance(LEASE_SECONDS - MICROSECOND)
    reports = [REPORTS[name](lease) for name, lease in zip(accepted, leases, strict=True)]
    assert [answer for answer in harness.engine.execute_many(reports) if isinstance(answer, Exception)] == []


def test_a_late_heartbeat_does_not_revive_a_lease_that_no_worker_took_over(harness: EngineHarness) -> None:
    job = harness.submit_job()
    lease = harness.claim_one(lease_seconds=LEASE_SECONDS)
    harness.clock.advance(LEASE_SECONDS + 0.01)
    assert harness.expect_refusal(Heartbeat(lease=lease)).code == "lease_lost"
    assert harness.advance(0) == 1
    harness.advance(60)
    harness.complete(harness.claim_one(worker="w2"))
    attempts = harness.reads.attempts(lease.task_id)
    assert [(attempt.worker_id, attempt.outcome) for attempt in attempts] == [("w1", "lost"), ("w2", "completed")]
    assert harness.status(job) == "completed"


def test_a_heartbeat_in_time_moves_the_expiry(harness: EngineHarness) -> None:
    harness.submit_job()
    lease = harness.claim_one(lease_seconds=LEASE_SECONDS)
    harness.clock.advance(LEASE_SECONDS - MICROSECOND)
    harness.heartbeat(lease, lease_seconds=10)
    harness.clock.advance(10 - MICROSECOND)
    assert harness.complete(lease).status == "completed"


@pytest.mark.parametrize("swept", [False, True], ids=["not swept", "swept"])
def test_the_reference_of_a_recorded_call_is_kept_although_the_lease_has_expired(
    harness: EngineHarness, swept: bool
) -> None:
    # R309: the provider may have accepted the call, so it must not be lost
    clip_workflow(harness)
    job = harness.submit_job("clip")
    lease = harness.claim_one("render", lease_seconds=LEASE_SECONDS)
    call_id = record_intent(harness, lease)
    harness.clock.advance(LEASE_SECONDS)
    assert harness.advance(0) == 1 if swept else True
    assert harness.do(HandOff(lease=lease, ref="r")).job_status == "running"
    ((*_, call_ref),) = harness.query(f"SELECT id, ref FROM call WHERE id = '{call_id}'")
    assert call_ref == "r"
    assert harness.advance(0) == 0
    assert harness.status(job) == "running"


def test_the_reference_of_a_call_comes_from_the_worker_of_its_lease(harness: EngineHarness) -> None:
    # R240
    clip_workflow(harness)
    harness.submit_job("clip")
    lease = harness.claim_one("render", lease_seconds=LEASE_SECONDS)
    record_intent(harness, lease)
    for _ in range(2):
        assert harness.expect_refusal(HandOff(lease=lease, ref="r", worker_id="w2")).code == "lease_not_found"
        harness.advance(LEASE_SECONDS)
    assert harness.do(HandOff(lease=lease, ref="r", worker_id=WORKER)).status == "running"


@pytest.fixture
def reports(harness: EngineHarness, tmp_path: Path) -> TaskReports:
    return TaskReports(harness.engine, TaskPayloads(harness.engine, LocalBlobs(tmp_path / "files", Signer(b"secret"))))


def test_files_of_an_expired_lease_are_not_granted(harness: EngineHarness, reports: TaskReports) -> None:
    """R233: neither URLs for uploads, nor those for downloads of earlier stages."""
    harness.submit_job()
    lease = harness.claim_one(lease_seconds=LEASE_SECONDS)
    calls: list[Callable[[], Any]] = [
        lambda: reports.grant_files(WORKER, worker_protocol.FileGrantsRequest(lease=lease, uploads=[PICTURE])),
        lambda: reports.previous_outputs(WORKER, worker_protocol.PreviousOutputsRequest(lease=lease)),
    ]
    harness.clock.advance(LEASE_SECONDS - MICROSECOND)
    for call in calls:
        asyncio.run(call())
    harness.clock.advance(MICROSECOND)
    for call in calls:
        with pytest.raises(LeaseLost):
            asyncio.run(call())


def test_a_late_completion_with_files_is_refused_before_its_files_are_checked(
    harness: EngineHarness, reports: TaskReports
) -> None:
    harness.submit_job()
    lease = harness.claim_one(lease_seconds=LEASE_SECONDS)
    harness.clock.advance(LEASE_SECONDS)
    report = worker_protocol.Complete(lease=lease, output=None, files=[PICTURE])
    with pytest.raises(LeaseLost):
        asyncio.run(reports.complete(report, WORKER))
