"""`callsheet verify`, `migrate` and `openapi`: commands that need no server."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from callsheet.cli.commands.offline import resolve_database
from callsheet.engine import Engine
from callsheet.engine.engine import database_for
from callsheet.settings import Settings
from callsheet.store import migrate, verify
from callsheet.store.postgres import PostgresDatabase
from tests.cli.conftest import invoke_cli
from tests.support.databases.postgres import Cluster

_DAY_SECONDS = 86_400


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of a server with a short statement timeout, behind a connection pooler."""
    file = tmp_path / "server.toml"
    file.write_text("[engine]\ntransaction_pooling = true\nstatement_timeout_seconds = 0.1\n")
    return file


def test_the_servers_settings_apply_except_for_the_statement_timeout(config: Path) -> None:
    database = resolve_database(None, "postgresql://somewhere/callsheet", config, reading=True)
    assert isinstance(database, PostgresDatabase)
    assert (database.transaction_pooling, database.statement_timeout_seconds > _DAY_SECONDS) == (True, True)


def test_a_database_is_migrated_and_verified_with_the_servers_settings(
    database_url: str, config: Path, tmp_path: Path
) -> None:
    location = location_of(database_url, tmp_path)
    for command in ("migrate", "verify"):
        done = invoke_cli(command, *location, "--config", config)
        assert done.code == 0, done.err
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[engine]\npoled = true\n")
    assert "poled" in invoke_cli("verify", *location, "--config", wrong).err


def test_verify_checks_only_the_named_rules_and_reports_the_time_of_each(database_url: str, tmp_path: Path) -> None:
    Engine.open(database_url).close()
    location = location_of(database_url, tmp_path)
    done = invoke_cli("verify", *location, "--rule", "M16", "--rule", "L7", "--json")
    assert done.code == 0, done.err
    assert done.json["sound"] is True
    assert [(rule["name"], rule["count"]) for rule in done.json["rules"]] == [("L7", 0), ("M16", 0)]
    assert all(rule["seconds"] >= 0 for rule in done.json["rules"])
    assert "0 jobs, 2 rules." in invoke_cli("verify", *location, "--rule", "M16", "--rule", "L7").out
    everything = {rule["name"] for rule in invoke_cli("verify", *location, "--json").json["rules"]}
    assert everything == {rule.name for rule in verify.rules("sqlite")}


def test_verify_refuses_an_unknown_rule_and_lists_the_rules(database_url: str, tmp_path: Path) -> None:
    Engine.open(database_url).close()
    done = invoke_cli("verify", *location_of(database_url, tmp_path), "--rule", "L7", "--rule", "l7")
    assert (done.code, done.out) == (2, "")
    message = " ".join(done.err.replace("│", " ").split())
    assert "There is no rule 'l7'. The rules are A1, A2, A3," in message


NEXT = migrate.Migration(2, "labels", "CREATE TABLE label (id text NOT NULL PRIMARY KEY);")
FOREIGN_TABLES = {
    "no tables": "SELECT 1",
    "other tables": "CREATE TABLE song (id text)",
    "migrations of another program": "CREATE TABLE migration (id text)",
    "unknown migrations": "CREATE TABLE migration (version bigint, checksum text)",
}


def location_of(database_url: str, folder: Path) -> tuple[str, str | Path]:
    return ("--database", database_url) if "://" in database_url else ("--data-dir", folder)


@pytest.mark.parametrize("words", [["verify"], ["verify", "--files"], ["files", "prune"], ["installation", "show"]])
def test_an_older_schema_is_reported_in_one_sentence(
    words: list[str], database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Engine.open(database_url).close()
    newest = [*migrate.migrations(), NEXT]
    monkeypatch.setattr(migrate, "migrations", lambda: newest)
    done = invoke_cli(*words, *location_of(database_url, tmp_path))
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert (
        "The database has an older schema: migration 2 (labels) is missing. Run `callsheet migrate` first" in done.err
    )


def run_statements(url: str, *statements: str) -> None:
    with closing(database_for(url, Settings()).connect()) as connection:
        for statement in statements:
            connection.run(statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def blank_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables."""
    if request.param == "sqlite":
        yield str(tmp_path / "callsheet.db")
        return
    cluster: Cluster = request.getfixturevalue("migrated_postgres")
    url = cluster.create_database()
    run_statements(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    yield url
    cluster.drop(url)


@pytest.mark.parametrize("statement", FOREIGN_TABLES.values(), ids=FOREIGN_TABLES)
def test_a_database_of_another_program_is_reported_in_one_sentence(
    blank_database: str, statement: str, tmp_path: Path
) -> None:
    run_statements(blank_database, statement)
    done = invoke_cli("verify", *location_of(blank_database, tmp_path))
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert "This is not a Callsheet database." in done.err


def test_a_database_of_another_build_is_reported_in_one_sentence(database_url: str, tmp_path: Path) -> None:
    Engine.open(database_url).close()
    run_statements(database_url, "UPDATE migration SET checksum = 'x'")
    done = invoke_cli("verify", *location_of(database_url, tmp_path))
    run_statements(database_url, f"UPDATE migration SET checksum = '{migrate.migrations()[0].checksum}'")
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert "another build of Callsheet" in done.err


def test_a_violation_and_an_unreadable_database_have_different_exit_codes(database_url: str, tmp_path: Path) -> None:
    Engine.open(database_url).close()
    location = location_of(database_url, tmp_path)
    assert invoke_cli("verify", *location).code == 0
    run_statements(database_url, "INSERT INTO cursor VALUES ('ahead', 1000000000, 1, NULL, 0)")
    violated = invoke_cli("verify", *location)
    assert (violated.code, "X5" in violated.out) == (1, True)
    assert invoke_cli("verify", "--database", "postgresql://user@127.0.0.1:1/none", "--json").code == 3


def test_a_database_that_is_away_is_not_taken_for_another_programs() -> None:
    done = invoke_cli("verify", "--database", "postgresql://user@127.0.0.1:1/none")
    assert (done.code, "not a Callsheet database" in done.err, "127.0.0.1" in done.err) == (3, False, True)


def test_the_openapi_document_is_printed() -> None:
    done = invoke_cli("openapi")
    assert (done.code, done.json["openapi"]) == (0, "3.1.0")
