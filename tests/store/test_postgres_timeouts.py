"""Timeouts in PostgreSQL: no statement waits for a lock forever, and no idle transaction keeps its locks."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from callsheet.core.model.rows import Tenant
from callsheet.engine import engine as engine_module
from callsheet.settings import Settings
from callsheet.store import postgres
from callsheet.store.connection import ConnectionLost, TransactionConflict
from callsheet.store.postgres import PostgresConnection, PostgresDatabase
from tests.support.databases.postgres import Cluster
from tests.support.wait import wait_until

LOCK = "SELECT 1 FROM tenant WHERE id = 'acme' FOR UPDATE NOWAIT"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def url(migrated_postgres: Cluster) -> Iterator[str]:
    database_url = migrated_postgres.create_database()
    with closing(PostgresDatabase(database_url).connect()) as connection:
        connection.begin()
        connection.insert(Tenant, [Tenant("acme", 1, "active", 0, 1)])
        connection.commit()
    yield database_url
    migrated_postgres.drop(database_url)


def lock_tenant(connection: PostgresConnection) -> list[str]:
    return [row[0] for row in connection.fetch("tenants_for_update", ids=["acme"])]


def test_a_statement_that_waits_too_long_for_a_lock_is_ended(url: str) -> None:
    with (
        psycopg.connect(url) as holder,
        closing(PostgresDatabase(url, statement_timeout_seconds=0.2).connect()) as connection,
    ):
        holder.execute(LOCK)
        connection.begin()
        with pytest.raises(TransactionConflict, match="statement timeout"):
            lock_tenant(connection)
        assert holder.execute(WAITING).fetchone() == (0,), "no statement waits for the lock any more"
        connection.rollback()
        holder.rollback()
        connection.begin()
        assert lock_tenant(connection) == ["acme"], "the connection can still be used"
        connection.rollback()


def test_an_idle_transaction_loses_its_locks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_IDLE_SECONDS_MIN", 0.1)
    with closing(PostgresDatabase(url, statement_timeout_seconds=0.1).connect()) as idle:
        idle.begin()
        assert lock_tenant(idle) == ["acme"]
        with psycopg.connect(url, autocommit=True) as other:
            wait_until(lambda: _can_lock(other))
        with pytest.raises(ConnectionLost):
            idle.commit()


def _can_lock(other: psycopg.Connection) -> bool:
    try:
        return other.execute(LOCK).fetchone() == (1,)
    except psycopg.errors.LockNotAvailable:
        return False


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.2, ("200ms", "10s")), (60.0, ("1min", "1min")), (2e6, ("2000000s", "2000000s"))]
)
def test_an_idle_transaction_has_at_least_ten_seconds(url: str, seconds: float, expected: tuple[str, str]) -> None:
    with closing(PostgresDatabase(url, statement_timeout_seconds=seconds).connect()) as connection:
        names = ("statement_timeout", "idle_in_transaction_session_timeout")
        assert tuple(connection.run(f"SHOW {name}")[0][0] for name in names) == expected


def test_a_migration_has_a_timeout_of_seven_days(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[Any] = []

    def read_timeout(connection: Any, _: Any) -> None:
        timeouts.extend(connection.run("SHOW statement_timeout"))

    monkeypatch.setattr(engine_module, "migrate", read_timeout)
    engine_module.Engine.open(url, Settings(statement_timeout_seconds=0.5)).close()
    assert timeouts == [("7d",)]
