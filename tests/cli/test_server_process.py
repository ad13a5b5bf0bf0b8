"""The server that a command runs in its own process: its data folder, its lock and its limits."""

from pathlib import Path

import apsw
import pytest

from callsheet.cli import server_process
from callsheet.cli.output import Failure
from callsheet.cli.server_process import LocalServer, create_data_folder, lock_directory
from callsheet.data_folder import running
from callsheet.store.connection import DISK_FULL
from tests.cli.conftest import write_server_note
from tests.support.databases.failing_disk import failing_disk


@pytest.mark.parametrize("shared", [False, True])
def test_a_server_runs_only_while_its_folder_is_locked_whatever_the_pid_in_its_note(
    tmp_path: Path, shared: bool
) -> None:
    assert running(tmp_path) is None
    write_server_note(tmp_path)
    assert running(tmp_path) is None  # the note has the pid of this process, which is no server
    with lock_directory(tmp_path, shared=shared):
        assert (running(tmp_path) or {})["url"] == "http://127.0.0.1:1"
        with pytest.raises(Failure, match=r"already runs on .* at http://127.0.0.1:1"):
            lock_directory(tmp_path)
    assert running(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", "3", "{}", '"url"'])
def test_an_invalid_note_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    with lock_directory(tmp_path):
        assert running(tmp_path) is None


def test_servers_on_one_postgresql_database_share_a_folder(tmp_path: Path) -> None:
    write_server_note(tmp_path)
    with lock_directory(tmp_path, shared=True):
        lock_directory(tmp_path, shared=True).close()
        assert running(tmp_path) is not None


def test_a_new_folder_is_private_and_a_readable_one_causes_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    created = create_data_folder(tmp_path / "new")
    assert (created.stat().st_mode & 0o777, capsys.readouterr().err) == (0o700, "")
    created.chmod(0o755)
    create_data_folder(created)
    assert capsys.readouterr().err == (
        f"callsheet: Other users of this machine can read {created}. Run chmod 700 {created}.\n"
    )


def test_a_limit_on_connections_causes_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "raise_file_limit", lambda: 1_024)
    server_process._warn_about_open_files(5_000)  # noqa: SLF001 - printed at the start
    assert "This process may open 896 connections, fewer than streams_max (5000)." in capsys.readouterr().err
    server_process._warn_about_open_files(896)  # noqa: SLF001
    assert capsys.readouterr().err == ""


def test_a_disk_that_refuses_writes_is_reported_in_a_sentence(tmp_path: Path) -> None:
    options = server_process.ServerOptions(data=tmp_path, port=0)
    with failing_disk() as disk:
        with LocalServer(options):
            pass
        disk.error = apsw.FullError
        (tmp_path / "admin.key").unlink()
        with pytest.raises(Failure) as raised:
            LocalServer(options)
    assert str(raised.value) == DISK_FULL
    lock_directory(tmp_path).close()
