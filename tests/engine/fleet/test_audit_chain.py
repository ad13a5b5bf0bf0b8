"""The audit chain in the database: no gap and no fork, with several servers, early writes, retries and refusals."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from callsheet.core.model import commands as c
from callsheet.core.model.audit_chain import find_chain_fault
from callsheet.core.model.rows import Audit, AuditHead
from callsheet.core.policy.engine_limits import Limits
from callsheet.settings import Settings
from callsheet.store.dialect import columns
from tests.support.engine.concurrency import run_concurrently, servers
from tests.support.engine.engine_harness import TENANT, USER, EngineHarness

LINES = 12


def top_up(number: int, amount: int = 1) -> c.TopUp:
    return c.TopUp(tenant=TENANT, user=USER, amount=amount, idempotency_key=f"top-up {number}")


def chain(harness: EngineHarness, tenant: str = TENANT) -> list[Audit]:
    """Return the lines of a chain, after its check."""
    rows = harness.query(f"SELECT {', '.join(columns(Audit))} FROM audit WHERE tenant = '{tenant}' ORDER BY seq")
    lines = [Audit(*row) for row in rows]
    [head] = harness.query(f"SELECT tenant, seq, digest FROM audit_head WHERE tenant = '{tenant}'")
    assert find_chain_fault(iter(lines), AuditHead(*head), tenant) is None
    return lines


def test_the_lines_of_a_batch_follow_each_other(database_url: str) -> None:
    """Also if rows are written before the end of the batch, and if a command in between is refused."""
    settings = Settings(limits=Limits(flush_every=2))
    with EngineHarness(database_url, settings) as harness:
        harness.tenant()
        commands = [top_up(n, amount=-1 if n == 3 else n + 1) for n in range(LINES)]
        harness.engine.execute_many([*commands, c.PutTenant(tenant="other"), c.PutTenant(tenant=TENANT, weight=7)])
        assert [line.action for line in chain(harness)] == [
            "tenant.put", *["wallet.topup"] * (LINES - 1), "tenant.put",
        ]  # fmt: skip
        assert [line.seq for line in chain(harness, "other")] == [1]
        assert harness.find_violations() == []


def test_several_servers_extend_one_chain_without_a_gap(database_url: str) -> None:
    with servers(database_url, 4) as harnesses:
        first = harnesses[0]
        first.tenant()
        before = len(chain(first))

        def send(harness: EngineHarness, server: int) -> None:
            for n in range(LINES):
                harness.engine.execute(top_up(server * LINES + n))
                harness.engine.execute(c.PutTenant(tenant=f"tenant-{n}", weight=server + 1))

        run_concurrently(*(lambda h=h, n=n: send(h, n) for n, h in enumerate(harnesses)))
        assert len(chain(first)) - before == len(harnesses) * LINES
        for n in range(LINES):
            assert chain(first, f"tenant-{n}")


@contextmanager
def locked_chain(harness: EngineHarness) -> Iterator[None]:
    """Hold the lock on the tenant's chain, as a slow transaction of another server does."""
    connection = harness.database.connect()
    connection.begin()
    connection.fetch("audit_heads", ids=[TENANT])
    try:
        yield
    finally:
        connection.rollback()
        connection.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_command_without_an_audit_line_does_not_wait_for_the_chain(database_url: str) -> None:
    with EngineHarness(database_url, Settings(statement_timeout_seconds=5, database_retry_seconds=1)) as harness:
        harness.tenant()
        harness.top_up(100)
        harness.workflow()
        with locked_chain(harness):
            job = harness.submit_job()
            harness.engine.execute(c.Cancel(tenant=TENANT, job_id=job, actor="user"))
            harness.engine.execute(c.PutTenant(tenant=TENANT))
            assert harness.engine.execute(c.PutTenant(tenant="other")).id == "other"
        assert harness.job(job).status == "canceled"
