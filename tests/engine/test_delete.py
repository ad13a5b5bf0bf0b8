"""Deleting: out of sight at once, texts gone, while ids, keys, money and evidence stay."""

from typing import Any

import pytest

from callsheet.core.commands import Cancel, Change, Delete, Retry
from callsheet.core.errors import Unknown
from tests.support.studio import Studio, stage

SECRET = "a private wish"


def test_a_deleted_job_is_out_of_sight(studio: Studio) -> None:
    # R302, R364
    job = studio.ask()
    studio.finish(job)
    assert studio.delete(job).changed is True
    with pytest.raises(Unknown):
        studio.job(job)
    for command in (Cancel, Retry, Change):
        assert studio.refused(command(tenant="acme", job_id=job)).code == "job_not_found"


def test_a_user_text_is_gone_after_a_delete(studio: Studio) -> None:
    # R364, R368
    studio.workflow("film", stages=[stage("draw", labels={"a": SECRET}, metadata={"b": SECRET}, trace={"c": SECRET})])
    notes: dict[str, Any] = {"labels": {"a": SECRET}, "metadata": {"b": SECRET}, "trace": {"c": SECRET}}
    job = studio.ask("film", input={"prompt": SECRET}, **notes)
    lease = studio.take()
    studio.do(Change(tenant="acme", job_id=job, task_id=lease.task_id, **notes))
    studio.beat(lease, progress=1, message=SECRET)
    studio.complete(lease, {"text": SECRET})
    kept = {"workflow"}
    assert any(SECRET in repr(rows) for table, rows in studio.snapshot().items() if table not in kept)
    studio.delete(job)
    assert studio.read.documents(job) == []
    holders = [table for table, rows in studio.snapshot().items() if table not in kept and SECRET in repr(rows)]
    assert holders in ([], ["event"]), "only the append-only record may still tell what a worker said"


def test_money_and_evidence_outlive_a_delete(studio: Studio) -> None:
    # R368, J9, A4
    job = studio.ask()
    lease = studio.take()
    studio.complete(lease)
    before = [studio.runs(job), studio.read.attempts(lease.task_id), studio.ledger(job), studio.read.events(job)]
    studio.delete(job)
    events = studio.read.events(job)
    after = [studio.runs(job), studio.read.attempts(lease.task_id), studio.ledger(job), events[:-1]]
    assert after == before
    assert events[-1].type == "job.deleted"


def test_deleting_a_running_job_cancels_it_first(studio: Studio) -> None:
    # R367, H20
    job = studio.ask()
    lease = studio.take()
    studio.delete(job)
    assert studio.events(job)[-2:] == ["job.canceled", "job.deleted"]
    assert studio.ledger(job) == [("reserve", -5, 0), ("refund", 5, 0)]
    before = studio.snapshot()
    assert studio.complete(lease, {"late": True}).skipped is not None
    assert studio.beat(lease).cancel is True
    assert studio.snapshot() == before, "a late result leaves no document behind"


def test_deleting_a_waiting_job_takes_it_out_of_the_queue(studio: Studio) -> None:
    # R367
    queued, later = studio.ask(), studio.ask(start_in_seconds=60)
    studio.delete(queued)
    studio.delete(later)
    assert (studio.claim(), studio.balance()) == ([], 100)
    assert studio.advance(100) == 0


def test_deleting_twice_changes_nothing(studio: Studio) -> None:
    # H20
    job = studio.ask()
    studio.delete(job)
    before = studio.snapshot()
    assert studio.delete(job).changed is False
    assert studio.snapshot() == before


def test_another_tenant_cannot_delete_a_job(studio: Studio) -> None:
    # R159
    studio.tenant("other")
    job = studio.ask()
    assert studio.refused(Delete(tenant="other", job_id=job)).code == "job_not_found"
    studio.delete(job)
    assert studio.refused(Delete(tenant="other", job_id=job)).code == "job_not_found"


def test_the_id_of_a_deleted_job_stays_taken(studio: Studio) -> None:
    # H20
    job = studio.ask()
    studio.delete(job)
    before = studio.snapshot()
    studio.engine.execute_many([studio.submission(id=job)])
    assert studio.snapshot() == before
    with pytest.raises(Unknown):
        studio.job(job)
