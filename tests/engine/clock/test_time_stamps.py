"""No change is dated before what it changes, although the time of the server that makes it is an hour behind."""

import pytest

from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import (
    AddStage,
    Complete,
    CreateKey,
    Deregister,
    HandOff,
    PutTenant,
    RecordHeartbeats,
    RecordIntent,
    Refund,
    Register,
    ReportOutcome,
    Retry,
    RevokeKey,
    UpdateWorker,
)
from callsheet.core.model.rows import Audit, Row, Worker
from callsheet.core.model.workflow_definition import RefundPolicy
from tests.support.doubles.fake_provider import DONE, NAME, clip_workflow
from tests.support.doubles.virtual_clock import VirtualClock
from tests.support.engine.engine_harness import TENANT, USER, OpenHarness, stage

HOUR = 3_600


class TwoServers:
    """Two servers on one database: `ahead` has a later time than `behind`."""

    def __init__(self, open_harness: OpenHarness) -> None:
        self.ahead = open_harness()
        self.behind = open_harness(clock=VirtualClock(self.ahead.clock.now()))
        self.ahead.clock.advance(HOUR)

    @property
    def now(self) -> int:
        """The time of the server that is ahead."""
        return self.ahead.clock.now()

    def rows(self, row: type[Row], where: str = "1 = 1") -> list[Row]:
        columns = ", ".join(row.__struct_fields__)
        return [row(*values) for values in self.ahead.query(f"SELECT {columns} FROM {row.TABLE} WHERE {where}")]

    def audit_times(self, action: str) -> list[int]:
        found = [entry for entry in self.rows(Audit, f"action = '{action}'") if isinstance(entry, Audit)]
        return [entry.at for entry in found]


@pytest.fixture
def servers(open_harness: OpenHarness) -> TwoServers:
    return TwoServers(open_harness)


def test_a_refund_is_dated_after_the_end_of_its_run(servers: TwoServers) -> None:
    # M16
    job = servers.ahead.submit_job()
    servers.ahead.finish(job)
    servers.behind.do(Refund(tenant=TENANT, job_id=job, reason="blurred", actor="admin"))
    entry = servers.ahead.reads.ledger(TENANT, USER)[-1]
    assert (entry.kind, entry.at >= (servers.ahead.runs(job)[0].finished_at or 0)) == ("adjust", True)
    assert servers.ahead.job(job).updated_at >= servers.now
    assert servers.audit_times("job.refund") == [servers.now]
    assert servers.ahead.find_violations() == []


def test_the_entries_of_a_wallet_stay_in_order(servers: TwoServers) -> None:
    servers.ahead.top_up(5)
    servers.behind.top_up(5)
    servers.behind.submit_job()
    times = [entry.at for entry in servers.ahead.reads.ledger(TENANT, USER)]
    assert times == sorted(times)
    assert servers.ahead.wallet().updated_at == times[-1] == servers.now


def test_a_key_is_revoked_after_it_was_created(servers: TwoServers) -> None:
    # A5
    key = servers.ahead.do(CreateKey(tenant=TENANT, role="client", name="app", secret_hash="d" * 64))
    revoked = servers.behind.do(RevokeKey(key_id=key.id))
    assert revoked.revoked_at == key.created_at == servers.now
    assert servers.audit_times("key.revoke") == [servers.now]
    assert servers.ahead.find_violations() == []


def test_a_tenant_and_a_workflow_are_updated_after_their_last_change(servers: TwoServers) -> None:
    servers.ahead.tenant("blue")
    assert servers.behind.do(PutTenant(tenant="blue", weight=3)).updated_at == servers.now
    servers.ahead.workflow("film", price=1)
    servers.behind.workflow("film", price=2)
    assert servers.ahead.query("SELECT version, created_at FROM workflow WHERE name = 'film' ORDER BY 1") == [
        (1, servers.now), (2, servers.now),
    ]  # fmt: skip
    assert servers.audit_times("workflow.put")[-1] == servers.now


