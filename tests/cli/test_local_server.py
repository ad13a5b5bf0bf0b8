"""The folder of a server: whether one lives in it, and whether others may look into it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from callsheet.cli import in_process_server
from callsheet.cli.in_process_server import folder, lock_directory
from callsheet.cli.output import Failure
from callsheet.data_folder import running
from tests.cli.conftest import invoke_cli


def write_server_note(data: Path) -> None:
    (data / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))


@pytest.mark.parametrize("shared", [False, True])
def test_a_server_lives_while_its_folder_is_held_whoever_has_its_number_now(tmp_path: Path, shared: bool) -> None:
    assert running(tmp_path) is None
    write_server_note(tmp_path)
    assert running(tmp_path) is None  # this process has the number in the note, and is no server
    with lock_directory(tmp_path, shared=shared):
        assert (running(tmp_path) or {})["url"] == "http://127.0.0.1:1"
        with pytest.raises(Failure, match=r"already runs on .* at http://127.0.0.1:1"):
            lock_directory(tmp_path)
    assert running(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", "3", "{}", '"url"'])
def test_a_note_that_says_nothing_is_no_server(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    with lock_directory(tmp_path):
        assert running(tmp_path) is None


def test_servers_on_one_postgresql_share_a_folder(tmp_path: Path) -> None:
    write_server_note(tmp_path)
    with lock_directory(tmp_path, shared=True):
        lock_directory(tmp_path, shared=True).close()
        assert running(tmp_path) is not None


def test_a_new_folder_is_private_and_one_that_is_not_gets_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path / "new")
    assert (made.stat().st_mode & 0o777, capsys.readouterr().err) == (0o700, "")
    made.chmod(0o755)
    folder(made)
    assert capsys.readouterr().err == (
        f"callsheet: Other users of this machine can read {made}. Run chmod 700 {made}.\n"
    )


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_database_without_its_scheme_is_no_name_of_a_file(command: str, tmp_path: Path) -> None:
    done = invoke_cli(command, "--data-dir", tmp_path / "data", "--port", "0", "--database", "postgres.db")
    assert (done.code, "takes a postgresql:// URL" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["secret.key", "admin.key", "fleet.key"])
def test_a_secret_that_is_none_is_said_with_what_to_do(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("\n")
    done = invoke_cli("up", "--data-dir", tmp_path, "--port", "0", "--no-demo-workflows")
    assert (done.code, done.out) == (1, "")
    assert f"The secret in {tmp_path / file} is not valid: restore the original file, or delete it" in done.err


def test_a_limit_on_connections_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process_server, "raise_file_limit", lambda: 1_024)
    in_process_server._warn_about_open_files(5_000)  # noqa: SLF001 - what a start says
    assert "This process may open 896 connections, fewer than streams_max (5000)." in capsys.readouterr().err
    in_process_server._warn_about_open_files(896)  # noqa: SLF001
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("hangs", [True, False])
def test_a_process_ends_though_a_thread_hangs(hangs: bool) -> None:
    """Python waits for threads of a pool, and one may wait for a storage that does not answer."""
    program = (
        "import threading; from callsheet.cli import shutdown; shutdown._EXIT_WAIT_SECONDS = 0.05\n"
        f"threading.Thread(target=threading.Event().wait, args=({None if hangs else 0},)).start()\n"
        "print('closed'); shutdown.exit_despite_hanging_threads()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "closed\n")


def test_a_demonstration_that_reaches_no_server_says_so_as_other_commands_do(tmp_path: Path) -> None:
    done = invoke_cli("demo", "--once", "--json", "--url", "http://127.0.0.1:1", "--data-dir", tmp_path)
    assert (done.code, json.loads(done.err)["code"]) == (3, "connection_failed")
    plain = invoke_cli("demo", "--once", "--url", "http://127.0.0.1:1", "--data-dir", tmp_path)
    assert (plain.code, "No response from http://127.0.0.1:1" in plain.err) == (3, True)
