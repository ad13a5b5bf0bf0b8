"""The schema: migrated once, in order, never changed after; the row classes and the database say the same."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from callsheet.config import Settings
from callsheet.core.errors import BadInput
from callsheet.core.rows import ROWS, Row
from callsheet.engine import Engine
from callsheet.engine.engine import database_of
from callsheet.store.connection import Connection, StoreError
from callsheet.store.dialect import column_types, columns, postgresql_statement, queries, sqlite_statement
from callsheet.store.migrate import Migration, dialect_of, migrate, migrations
from tests.support.postgres import Cluster
from tests.support.studio import Studio

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
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place with nothing in it at all, not even the schema."""
    if request.param == "sqlite":
        yield str(tmp_path / "callsheet.db")
        return
    cluster: Cluster = request.getfixturevalue("postgres")
    url = cluster.create_database()
    with_connection(url, lambda connection: connection.run("DROP SCHEMA public CASCADE"))
    with_connection(url, lambda connection: connection.run("CREATE SCHEMA public"))
    yield url
    cluster.drop(url)


def with_connection(place: str, work: Callable[[Connection], Any]) -> Any:
    connection = database_of(place, Settings()).connect()
    try:
        return work(connection)
    finally:
        connection.close()


def dialect(place: str) -> str:
    return database_of(place, Settings()).name


def migrated(place: str, steps: list[Migration] | None = None) -> list[Migration]:
    taken: list[Migration] = with_connection(place, lambda c: migrate(c, dialect_of(dialect(place)), steps))
    return taken


def applied(place: str) -> list[int]:
    return [row[0] for row in with_connection(place, lambda c: c.run("SELECT version FROM migration ORDER BY 1"))]


def test_an_empty_database_is_migrated_and_works(bare: str) -> None:
    # R431, F27
    assert migrated(bare) == migrations()
    with Studio(bare) as studio:
        studio.tenant()
        studio.workflow()
        studio.top_up(5)
        job = studio.ask()
        studio.finish(job)
        assert studio.broken() == []


def test_migrating_twice_does_nothing(bare: str) -> None:
    # F27
    migrated(bare)
    assert migrated(bare) == []
    assert applied(bare) == [step.version for step in migrations()]


def test_a_step_whose_text_has_changed_is_refused(bare: str) -> None:
    # F27
    first, *rest = migrations()
    migrated(bare)
    changed = [first._replace(text=first.text + "\n-- an afterthought\n"), *rest]
    with pytest.raises(StoreError, match="another text"):
        migrated(bare, changed)
    with_connection(bare, lambda c: c.run("UPDATE migration SET checksum = 'x' WHERE version = 1"))
    with pytest.raises(StoreError, match="Migration 1"):
        Engine.open(bare)


def test_a_step_that_breaks_leaves_nothing_behind(bare: str) -> None:
    # F27
    broken = Migration(9_002, "broken", "CREATE TABLE halfway (id text);\nCREATE TABLE no (such syntax at all;\n")
    with pytest.raises(StoreError):
        migrated(bare, [*migrations(), EXTRA, broken])
    with pytest.raises(StoreError):
        applied(bare)
    assert migrated(bare, [*migrations(), EXTRA]) == [*migrations(), EXTRA]


def test_this_code_works_with_the_schema_of_the_next_version(bare: str) -> None:
    # F27, R432: a server of the version before goes on working while and after it runs
    migrated(bare, [*migrations(), EXTRA])
    assert applied(bare)[-1] == 9_001
    with Studio(bare) as studio:
        studio.tenant()
        studio.workflow()
        studio.top_up(10)
        job = studio.ask()
        studio.fail(studio.take(), retryable=True)
        studio.advance(10)
        studio.complete(studio.take())
        assert (studio.status(job), studio.balance()) == ("completed", 5)
    assert applied(bare)[-1] == 9_001


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.TABLE)
def test_a_row_class_has_the_columns_of_its_table(place: str, row: type[Row]) -> None:
    # R431
    Engine.open(place).close()
    found = with_connection(place, lambda c: c.run(COLUMNS[dialect(place)].format(row.TABLE)))
    actual = {name: "bigint" if "int" in kind.lower() else kind.lower() for name, kind in found}
    if row.TABLE == "event":
        assert (actual.pop("id"), actual.pop("tx")) == ("bigint", "bigint")
    assert actual == dict(zip(columns(row), column_types(row), strict=True))


def test_every_table_has_a_row_class(place: str) -> None:
    # R431
    Engine.open(place).close()
    listing = {
        "sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
        "postgresql": "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'",
    }
    tables = {row[0] for row in with_connection(place, lambda c: c.run(listing[dialect(place)]))}
    assert tables == {row.TABLE for row in ROWS} | {"migration"}


HOUSE = {"tenant", "workflow", "workflow_use", "queue", "worker", "cursor", "inbox"}
"""What all tenants share; nothing in it is one user's."""
OF_A_JOB = {"document", "use"}


def test_every_row_that_is_a_tenants_says_so() -> None:
    # R158, C18: one store today, and nothing in the way of one for each tenant
    named = {row.TABLE for row in ROWS if "tenant" in columns(row)}
    assert {row.TABLE for row in ROWS} == named | HOUSE | OF_A_JOB
    assert not named & (HOUSE | OF_A_JOB)
    for row in ROWS:
        assert row.TABLE not in OF_A_JOB or "job_id" in columns(row)
        assert row.TABLE not in HOUSE or not {"user_id", "job_id", "wallet_id"} & set(columns(row))


def test_every_query_prepares_on_both_databases(place: str) -> None:
    # R431: one SQL text on two databases
    Engine.open(place).close()
    prepared = {}
    for name, text in queries().items():
        if dialect(place) == "sqlite":
            statement = sqlite_statement(text, repr).text
            prepared[name] = explained(place, statement)
        else:
            statement = postgresql_statement(text).text
            prepared[name] = planned(place, f"PREPARE {name} AS {statement}")
    assert len(prepared) > 40
    assert all(prepared.values())


def planned(place: str, statement: str) -> bool:
    return len(with_connection(place, lambda connection: connection.run(statement))) == 0


def explained(place: str, statement: str) -> bool:
    connection = apsw.Connection(place)
    try:
        return bool(connection.execute(f"EXPLAIN {statement}", [None] * statement.count("?")).fetchall())
    finally:
        connection.close()


def test_sqlite_writes_ahead_and_waits_for_the_disk(tmp_path: Path) -> None:
    # R432, F15: anything less than FULL loses acknowledged commits when the power fails
    place = str(tmp_path / "callsheet.db")
    migrated(place)
    settings = with_connection(
        place, lambda c: [c.run(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous")]
    )
    assert settings == ["wal", 2]


def test_a_reading_connection_cannot_write(place: str) -> None:
    Engine.open(place).close()
    connection = database_of(place, Settings()).connect(reading=True)
    try:
        with pytest.raises(StoreError):
            connection.run("DELETE FROM job")
    finally:
        connection.close()


def test_a_folder_that_is_not_there_gives_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open callsheet\.db: is its folder there"):
        Engine.open(tmp_path / "no" / "folder" / "callsheet.db")


def test_an_address_of_another_kind_gives_a_clear_error() -> None:
    with pytest.raises(BadInput, match="postgresql://"):
        Engine.open("mysql://root@localhost/x")
