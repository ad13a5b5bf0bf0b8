"""The schema: migrations run once and in order, and the row classes match the tables."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from callsheet.core.model.errors import BadInput
from callsheet.core.model.rows import ROWS, Row
from callsheet.engine import Engine
from callsheet.engine.engine import database_for
from callsheet.settings import Settings
from callsheet.store.connection import Connection, StoreError
from callsheet.store.dialect import column_types, columns, postgresql_statement, queries, sqlite_statement
from callsheet.store.migrate import Migration, dialect_of, migrate, migrations
from tests.support.databases.postgres import Cluster
from tests.support.engine.engine_harness import EngineHarness

EXTRA = Migration(
    9_001,
    "more",
    "CREATE TABLE more (id text NOT NULL PRIMARY KEY);\n"
    "ALTER TABLE job ADD COLUMN colour text;\n"
    "ALTER TABLE task ADD COLUMN weight {int} NOT NULL DEFAULT 1;\n",
)
COLUMNS = {
    "sqlite": "SELECT name, type FROM pragma_table_info('{}')",
    "postgresql": "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{}'",
}


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without a schema."""
    if request.param == "sqlite":
        yield str(tmp_path / "callsheet.db")
        return
    cluster: Cluster = request.getfixturevalue("postgres")
    url = cluster.create_database()
    with_connection(url, lambda connection: connection.run("DROP SCHEMA public CASCADE"))
    with_connection(url, lambda connection: connection.run("CREATE SCHEMA public"))
    yield url
    cluster.drop(url)


def with_connection(database_url: str, work: Callable[[Connection], Any]) -> Any:
    connection = database_for(database_url, Settings()).connect()
    try:
        return work(connection)
    finally:
        connection.close()


def dialect(database_url: str) -> str:
    return database_for(database_url, Settings()).name


def migrate_steps(database_url: str, steps: list[Migration] | None = None) -> list[Migration]:
    applied: list[Migration] = with_connection(
        database_url, lambda c: migrate(c, dialect_of(dialect(database_url)), steps)
    )
    return applied


def applied_migrations(database_url: str) -> list[int]:
    return [
        row[0] for row in with_connection(database_url, lambda c: c.run("SELECT version FROM migration ORDER BY 1"))
    ]


def test_an_empty_database_is_migrated_and_can_be_used(empty_database: str) -> None:
    # R431
    assert migrate_steps(empty_database) == migrations()
    with EngineHarness(empty_database) as harness:
        harness.tenant()
        harness.workflow()
        harness.top_up(5)
        job = harness.submit_job()
        harness.finish(job)
        assert harness.find_violations() == []


def test_migrating_twice_does_nothing(empty_database: str) -> None:
    migrate_steps(empty_database)
    assert migrate_steps(empty_database) == []
    assert applied_migrations(empty_database) == [step.version for step in migrations()]


def test_a_migration_whose_text_has_changed_is_refused(empty_database: str) -> None:
    first, *rest = migrations()
    migrate_steps(empty_database)
    changed = [first._replace(text=first.text + "\n-- changed later\n"), *rest]
    with pytest.raises(StoreError, match="another form"):
        migrate_steps(empty_database, changed)
    with_connection(empty_database, lambda c: c.run("UPDATE migration SET checksum = 'x' WHERE version = 1"))
    with pytest.raises(StoreError, match="Migration 1"):
        Engine.open(empty_database)


def test_a_failed_migration_changes_nothing(empty_database: str) -> None:
    # F27
    broken = Migration(9_002, "broken", "CREATE TABLE halfway (id text);\nCREATE TABLE no (such syntax at all;\n")
    with pytest.raises(StoreError):
        migrate_steps(empty_database, [*migrations(), EXTRA, broken])
    with pytest.raises(StoreError):
        applied_migrations(empty_database)
    assert migrate_steps(empty_database, [*migrations(), EXTRA]) == [*migrations(), EXTRA]


