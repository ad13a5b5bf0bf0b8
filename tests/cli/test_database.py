"""`verify` and `migrate`: commands that speak to a database themselves, for as long as it takes."""

from pathlib import Path

import pytest

from callsheet.cli.commands.database import resolve_database
from callsheet.store.postgres import PostgresDatabase
from tests.cli.conftest import invoke_cli

_DAY_SECONDS = 86_400


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of a server that is in a hurry, behind a pooler."""
    file = tmp_path / "server.toml"
    file.write_text("[engine]\ntransaction_pooling = true\nstatement_timeout_seconds = 0.1\n")
    return file


def test_the_settings_say_how_a_database_is_spoken_to_but_not_how_long_it_may_take(config: Path) -> None:
    database = resolve_database(None, "postgresql://somewhere/house", config, reading=True)
    assert isinstance(database, PostgresDatabase)
    assert (database.transaction_pooling, database.statement_timeout_seconds > _DAY_SECONDS) == (True, True)


def test_a_database_is_made_and_proved_with_the_servers_settings(
    database_url: str, config: Path, tmp_path: Path
) -> None:
    where = ("--database", database_url) if "://" in database_url else ("--data-dir", tmp_path)
    for command in ("migrate", "verify"):
        done = invoke_cli(command, *where, "--config", config)
        assert done.code == 0, done.err
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[engine]\npoled = true\n")
    assert "poled" in invoke_cli("verify", *where, "--config", wrong).err
