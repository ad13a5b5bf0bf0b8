"""What nobody waits for any more is given up by PostgreSQL too: it would wait for its locks, or hold them, for ever."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from callsheet.config import Settings
from callsheet.core.model.rows import Tenant
from callsheet.engine import engine as engine_module
from callsheet.store import postgres
from callsheet.store.connection import ConnectionLost, TransactionConflict
from callsheet.store.postgres import PostgresConnection, PostgresDatabase
from tests.support.databases.postgres import Cluster
from tests.support.wait import wait_until

LOCK = "SELECT 1 FROM tenant WHERE id = 'acme' FOR UPDATE NOWAIT"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def url(migrated_postgres: Cluster) -> Iterator[str]:
    made = migrated_postgres.create_database()
    with closing(PostgresDatabase(made).connect()) as connection:
        connection.begin()
        connection.insert(Tenant, [Tenant("acme", 1, "active", 0, 1)])
        connection.commit()
    yield made
    migrated_postgres.drop(made)


def locked(connection: PostgresConnection) -> list[str]:
    return [row[0] for row in connection.fetch("tenants_for_update", ids=["acme"])]


def test_a_statement_that_waits_for_too_long_is_ended_by_the_server(url: str) -> None:
    with (
        psycopg.connect(url) as holder,
        closing(PostgresDatabase(url, statement_timeout_seconds=0.2).connect()) as connection,
    ):
        holder.execute(LOCK)
        connection.begin()
        with pytest.raises(TransactionConflict, match="statement timeout"):
            locked(connection)
        assert holder.execute(WAITING).fetchone() == (0,), "nobody stands in the queue for the lock"
        connection.rollback()
        holder.rollback()
        connection.begin()
        assert locked(connection) == ["acme"], "the connection is as good as before"
        connection.rollback()


def test_a_transaction_that_rests_lets_go_of_its_locks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_IDLE_SECONDS_MIN", 0.1)
    with closing(PostgresDatabase(url, statement_timeout_seconds=0.1).connect()) as frozen:
        frozen.begin()
        assert locked(frozen) == ["acme"]
        with psycopg.connect(url, autocommit=True) as other:
            wait_until(lambda: _taken(other))
        with pytest.raises(ConnectionLost):
            frozen.commit()


def _taken(other: psycopg.Connection) -> bool:
    try:
        return other.execute(LOCK).fetchone() == (1,)
    except psycopg.errors.LockNotAvailable:
        return False


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.2, ("200ms", "10s")), (60.0, ("1min", "1min")), (2e6, ("2000000s", "2000000s"))]
)
def test_a_lane_that_thinks_is_not_cut_off(url: str, seconds: float, shown: tuple[str, str]) -> None:
    with closing(PostgresDatabase(url, statement_timeout_seconds=seconds).connect()) as connection:
        names = ("statement_timeout", "idle_in_transaction_session_timeout")
        assert tuple(connection.run(f"SHOW {name}")[0][0] for name in names) == shown


def test_a_migration_takes_as_long_as_it_takes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def look(connection: Any, _: Any) -> None:
        seen.extend(connection.run("SHOW statement_timeout"))

    monkeypatch.setattr(engine_module, "migrate", look)
    engine_module.Engine.open(url, Settings(statement_timeout_seconds=0.5)).close()
    assert seen == [("7d",)]
