"""`verify` and `migrate`: commands that speak to a database themselves, for as long as it takes."""

from pathlib import Path

import pytest

from callsheet.cli.house import database_at
from callsheet.store.postgres import PostgresDatabase
from tests.cli.conftest import ran

_DAY_SECONDS = 86_400


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of a server that is in a hurry, behind a pooler."""
    file = tmp_path / "server.toml"
    file.write_text("[engine]\npooled = true\nstatement_seconds = 0.1\n")
    return file


def test_the_settings_say_how_a_database_is_spoken_to_but_not_how_long_it_may_take(config: Path) -> None:
    database = database_at(None, "postgresql://somewhere/house", config, reading=True)
    assert isinstance(database, PostgresDatabase)
    assert (database.pooled, database.statement_seconds > _DAY_SECONDS) == (True, True)


def test_a_database_is_made_and_proved_with_the_servers_settings(place: str, config: Path, tmp_path: Path) -> None:
    where = ("--database", place) if "://" in place else ("--data", tmp_path)
    for command in ("migrate", "verify"):
        done = ran(command, *where, "--config", config)
        assert done.code == 0, done.err
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[engine]\npoled = true\n")
    assert "poled" in ran("verify", *where, "--config", wrong).err
