"""A failing command, caller or listener affects only itself; the others continue, and the error has a reason."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from callsheet.core import prefetched_facts as facts
from callsheet.core.model import commands as c
from callsheet.core.model.commands import Command
from callsheet.core.model.rows import ApiKey, Tenant
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.working_set import WorkingSet
from callsheet.engine import Engine
from callsheet.engine.batch import Batch, BatchResult
from callsheet.settings import Settings
from callsheet.store.connection import TransactionConflict, UniqueConflict
from tests.support.engine.concurrency import run_concurrently, servers
from tests.support.engine.engine_harness import EngineHarness, stage
from tests.support.engine.query_log import QueryLog


def fail_batches(patch: pytest.MonkeyPatch, error: Exception, times: int = 1) -> None:
    """Make the next batches fail, as a deadlock or a race does."""
    real, left = Batch.run, [times]

    def run(self: Batch, commands: Sequence[Command], *, retrying: bool = False) -> BatchResult:
        if left[0]:
            left[0] -= 1
            raise error
        return real(self, commands, retrying=retrying)

    patch.setattr(Batch, "run", run)


def test_a_workflow_is_stored_when_its_batch_is_retried(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8: the audit entry is looked up after the decision; a retried batch decides again from the beginning."""
    fail_batches(monkeypatch, TransactionConflict("deadlock detected"))
    put = c.PutWorkflow(definition=WorkflowDefinition(name="sketch", price=7, stages=[stage()]), requested_by="op")
    assert (harness.do(put).version, harness.submit().price) == (2, 7)


def test_two_servers_that_store_a_workflow_at_once_create_two_versions(database_url: str) -> None:
    with servers(database_url, 2) as harnesses:
        harnesses[0].tenant()
        harnesses[0].workflow()
        puts = [c.PutWorkflow(definition=WorkflowDefinition(name="sketch", price=n, stages=[stage()])) for n in (6, 7)]
        done = run_concurrently(*[lambda s=s, put=put: s.do(put) for s, put in zip(harnesses, puts, strict=True)])
        assert sorted(workflow.version for workflow in done) == [2, 3]


def test_two_servers_that_change_a_tenant_at_once_lose_no_change(database_url: str) -> None:
    with servers(database_url, 2) as (one, two):
        one.tenant()
        for weight in range(2, 8):
            changes = (
                lambda weight=weight: one.tenant(weight=weight),
                lambda weight=weight: two.tenant(active_jobs_max=weight),
            )
            run_concurrently(*changes)
            (row,) = one.reads.fetch("tenants", ids=["acme"])
            assert (Tenant(*row).weight, Tenant(*row).active_jobs_max) == (weight, weight)


def test_two_servers_that_create_the_same_first_key_create_one(database_url: str) -> None:
    with servers(database_url, 2) as harnesses:
        create = c.CreateKey(tenant="", role="admin", name="first", secret_hash="5" * 64)
        keys = run_concurrently(*[lambda s=s: s.do(create) for s in harnesses * 4])
        assert len({key.id for key in keys}) == 1
        other = c.CreateKey(tenant="", role="worker", name="first", secret_hash="5" * 64)
        assert harnesses[0].expect_refusal(other).code == "secret_in_use"
        stored = harnesses[0].reads.fetch("api_keys_after", after="", count=9)
        assert [ApiKey(*row).id for row in stored] == [keys[0].id]


