"""A clock that is set back: nothing is dated before what it follows, and no wait grows beyond its own length."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from callsheet.blobs.local import LocalBlobs
from callsheet.core.model.clock import SECOND, seconds
from callsheet.core.model.commands import (
    AcquireCursor,
    CreateKey,
    CreateUpload,
    Register,
    TickWorker,
)
from callsheet.core.model.workflow_definition import Backoff, RetryPolicy
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine.loops.clock_sync import ClockSync
from callsheet.engine.loops.file_retention import FileRetention
from callsheet.engine.loops.worker_timeouts import WorkerTimeouts
from callsheet.queries.credentials import KeyOwner, find_key_by_id
from tests.support.doubles.fake_provider import DONE, FakeProvider, clip_workflow, collect, submit_to_provider
from tests.support.engine.engine_harness import TENANT, USER, EngineHarness, OpenHarness

HOUR, YEAR = 3_600, 365 * 86_400
SetBack = Callable[[EngineHarness], EngineHarness]


@pytest.fixture(params=[HOUR, YEAR], ids=["hour", "year"])
def step(request: pytest.FixtureRequest) -> int:
    step_seconds: int = request.param
    return step_seconds


@pytest.fixture(params=["running", "restarted"])
def set_back(request: pytest.FixtureRequest, open_harness: OpenHarness, step: int) -> SetBack:
    """Set the clock back while the server runs, or while it is stopped; return the server that continues."""

    def set_back(harness: EngineHarness) -> EngineHarness:
        if request.param == "restarted":
            harness.engine.close()
        harness.clock.advance(-step)
        return harness if request.param == "running" else open_harness(clock=harness.clock)

    return set_back


def wait(harness: EngineHarness, wait_seconds: float) -> int:
    """Wait until the engine's time has advanced, while the server reads the clock as often as its loops do."""
    until = harness.reads.now() + seconds(wait_seconds)
    while (left := until - harness.reads.now()) > 0:
        harness.clock.advance(min(left / SECOND + 1e-6, 1.0))
    return harness.advance(0)


def test_a_lease_ends_in_its_own_time(harness: EngineHarness, set_back: SetBack) -> None:
    # H26, F24
    harness.submit_job()
    harness.claim_one(lease_seconds=30)
    server = set_back(harness)
    assert wait(server, 29) == 0
    assert wait(server, 2) == 1
    wait(server, 3)
    assert server.claim_one().attempt == 2


def test_a_heartbeat_extends_a_lease_by_its_own_length(harness: EngineHarness, set_back: SetBack) -> None:
    harness.submit_job()
    lease = harness.claim_one(lease_seconds=30)
    server = set_back(harness)
    assert server.heartbeat(lease, lease_seconds=60).lease_seconds == 60
    assert wait(server, 61) == 1


def test_a_backoff_a_schedule_and_a_deadline_last_as_long_as_they_should(
    harness: EngineHarness, set_back: SetBack
) -> None:
    # H26
    backoff = Backoff(base_seconds=20, jitter=0)
    harness.workflow(retry=RetryPolicy(backoff=backoff))
    failed = harness.submit_job()
    harness.fail(harness.claim_one(), retryable=True)
    scheduled = harness.submit_job(start_in_seconds=40)
    expiring = harness.submit_job(start_in_seconds=500, deadline_seconds=60)
    server = set_back(harness)
    assert server.claim() == []
    wait(server, 21)
    assert [leased.lease.job_id for leased in server.claim(count=9)] == [failed]
    wait(server, 20)
    assert [leased.lease.job_id for leased in server.claim(count=9)] == [scheduled]
    wait(server, 521)
    assert server.status(expiring) == "expired"


def test_the_grace_period_of_a_cancel_ends(harness: EngineHarness, set_back: SetBack) -> None:
    job = harness.submit_job()
    harness.claim_one()
    harness.cancel(job, grace_seconds=10)
    server = set_back(harness)
    assert server.status(job) == "running"
    wait(server, 11)
    assert server.status(job) == "canceled"


