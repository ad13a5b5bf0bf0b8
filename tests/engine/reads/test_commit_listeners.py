"""Commit listeners: they are called after each commit of this server and, on PostgreSQL, of other servers."""

import threading

from callsheet.core.model.commands import PutTenant
from callsheet.engine import Engine
from callsheet.settings import Settings
from tests.support.databases.database_pool import DatabasePool
from tests.support.engine.engine_harness import EngineHarness
from tests.support.wait import wait_until

SLOW_POLLS = Settings(poll_seconds=60)


def test_listeners_are_called_once_after_each_commit_that_changed_rows(harness: EngineHarness) -> None:
    tenant_counts: list[int] = []
    harness.engine.commit_listeners.append(
        lambda: tenant_counts.append(len(harness.reads.fetch("tenants", ids=["w1", "w2", "w3"])))
    )
    harness.tenant("w1")
    harness.tenant("w2")
    assert tenant_counts == [1, 2], "the changes are visible to the listener"
    harness.expect_refusal(PutTenant(tenant="bad name"))
    assert harness.claim() == []
    harness.tenant("w2")
    assert tenant_counts == [1, 2]
    harness.engine.execute_many([PutTenant(tenant="w3"), PutTenant(tenant="w4")])
    assert tenant_counts == [1, 2, 3], "once per batch"


def test_listeners_are_called_for_commits_of_another_server(database_pool: DatabasePool) -> None:
    """Only on PostgreSQL; with a poll interval of a minute, only a notification can call them."""
    url = database_pool.acquire()
    with Engine.open(url, SLOW_POLLS) as one, Engine.open(url, SLOW_POLLS) as two:
        called = threading.Event()
        one.commit_listeners.append(called.set)
        numbers = iter(range(10_000))

        def commit_until_called() -> bool:
            two.execute(PutTenant(tenant=f"tenant-{next(numbers)}"))
            return called.is_set()

        wait_until(commit_until_called)
        assert called.is_set()
    database_pool.release(url)