def test_a_command_that_always_conflicts_fails_and_does_not_block_others(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retries help if the database is unavailable, not if a conflict is permanent."""
    fail_batches(monkeypatch, UniqueConflict("the same key"), times=6)
    (result,) = harness.engine.execute_many([harness.submission()])
    assert isinstance(result, UniqueConflict)
    assert harness.submit().status == "queued"


def test_a_unique_conflict_is_retried(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_batches(monkeypatch, UniqueConflict("the same key"), times=3)
    assert harness.submit().status == "queued"


def test_a_claim_for_too_many_tasks_reads_at_most_the_limit(open_harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    harness: EngineHarness = open_harness(Settings(database_retry_seconds=5, limits=Limits(claim_tasks_max=2)))
    for _ in range(4):
        harness.submit_job()
    log = QueryLog(monkeypatch)
    assert harness.expect_refusal(c.Claim(worker_id="w", kinds=("draw",), count=10**9)).code == "out_of_range"
    assert [parameters["count"] for parameters in log.parameters("candidates")] == [2]


def test_a_batch_locks_the_limits_of_all_its_claims_once(open_harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers that lock one limit after another could deadlock."""
    harness: EngineHarness = open_harness(Settings(limits=Limits(kind_running_max={"draw": 3, "cut": 3})))
    harness.workflow("film", stages=[stage("cut")])
    harness.submit_job()
    harness.submit_job("film")
    log = QueryLog(monkeypatch)
    claims = [c.Claim(worker_id="w", kinds=(kind,)) for kind in ("draw", "cut")]
    assert [len(leased) for leased in harness.engine.execute_many(claims)] == [1, 1]
    assert log.parameters("lock_refs") == [{"keys": [("limit of kind cut",), ("limit of kind draw",)]}]


def test_concurrent_uploads_of_a_user_stay_within_the_limit(database_url: str) -> None:
    with servers(database_url, 2, Settings(limits=Limits(uploads_pending_max=1))) as harnesses:
        harnesses[0].tenant()
        upload = c.CreateUpload(
            tenant="acme", user="ada", name="a.png", media_type="image/png", bytes=1, sha256="0" * 64
        )
        answers = run_concurrently(*[lambda s=s: s.do(upload) for s in harnesses * 4])
        assert sum(not isinstance(answer, Exception) for answer in answers) == 1


@pytest.mark.parametrize("change", ["suspended", "disabled"])
def test_a_retry_is_refused_where_a_submit_is_refused(harness: EngineHarness, change: str) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    if change == "suspended":
        harness.tenant(status="suspended")
    else:
        harness.workflow(enabled=False)
    code = {"suspended": "tenant_suspended", "disabled": "workflow_disabled"}[change]
    before = harness.snapshot()
    assert harness.expect_refusal(c.Retry(tenant="acme", job_id=job)).code == code
    assert harness.expect_refusal(harness.submission()).code == code
    assert harness.snapshot() == before


def test_a_listener_that_raises_undoes_nothing_and_does_not_stop_the_others(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    called = threading.Event()

    def broken() -> None:
        raise RuntimeError("the loop is closed")

    harness.engine.commit_listeners[:] = [broken, called.set]
    mark = harness.engine.hints.mark(("draw",))
    harness.engine.hints.subscribe(("draw",), mark, broken)
    job = harness.submit_job()
    assert (harness.status(job), called.is_set()) == ("queued", True)
    assert harness.events(job) == ["job.created"]
    assert [record.exc_text is not None for record in caplog.records] == [True, True]


# -- SQLite only


def test_names_that_do_not_exist_are_not_cached() -> None:
    """A SQLite lane keeps rows from batch to batch, and clients can send any number of unknown names."""
    first = WorkingSet(0, Limits())
    first.load(Tenant, [Tenant("acme", 1, "active", 0, 0, 0)], ["acme", "x" * 900_000])
    for name, definition in (("sketch", WorkflowDefinition(name="sketch", stages=[stage()])), ("y" * 900_000, None)):
        first.facts |= {
            (facts.CURRENT_DEFINITION, name): definition,
            (facts.CURRENT_VERSION, name): int(definition is not None),
            (facts.INPUT_SCHEMA, name): None,
        }  # fmt: skip
    then = WorkingSet(0, Limits(), previous=first)
    assert (then.is_loaded(Tenant, "acme"), then.is_loaded(Tenant, "x" * 900_000)) == (True, False)
    assert then.has_fact(facts.INPUT_SCHEMA, "sketch")
    assert not any(then.has_fact(fact, "y" * 900_000) for fact in facts.CURRENT_WORKFLOW_FACTS)
    assert len(then) == 4


def test_a_stop_leaves_the_database_in_one_file(tmp_path: Path) -> None:
    """A copy of that file is then a complete copy of the database."""
    database_url = tmp_path / "studio.db"
    with Engine.open(database_url) as engine:
        engine.execute(c.PutTenant(tenant="acme"))
        assert engine.reads.fetch("tenants", ids=["acme"])
    assert [file.name for file in tmp_path.iterdir()] == ["studio.db"]
