"""What one command, one caller or one listener does wrong is theirs: the lane goes on, and the house says why not."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core import facts
from callsheet.core.model import commands as c
from callsheet.core.model.commands import Command
from callsheet.core.model.rows import ApiKey, Tenant
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.working_set import WorkingSet
from callsheet.engine import Engine, Unavailable
from callsheet.engine.batch import Batch, BatchResult
from callsheet.engine.lane import DISK_FULL_MESSAGE
from callsheet.store.connection import TransactionConflict, UniqueConflict
from callsheet.store.sqlite import SqliteConnection, SqliteDatabase
from tests.support.doubles.virtual_clock import VirtualClockConnection
from tests.support.engine.concurrency import run_concurrently, servers
from tests.support.engine.engine_harness import EngineHarness, stage


def fail_batches(patch: pytest.MonkeyPatch, error: Exception, times: int = 1) -> None:
    """Let the next batches fail, as a deadlock or a race does."""
    real, left = Batch.run, [times]

    def run(self: Batch, commands: Sequence[Command], *, retrying: bool = False) -> BatchResult:
        if left[0]:
            left[0] -= 1
            raise error
        return real(self, commands, retrying=retrying)

    patch.setattr(Batch, "run", run)


def record_queries(patch: pytest.MonkeyPatch, name: str) -> list[dict[str, Any]]:
    """Note with what a query is asked from now on."""
    real, queries = VirtualClockConnection.fetch, list[dict[str, Any]]()

    def fetch(self: VirtualClockConnection, query: str, /, **given: Any) -> Any:
        if query == name:
            queries.append(given)
        return real(self, query, **given)

    patch.setattr(VirtualClockConnection, "fetch", fetch)
    return queries


def test_a_workflow_is_put_when_it_is_tried_again(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the audit log is looked for after the decision, which is then made anew, from the beginning."""
    fail_batches(monkeypatch, TransactionConflict("deadlock detected"))
    put = c.PutWorkflow(definition=WorkflowDefinition(name="sketch", price=7, stages=[stage()]), requested_by="op")
    assert (harness.do(put).version, harness.submit().price) == (2, 7)


def test_two_servers_that_put_workflows_at_once_both_do(database_url: str) -> None:
    with servers(database_url, 2) as harnesses:
        harnesses[0].tenant()
        harnesses[0].workflow()
        puts = [c.PutWorkflow(definition=WorkflowDefinition(name="sketch", price=n, stages=[stage()])) for n in (6, 7)]
        done = run_concurrently(*[lambda s=s, put=put: s.do(put) for s, put in zip(harnesses, puts, strict=True)])
        assert sorted(workflow.version for workflow in done) == [2, 3]


def test_two_servers_that_change_a_tenant_at_once_lose_neither_change(database_url: str) -> None:
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


def test_two_servers_that_make_the_same_first_key_have_one(database_url: str) -> None:
    with servers(database_url, 2) as harnesses:
        make = c.CreateKey(tenant="", role="admin", name="first", secret_hash="5" * 64)
        keys = run_concurrently(*[lambda s=s: s.do(make) for s in harnesses * 4])
        assert len({key.id for key in keys}) == 1
        other = c.CreateKey(tenant="", role="worker", name="first", secret_hash="5" * 64)
        assert harnesses[0].expect_refusal(other).code == "secret_in_use"
        assert (
            len(
                [
                    ApiKey(*row)
                    for row in harnesses[0].reads.fetch("api_keys_after", tenant="", all=1, after="", count=9)
                ]
            )
            == 1
        )


