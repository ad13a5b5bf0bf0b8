"""Tenants, operations and the audit log, by both clients, on both databases."""

from typing import Any

import pytest

from callsheet.client import Client
from tests.support.processes.live_server import LiveServer


def test_an_operator_lists_tenants_queues_workers_and_the_audit_log(live_server: LiveServer, operator: Any) -> None:
    assert operator.tenants.put("third", weight=3).weight == 3
    assert {"default", "other", "third"} <= {tenant.id for tenant in operator.tenants.list()}
    live_server.submit()
    ops = operator.ops.get()
    assert any((queue.kind, queue.workflow) == ("draw", "sketch") and queue.waiting for queue in ops.queues)
    assert "m1" in {worker.worker for worker in operator.workers.list()}
    assert next(operator.audit.list()).action
    assert [entry.subject for entry in operator.audit.list(subject="third", limit=1)] == ["third"]
    assert {entry.subject for entry in operator.audit.list(subject="third")} == {"third"}
    live_server.work()


def test_omitted_fields_of_a_tenant_are_unchanged(operator: Any) -> None:
    operator.tenants.put("acme", status="suspended", active_jobs_max=3)
    changed = operator.tenants.put("acme", weight=2)
    assert (changed.weight, changed.status, changed.active_jobs_max) == (2, "suspended", 3)


def test_an_operator_sets_a_storage_quota_and_reads_the_usage(operator: Any) -> None:
    operator.tenants.put("acme", storage_bytes_max=1_000)
    details = operator.tenants.get("acme")
    assert (details.tenant.id, details.tenant.storage_bytes_max) == ("acme", 1_000)
    assert (details.storage.stored_bytes, details.storage.pending_bytes) == (0, 0)
    assert details.storage.storage_bytes_max == 1_000
    assert operator.tenants.put("acme", weight=1).storage_bytes_max == 1_000
    assert operator.tenants.put("acme", storage_bytes_max=None).storage_bytes_max is None
    assert operator.tenants.get("acme").storage.storage_bytes_max == 1024**4, "the limit of the server"


def test_an_operator_acts_for_the_named_tenant(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url, key = live_server.url, live_server.keys["operator"]
    with Client(url, key) as default, Client(url, key, tenant="other") as other:
        assert (default.identity.get().tenant, other.identity.get().tenant) == ("default", "other")
        assert other.wallets.top_up("zoe", 7).balance == 7
        assert default.wallets.get("zoe").balance == 0
    monkeypatch.setenv("CALLSHEET_TENANT", "other")
    with Client(url, key) as named:
        assert named.wallets.get("zoe").balance == 7