def test_a_contact_of_a_worker_is_dated_after_its_last_change(servers: TwoServers) -> None:
    servers.behind.do(Register(worker_id="gpu", kinds=("draw",), token_hash="a" * 64))
    servers.ahead.do(UpdateWorker(worker_id="gpu", draining=True))
    servers.behind.clock.advance(1)
    servers.behind.do(RecordHeartbeats(workers=("gpu",)))
    (worker,) = servers.rows(Worker)
    assert isinstance(worker, Worker)
    assert (worker.draining_at, worker.last_seen_at) == (servers.now, servers.now)


def test_a_worker_is_changed_after_its_last_contact(servers: TwoServers) -> None:
    # A2
    token = "e" * 64
    servers.ahead.do(Register(worker_id="gpu", kinds=("draw",), token_hash=token))
    servers.behind.do(UpdateWorker(worker_id="gpu", approved=True, draining=True))
    servers.behind.do(Deregister(worker_id="gpu", token_hash=token, reason="shutdown"))
    (worker,) = servers.rows(Worker)
    assert isinstance(worker, Worker)
    assert (worker.approved_at, worker.draining_at, worker.ended_at) == (servers.now,) * 3
    servers.behind.do(Register(worker_id="gpu", kinds=("draw",), token_hash="f" * 64))
    (worker,) = servers.rows(Worker)
    assert isinstance(worker, Worker)
    assert (worker.started_at, worker.last_seen_at) == (servers.now, servers.now)
    assert servers.ahead.find_violations() == []


def test_a_call_ends_after_it_was_submitted(servers: TwoServers) -> None:
    # P2
    clip_workflow(servers.ahead)
    servers.ahead.submit_job("clip")
    lease = servers.ahead.claim_one("render")
    call_id = servers.ahead.do(RecordIntent(lease=lease, provider=NAME)).call_id
    servers.ahead.clock.advance(5)
    servers.ahead.do(HandOff(lease=lease, ref="r"))
    servers.behind.do(ReportOutcome(call_id=call_id, job_id=lease.job_id, outcome=DONE))
    assert servers.ahead.query("SELECT submitted_at, ended_at FROM call") == [(servers.now, servers.now)]


def test_a_job_gets_its_parts_and_its_retries_after_its_last_change(servers: TwoServers) -> None:
    # G11, S5, J7
    ahead, behind = servers.ahead, servers.behind
    ahead.workflow("tree", inline=True, stages=[], refunds=RefundPolicy(failed=50))
    job = ahead.submit_job("tree", stages=[stage("draw", approval=True)], deadline_seconds=60)
    behind.do(AddStage(tenant=TENANT, job_id=job, stage=stage("cut")))
    created = [part.created_at for part in ahead.stages(job)] + [part.created_at for part in ahead.tasks(job)]
    assert created == [servers.now] * 4
    ahead.approve(job, 1)
    ahead.fail(ahead.claim_one())
    copy = behind.retry(job, retry_as="new_job").job_id
    row = ahead.job(copy)
    assert (row.created_at, row.waiting_at, row.deadline_at) == (servers.now, servers.now, servers.now + 60 * SECOND)
    assert [run.opened_at for run in ahead.runs(copy)] == [servers.now]
    for run in (2, 3):
        behind.do(Retry(tenant=TENANT, job_id=job, actor="admin"))
        assert ahead.runs(job)[-1].opened_at == servers.now
        assert ahead.job(job).deadline_at == servers.now + 60 * SECOND, "as long as the first run had"
        ahead.approve(job, 1)
        ahead.fail(ahead.claim_one())
        assert ahead.job(job).run == run
    assert ahead.find_violations() == []


def test_the_files_of_a_result_are_dated_with_it(servers: TwoServers) -> None:
    # O4
    job = servers.ahead.submit_job()
    lease = servers.ahead.claim_one()
    assert servers.behind.do(Complete(lease=lease, output=1)).status == "completed"
    assert servers.ahead.job(job).finished_at == servers.now
    assert servers.ahead.find_violations() == []


def test_a_deleted_job_is_dated_after_its_end(servers: TwoServers) -> None:
    job = servers.ahead.submit_job()
    servers.ahead.finish(job)
    servers.behind.delete(job)
    (row,) = servers.ahead.query(f"SELECT finished_at, deleted_at, updated_at FROM job WHERE id = '{job}'")
    assert row == (servers.now, servers.now, servers.now)