def test_a_provider_is_polled_when_it_is_due(harness: EngineHarness, set_back: SetBack) -> None:
    clip_workflow(harness)
    job = harness.submit_job("clip")
    submit_to_provider(harness, FakeProvider())
    server = set_back(harness)
    wait(server, 11)
    assert collect(server, FakeProvider(DONE), 0) == 1
    assert server.status(job) == "completed"


def test_a_job_stays_in_its_order_and_can_be_worked_on(harness: EngineHarness, set_back: SetBack) -> None:
    job = harness.submit_job()
    server = set_back(harness)
    server.complete(server.claim_one())
    row = server.job(job)
    assert row.status == "completed"
    assert row.created_at <= (row.started_at or 0) <= (row.finished_at or 0) <= row.created_at + 10 * SECOND


def test_a_silent_worker_times_out(harness: EngineHarness, set_back: SetBack) -> None:
    timeout = Limits().worker_timeout_seconds
    harness.do(Register(worker_id="gpu", kinds=("draw",), token_hash="a" * 64, approved=True))
    server = set_back(harness)
    wait(server, timeout - 1)
    assert server.do(TickWorker(worker_id="gpu")).status == "approved"
    wait(server, 2)
    WorkerTimeouts(server.engine, timeout).run_once(server.reads.now())
    assert server.do(TickWorker(worker_id="gpu")).status == "offline"


def test_a_reader_that_was_killed_keeps_its_cursor_for_a_minute_only(
    harness: EngineHarness, open_harness: OpenHarness, step: int
) -> None:
    """Also if nothing that was stored shows how late it was: a lock lasts no longer than a reader asks for."""
    harness.clock.advance(2 * step)
    assert harness.do(AcquireCursor(name="log", holder="killed")).reserved
    harness.engine.close()
    harness.clock.advance(-step)
    server = open_harness(clock=harness.clock)
    assert server.do(AcquireCursor(name="log", holder="next")).reserved
    assert not server.do(AcquireCursor(name="log", holder="third")).reserved


def test_an_api_key_expires(harness: EngineHarness, set_back: SetBack) -> None:
    command = CreateKey(tenant=TENANT, role="client", name="short", secret_hash="b" * 64, expires_in_seconds=60)
    key = harness.do(command)
    server = set_back(harness)

    async def owner() -> KeyOwner | None:
        return await find_key_by_id(server.reads, key.id)

    wait(server, 59)
    assert asyncio.run(owner()) is not None
    wait(server, 1)
    assert asyncio.run(owner()) is None


def test_an_upload_without_bytes_expires(harness: EngineHarness, set_back: SetBack, tmp_path: Path) -> None:
    command = CreateUpload(tenant=TENANT, user=USER, name="a.png", media_type="image/png", bytes=1, sha256="c" * 64)
    harness.do(command)
    server = set_back(harness)
    retention = FileRetention(server.engine, LocalBlobs(tmp_path / "files"))
    wait(server, Limits().upload_timeout_seconds - 1)
    assert retention.run_once(server.reads.now()) == 0
    wait(server, 1)
    assert retention.run_once(server.reads.now()) == 1


def test_two_servers_that_saw_different_times_agree_after_a_sync(open_harness: OpenHarness, step: int) -> None:
    """A server that was started later knows only what is stored: its leases must not expire on the other one."""
    first = open_harness()
    first.clock.advance(10 * HOUR)
    first.reads.now()
    first.clock.advance(-step)
    second = open_harness(clock=first.clock)
    first.submit_job()
    ClockSync(second.engine).run_once(0)
    assert abs(first.reads.now() - second.reads.now()) <= 5 * SECOND
    lease = second.claim_one(lease_seconds=30)
    assert first.advance(20) == 0
    assert second.heartbeat(lease).lease_seconds > 0