def test_the_engine_works_with_the_schema_of_the_next_version(empty_database: str) -> None:
    # F27: servers of the previous version keep working during and after a migration
    migrate_steps(empty_database, [*migrations(), EXTRA])
    assert applied_migrations(empty_database)[-1] == 9_001
    with EngineHarness(empty_database) as harness:
        harness.tenant()
        harness.workflow()
        harness.top_up(10)
        job = harness.submit_job()
        harness.fail(harness.claim_one(), retryable=True)
        harness.advance(10)
        harness.complete(harness.claim_one())
        assert (harness.status(job), harness.balance()) == ("completed", 5)
    assert applied_migrations(empty_database)[-1] == 9_001


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.TABLE)
def test_a_row_class_has_the_columns_of_its_table(database_url: str, row: type[Row]) -> None:
    # R431
    Engine.open(database_url).close()
    found = with_connection(database_url, lambda c: c.run(COLUMNS[dialect(database_url)].format(row.TABLE)))
    actual = {name: "bigint" if "int" in kind.lower() else kind.lower() for name, kind in found}
    if row.TABLE == "event":
        assert (actual.pop("id"), actual.pop("tx")) == ("bigint", "bigint")
    assert actual == dict(zip(columns(row), column_types(row), strict=True))


def test_every_table_has_a_row_class(database_url: str) -> None:
    # R431
    Engine.open(database_url).close()
    listing = {
        "sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
        "postgresql": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
    }
    tables = {row[0] for row in with_connection(database_url, lambda c: c.run(listing[dialect(database_url)]))}
    assert tables == {row.TABLE for row in ROWS} | {"migration"}


SHARED = {"tenant", "workflow", "workflow_file", "queue", "worker", "cursor", "inbox", "installation"}
"""Tables that all tenants share; they have no rows of a single user."""
IDENTIFIED_BY_JOB = {"document", "job_file"}


def test_every_table_with_rows_of_a_tenant_has_a_tenant_or_job_column() -> None:
    # R158, C18
    with_tenant = {row.TABLE for row in ROWS if "tenant" in columns(row)}
    assert {row.TABLE for row in ROWS} == with_tenant | SHARED | IDENTIFIED_BY_JOB
    assert not with_tenant & (SHARED | IDENTIFIED_BY_JOB)
    for row in ROWS:
        assert row.TABLE not in IDENTIFIED_BY_JOB or "job_id" in columns(row)
        assert row.TABLE not in SHARED or not {"user_id", "job_id", "wallet_id"} & set(columns(row))


def test_every_query_is_valid_on_both_databases(database_url: str) -> None:
    # R431
    Engine.open(database_url).close()
    prepared = {}
    for name, text in queries().items():
        if dialect(database_url) == "sqlite":
            statement = sqlite_statement(text, repr).text
            prepared[name] = can_explain_sqlite(database_url, statement)
        else:
            statement = postgresql_statement(text).text
            prepared[name] = can_prepare(database_url, f"PREPARE {name} AS {statement}")
    assert len(prepared) > 40
    assert all(prepared.values())


def can_prepare(database_url: str, statement: str) -> bool:
    return len(with_connection(database_url, lambda connection: connection.run(statement))) == 0


def can_explain_sqlite(database_url: str, statement: str) -> bool:
    explain = f"EXPLAIN {statement.replace('?', 'NULL')}"
    return len(with_connection(database_url, lambda connection: connection.run(explain))) > 0


def test_sqlite_uses_a_write_ahead_log_and_full_synchronization(tmp_path: Path) -> None:
    # F15: with less than FULL, acknowledged commits are lost when the power fails
    database_url = str(tmp_path / "callsheet.db")
    migrate_steps(database_url)
    settings = with_connection(
        database_url, lambda c: [c.run(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous")]
    )
    assert settings == ["wal", 2]


def test_a_read_connection_cannot_write(database_url: str) -> None:
    Engine.open(database_url).close()
    connection = database_for(database_url, Settings()).connect(reading=True)
    try:
        with pytest.raises(StoreError):
            connection.run("DELETE FROM job")
    finally:
        connection.close()


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open callsheet\.db: check that its folder exists"):
        Engine.open(tmp_path / "no" / "folder" / "callsheet.db")


def test_a_url_of_another_database_is_refused() -> None:
    with pytest.raises(BadInput, match="postgresql://"):
        Engine.open("mysql://root@localhost/x")