def test_a_command_that_clashes_for_ever_hears_so_and_holds_up_nobody(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience is for a database that is away, not for what no patience helps."""
    fail_batches(monkeypatch, UniqueConflict("the same key"), times=6)
    (result,) = harness.engine.execute_many([harness.submission()])
    assert isinstance(result, UniqueConflict)
    assert harness.submit().status == "queued"


def test_a_race_for_a_key_is_tried_again(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_batches(monkeypatch, UniqueConflict("the same key"), times=3)
    assert harness.submit().status == "queued"


def test_a_claim_for_too_much_reads_no_more_than_the_most(open_harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    harness: EngineHarness = open_harness(Settings(database_retry_seconds=5, limits=Limits(claim_tasks_max=2)))
    for _ in range(4):
        harness.submit_job()
    queries = record_queries(monkeypatch, "candidates")
    assert harness.expect_refusal(c.Claim(worker_id="w", kinds=("draw",), count=10**9)).code == "out_of_range"
    assert [given["count"] for given in queries] == [2]


def test_a_batch_locks_the_queues_of_all_its_claims_once(open_harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers that lock one after the other, in turns, would wait for each other for ever."""
    harness: EngineHarness = open_harness(Settings(limits=Limits(kind_running_max={"draw": 3, "cut": 3})))
    harness.workflow("film", stages=[stage("cut")])
    harness.submit_job()
    harness.submit_job("film")
    queries = record_queries(monkeypatch, "lock_queues")
    claims = [c.Claim(worker_id="w", kinds=(kind,)) for kind in ("draw", "cut")]
    assert [len(leased) for leased in harness.engine.execute_many(claims)] == [1, 1]
    assert queries == [{"ids": ["cut/film", "draw/sketch"]}]


def test_a_user_announces_no_more_files_than_he_may_however_many_ask_at_once(database_url: str) -> None:
    with servers(database_url, 2, Settings(limits=Limits(uploads_pending_max=1))) as harnesses:
        harnesses[0].tenant()
        ask = c.CreateUpload(tenant="acme", user="ada", name="a.png", media_type="image/png", bytes=1, sha256="0" * 64)
        answers = run_concurrently(*[lambda s=s: s.do(ask) for s in harnesses * 4])
        assert sum(not isinstance(answer, Exception) for answer in answers) == 1


@pytest.mark.parametrize("change", ["suspended", "off"])
def test_a_retry_opens_no_run_that_a_submit_could_not(harness: EngineHarness, change: str) -> None:
    job = harness.submit_job()
    harness.fail(harness.claim_one())
    if change == "suspended":
        harness.tenant(status="suspended")
    else:
        harness.workflow(enabled=False)
    code = {"suspended": "tenant_suspended", "off": "workflow_disabled"}[change]
    before = harness.snapshot()
    assert harness.expect_refusal(c.Retry(tenant="acme", job_id=job)).code == code
    assert harness.expect_refusal(harness.submission()).code == code
    assert harness.snapshot() == before


def test_a_listener_that_breaks_undoes_nothing_and_keeps_nobody_from_hearing(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    heard = threading.Event()

    def broken() -> None:
        raise RuntimeError("the loop is closed")

    harness.engine.commit_listeners[:] = [broken, heard.set]
    mark = harness.engine.hints.mark(("draw",))
    harness.engine.hints.subscribe(("draw",), mark, broken)
    job = harness.submit_job()
    assert (harness.status(job), heard.is_set()) == ("queued", True)
    assert harness.events(job) == ["job.created"]
    assert [record.exc_text is not None for record in caplog.records] == [True, True]


# -- SQLite's own


def test_what_strangers_asked_for_in_vain_is_not_kept() -> None:
    """A SQLite lane keeps rows from batch to batch; names that do not exist are whatever somebody sent."""
    first = WorkingSet(0, Limits())
    first.load(Tenant, [Tenant("acme", 1, "active", 0, 0, 0)], ["acme", "x" * 900_000])
    for name, definition in (("sketch", WorkflowDefinition(name="sketch", stages=[stage()])), ("y" * 900_000, None)):
        first.facts |= {
            (facts.CURRENT_DEFINITION, name): definition, (facts.CURRENT_VERSION, name): int(definition is not None),
            (facts.INPUT_VALIDATOR, name): None,
        }  # fmt: skip
    then = WorkingSet(0, Limits(), previous=first)
    assert (then.is_loaded(Tenant, "acme"), then.is_loaded(Tenant, "x" * 900_000)) == (True, False)
    assert then.has_fact(facts.INPUT_VALIDATOR, "sketch")
    assert not any(then.has_fact(fact, "y" * 900_000) for fact in facts.CURRENT_WORKFLOW_FACTS)
    assert len(then) == 4


def test_a_stop_leaves_the_database_in_one_file(tmp_path: Path) -> None:
    """Who copies it then copies everything."""
    database_url = tmp_path / "studio.db"
    with Engine.open(database_url) as engine:
        engine.execute(c.PutTenant(tenant="acme"))
        assert engine.reads.fetch("tenants", ids=["acme"])
    assert [file.name for file in tmp_path.iterdir()] == ["studio.db"]


def test_a_full_disk_is_said_at_once_and_is_over_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = SqliteDatabase.connect, [1]

    def connect(self: SqliteDatabase, *, reading: bool = False) -> SqliteConnection:
        made = real(self, reading=reading)
        made.run(f"PRAGMA max_page_count = {room[0]}")  # at the least as many as there are
        return made

    database_url = str(tmp_path / "studio.db")
    with EngineHarness(database_url) as harness:
        harness.tenant()
        harness.workflow(price=0)
    monkeypatch.setattr(SqliteDatabase, "connect", connect)
    with Engine.open(database_url, Settings(database_retry_seconds=3_600)) as engine:
        large = harness.submission(input={"prompt": "x" * 100_000})
        (refused,) = engine.execute_many([large])
        assert (type(refused), str(refused), engine.write_error) == (Unavailable, DISK_FULL_MESSAGE, DISK_FULL_MESSAGE)
        room[0] = 2**30
        assert (engine.execute(large).status, engine.write_error) == ("queued", None)
