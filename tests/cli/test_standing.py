"""The folder of a server: whether one lives in it, and whether others may look into it."""

import json
import os
from pathlib import Path

import pytest

from callsheet.cli.output import Failure
from callsheet.cli.standing import folder, locked, running


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
