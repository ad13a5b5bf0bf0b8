"""The folder of a server: whether one lives in it, and whether others may look into it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from callsheet.cli import standing
from callsheet.cli.output import Failure
from callsheet.cli.standing import folder, locked
from callsheet.folder import running
from tests.cli.conftest import ran


def noted(data: Path) -> None:
    (data / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))


@pytest.mark.parametrize("shared", [False, True])
def test_a_server_lives_while_its_folder_is_held_whoever_has_its_number_now(tmp_path: Path, shared: bool) -> None:
    assert running(tmp_path) is None
    noted(tmp_path)
    assert running(tmp_path) is None  # this process has the number in the note, and is no server
    with locked(tmp_path, shared=shared):
        assert (running(tmp_path) or {})["url"] == "http://127.0.0.1:1"
        with pytest.raises(Failure, match=r"already runs on .* at http://127.0.0.1:1"):
            locked(tmp_path)
    assert running(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", "3", "{}", '"url"'])
def test_a_note_that_says_nothing_is_no_server(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    with locked(tmp_path):
        assert running(tmp_path) is None


def test_servers_on_one_postgresql_share_a_folder(tmp_path: Path) -> None:
    noted(tmp_path)
    with locked(tmp_path, shared=True):
        locked(tmp_path, shared=True).close()
        assert running(tmp_path) is not None


def test_a_new_folder_is_private_and_one_that_is_not_gets_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder(tmp_path / "new")
    assert (made.stat().st_mode & 0o777, capsys.readouterr().err) == (0o700, "")
    made.chmod(0o755)
    folder(made)
    assert capsys.readouterr().err == (
        f"callsheet: Others on this machine may look into {made}: chmod 700 {made} keeps them out.\n"
    )


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_database_without_its_scheme_is_no_name_of_a_file(command: str, tmp_path: Path) -> None:
    done = ran(command, "--data", tmp_path / "data", "--port", "0", "--database", "postgres.db")
    assert (done.code, "takes a postgresql:// URL" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["secret.key", "admin.key", "fleet.key"])
def test_a_secret_that_is_none_is_said_with_what_to_do(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("\n")
    done = ran("up", "--data", tmp_path, "--port", "0", "--no-demo")
    assert (done.code, done.out) == (1, "")
    assert f"The secret in {tmp_path / file} is none of ours: put the right one back, or remove the file" in done.err


def test_whoever_may_have_few_connections_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "open_files", lambda: 1_024)
    standing._look_at_room(5_000)  # noqa: SLF001 - what a start says
    assert "allows this process 896 connections, fewer than streams_max, 5000" in capsys.readouterr().err
    standing._look_at_room(896)  # noqa: SLF001
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("hangs", [True, False])
def test_a_process_ends_though_a_thread_hangs(hangs: bool) -> None:
    """Python waits for threads of a pool, and one may wait for a storage that does not answer."""
    program = (
        "import threading; from callsheet.cli import ending; ending._PARTING_SECONDS = 0.05\n"
        f"threading.Thread(target=threading.Event().wait, args=({None if hangs else 0},)).start()\n"
        "print('closed'); ending.leave_behind()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "closed\n")


def test_a_demonstration_that_reaches_no_server_says_so_as_other_commands_do(tmp_path: Path) -> None:
    done = ran("demo", "--once", "--json", "--url", "http://127.0.0.1:1", "--data", tmp_path)
    assert (done.code, json.loads(done.err)["code"]) == (3, "not_reachable")
    plain = ran("demo", "--once", "--url", "http://127.0.0.1:1", "--data", tmp_path)
    assert (plain.code, "http://127.0.0.1:1 does not answer" in plain.err) == (3, True)
