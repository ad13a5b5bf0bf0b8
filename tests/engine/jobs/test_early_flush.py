"""Early flushes: a batch with many rows writes them before it ends, with the same result."""

import re
from pathlib import Path
from typing import Any

import pytest

from callsheet.core.model.commands import Claim, Complete, Heartbeat, OutputFile, Submit, TopUp
from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from tests.support.databases.database_pool import DatabasePool
from tests.support.databases.faulty_database import fail_once, faulty_engine
from tests.support.engine.engine_harness import TENANT, USER, EngineHarness, OpenHarness, set_up

HASHES = re.compile(r"[0-9a-f]{64}")


def run_batches(harness: EngineHarness) -> dict[str, list[str]]:
    """Run jobs in large batches; return every row, with the hashes of random tokens replaced."""
    set_up(harness)
    ids = [f"0197{n:04x}-0000-7000-8000-{n:012x}" for n in range(1, 13)]
    submits: list[Any] = [Submit(tenant=TENANT, user=USER, workflow="sketch", input={"n": n}, id=name)
                          for n, name in enumerate(ids)]  # fmt: skip
    submits[3:3] = [Submit(tenant=TENANT, user=USER, workflow="unknown"), TopUp(tenant=TENANT, user="x", amount=-1)]
    harness.engine.execute_many(submits)
    leased = harness.claim(count=12)
    heartbeats = [Heartbeat(lease=one.lease, progress=n, message=str(n)) for n, one in enumerate(leased)]
    harness.engine.execute_many(heartbeats)
    files = (OutputFile(1, "a.png", "image/png", 1, "c" * 64),)
    completions = [Complete(lease=one.lease, output=n, files=files) for n, one in enumerate(leased)]
    completions[5:5] = [
        Complete(lease=leased[0].lease, delivered=0), Complete(lease=leased[1].lease, output=float("nan")),
    ]  # fmt: skip
    harness.engine.execute_many(completions)
    tables = harness.snapshot()
    del tables["event"], tables["audit"]  # their ids differ; events are compared by job
    events = [repr(event) for name in ids for event in harness.reads.events(name)]
    return {table: [HASHES.sub("#", row) for row in rows] for table, rows in tables.items()} | {"event": events}


@pytest.fixture
def second_database(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Any:
    """Another database of the same kind."""
    if not database_url.startswith("postgres"):
        yield str(tmp_path / "second.db")
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    yield url
    database_pool.release(url)


def settings(flush_every: int) -> Settings:
    return Settings(limits=Limits(flush_every=flush_every), database_retry_seconds=5)


def test_rows_that_are_flushed_early_are_the_same_rows(database_url: str, second_database: str) -> None:
    with EngineHarness(database_url, settings(2)) as early, EngineHarness(second_database, settings(10**9)) as late:
        first, other = run_batches(early), run_batches(late)
        assert first == other
        assert len(first["event"]) == 12 * 8
        assert (len(first["file"]), len(first["document"])) == (12, 24)
        assert early.find_violations() == late.find_violations() == []


@pytest.mark.parametrize("flush_every", [1, 2, 10**9])
def test_a_batch_that_is_flushed_early_is_committed_once(open_harness: OpenHarness, flush_every: int) -> None:
    """If rows were written twice, the batch would fail and each command would be retried alone."""
    harness = open_harness(settings(flush_every))
    commits: list[None] = []
    with faulty_engine(harness.database, lambda: commits.append(None), settings(flush_every)) as engine:
        submitted = engine.execute_many([harness.submission(input=n) for n in range(9)])
    assert len(commits) == 1
    assert [harness.events(one.job_id) for one in submitted] == [["job.created"]] * 9


@pytest.mark.parametrize("flush_every", [1, 2, 10**9])
def test_a_batch_whose_commit_failed_leaves_no_rows_that_were_flushed_early(
    open_harness: OpenHarness, flush_every: int
) -> None:
    harness = open_harness(settings(flush_every))
    with faulty_engine(harness.database, fail_once("before"), settings(flush_every)) as engine:
        submitted = engine.execute_many([harness.submission(input=n) for n in range(9)])
    jobs = [one.job_id for one in submitted]
    assert len(set(jobs)) == 9
    assert [len(harness.reads.documents(job)) for job in jobs] == [1] * 9
    assert [harness.events(job) for job in jobs] == [["job.created"]] * 9
    assert len(harness.engine.execute(Claim(worker_id="w", kinds=("draw",), count=20))) == 9
