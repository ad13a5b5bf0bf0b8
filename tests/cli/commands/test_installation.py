"""`callsheet installation`: show and replace the signing secret and the file storage of a database."""

import shutil
from pathlib import Path

import pytest

from callsheet.app import Callsheet
from callsheet.core.model.errors import Conflict
from tests.cli.conftest import CliResult, invoke_cli
from tests.http.upload_requests import upload_file
from tests.support.processes.live_server import LiveServer

NEW_SECRET = "0123456789abcdef0123456789abcdef"


class Commands:
    """The commands with the options of one database and data folder."""

    def __init__(self, database_url: str, data: Path) -> None:
        self._database_url = database_url
        self._data = data

    def run(self, name: str, *words: str | Path, data: Path | None = None) -> CliResult:
        location = ["--database", self._database_url] if "://" in self._database_url else []
        return invoke_cli("installation", name, "--data-dir", data or self._data, *location, *words)

    def matches(self, *words: str | Path, data: Path | None = None) -> tuple[bool, bool]:
        values = self.run("show", "--json", *words, data=data).json
        return values["signing_secret"]["matches"], values["file_storage"]["matches"]


@pytest.fixture
def commands(database_url: str, tmp_path: Path) -> Commands:
    Callsheet(database_url, tmp_path).close()
    return Commands(database_url, tmp_path)


def test_show_lists_the_recorded_values_and_whether_they_match(commands: Commands, tmp_path: Path) -> None:
    assert commands.matches() == (True, True)
    lines = commands.run("show").out.splitlines()
    assert [line.split()[-1] for line in lines] == ["MATCHES", "yes", "yes"]
    (tmp_path / "new.key").write_text(NEW_SECRET)
    (tmp_path / "files").rename(tmp_path / "away")
    assert commands.matches("--signing-secret-file", tmp_path / "new.key") == (False, False)


def test_a_secret_is_replaced_on_purpose(commands: Commands, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_text(NEW_SECRET)
    with pytest.raises(Conflict):
        Callsheet(database_url, tmp_path)
    done = commands.run("accept-secret")
    assert (done.code, done.out) == (0, "The database now has this signing secret. Restart all servers with it.\n")
    Callsheet(database_url, tmp_path).close()
    assert commands.run("accept-secret").out == "The database has this signing secret already.\n"
    assert commands.run("accept-secret", "--json").json == {"changed": False}


def test_a_lost_secret_is_replaced_by_a_new_one(commands: Commands, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "secret.key").unlink()
    assert commands.matches() == (False, True)
    assert commands.run("accept-secret", "--json").json == {"changed": True}
    Callsheet(database_url, tmp_path).close()


def test_another_storage_is_accepted_only_with_every_file(database_url: str, tmp_path: Path) -> None:
    with LiveServer(database_url, tmp_path) as server:
        upload_file(server)
    commands, other = Commands(database_url, tmp_path), tmp_path / "other"
    other.mkdir()
    shutil.copy(tmp_path / "secret.key", other)
    if "://" not in database_url:
        shutil.copy(tmp_path / "callsheet.db", other)
    done = commands.run("accept-storage", data=other)
    assert (done.code, "lacks 1 file of the database." in done.err) == (1, True)
    shutil.copytree(tmp_path / "files" / "default", other / "files" / "default")
    assert commands.matches(data=other) == (True, False)
    done = commands.run("accept-storage", data=other)
    assert (done.code, done.out) == (0, "The database now has this file storage. Restart all servers with it.\n")
    assert commands.matches(data=other) == (True, True)


def test_a_storage_can_be_accepted_without_its_files(database_url: str, tmp_path: Path) -> None:
    with LiveServer(database_url, tmp_path) as server:
        upload_file(server)
    shutil.rmtree(tmp_path / "files")
    commands = Commands(database_url, tmp_path)
    assert commands.run("accept-storage").code == 1
    assert commands.run("accept-storage", "--allow-missing-files", "--json").json == {"changed": True}
    Callsheet(database_url, tmp_path).close()


def test_an_accepted_storage_no_longer_belongs_to_the_other_database(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    Callsheet(one / "callsheet.db", one).close()
    Callsheet(two / "callsheet.db", two).close()
    shutil.rmtree(two / "files")
    (one / "files").rename(two / "files")
    assert invoke_cli("installation", "accept-storage", "--data-dir", two).code == 0
    Callsheet(two / "callsheet.db", two).close()
    (two / "files").rename(one / "files")
    with pytest.raises(Conflict):
        Callsheet(one / "callsheet.db", one)


@pytest.mark.parametrize("words", [["files", "prune"], ["verify", "--files"]])
def test_commands_about_files_refuse_the_storage_of_another_database(words: list[str], tmp_path: Path) -> None:
    """They would delete the files of the other database, or report that all files are missing."""
    config = tmp_path / "config"
    config.write_text(f'[blobs]\nurl = "{(tmp_path / "one" / "files").as_uri()}"\n')
    for name in ("one", "two"):
        Callsheet(tmp_path / name / "callsheet.db", tmp_path / name).close()
    done = invoke_cli(*words, "--data-dir", tmp_path / "two", "--config", config)
    assert (done.code, done.out) == (3, "")
    assert "The file storage of this server is not the one of its database." in done.err
