"""Deleting hides a job and removes its texts; its id, idempotency key, ledger and records stay."""

from typing import Any

import pytest

from callsheet.core.model.commands import Cancel, Delete, Retry, Update
from callsheet.core.model.errors import NotFound
from tests.support.engine.engine_harness import EngineHarness, stage

SECRET = "a private prompt"


def test_a_deleted_job_is_not_found(harness: EngineHarness) -> None:
    # R302
    job = harness.submit_job()
    harness.finish(job)
    assert harness.delete(job).changed is True
    with pytest.raises(NotFound):
        harness.job(job)
    for command in (Cancel, Retry, Update):
        assert harness.expect_refusal(command(tenant="acme", job_id=job)).code == "job_not_found"


def test_a_delete_removes_the_texts_of_the_user(harness: EngineHarness) -> None:
    # O5
    harness.workflow("film", stages=[stage("draw", labels={"a": SECRET}, metadata={"b": SECRET}, trace={"c": SECRET})])
    notes: dict[str, Any] = {"labels": {"a": SECRET}, "metadata": {"b": SECRET}, "trace": {"c": SECRET}}
    job = harness.submit_job("film", input={"prompt": SECRET}, **notes)
    lease = harness.claim_one()
    harness.do(Update(tenant="acme", job_id=job, task_id=lease.task_id, **notes))
    harness.heartbeat(lease, progress=1, message=SECRET)
    harness.complete(lease, {"text": SECRET})
    kept = {"workflow"}
    assert any(SECRET in repr(rows) for table, rows in harness.snapshot().items() if table not in kept)
    harness.delete(job)
    assert harness.reads.documents(job) == []
    holders = [table for table, rows in harness.snapshot().items() if table not in kept and SECRET in repr(rows)]
    assert holders in ([], ["event"]), "only the append-only events may still have a worker's message"


def test_a_delete_keeps_runs_attempts_ledger_and_events(harness: EngineHarness) -> None:
    # R368
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.complete(lease)
    before = [harness.runs(job), harness.reads.attempts(lease.task_id), harness.ledger(job), harness.reads.events(job)]
    harness.delete(job)
    events = harness.reads.events(job)
    after = [harness.runs(job), harness.reads.attempts(lease.task_id), harness.ledger(job), events[:-1]]
    assert after == before
    assert events[-1].type == "job.deleted"


def test_deleting_a_running_job_cancels_it_first(harness: EngineHarness) -> None:
    # R367, H20
    job = harness.submit_job()
    lease = harness.claim_one()
    harness.delete(job)
    assert harness.events(job)[-2:] == ["job.canceled", "job.deleted"]
    assert harness.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]
    before = harness.snapshot()
    assert harness.complete(lease, {"late": True}).skipped is not None
    assert harness.heartbeat(lease).cancel is True
    assert harness.snapshot() == before, "a late result stores nothing"


def test_a_deleted_queued_or_scheduled_job_is_never_leased(harness: EngineHarness) -> None:
    # R367
    queued, later = harness.submit_job(), harness.submit_job(start_in_seconds=60)
    harness.delete(queued)
    harness.delete(later)
    assert (harness.claim(), harness.balance()) == ([], 100)
    assert harness.advance(100) == 0


def test_deleting_twice_changes_nothing(harness: EngineHarness) -> None:
    job = harness.submit_job()
    harness.delete(job)
    before = harness.snapshot()
    assert harness.delete(job).changed is False
    assert harness.snapshot() == before


def test_another_tenant_cannot_delete_a_job(harness: EngineHarness) -> None:
    # R159
    harness.tenant("other")
    job = harness.submit_job()
    assert harness.expect_refusal(Delete(tenant="other", job_id=job)).code == "job_not_found"
    harness.delete(job)
    assert harness.expect_refusal(Delete(tenant="other", job_id=job)).code == "job_not_found"


def test_the_id_of_a_deleted_job_stays_reserved(harness: EngineHarness) -> None:
    # H20
    job = harness.submit_job()
    harness.delete(job)
    before = harness.snapshot()
    harness.engine.execute_many([harness.submission(id=job)])
    assert harness.snapshot() == before
    with pytest.raises(NotFound):
        harness.job(job)
