"""Output of commands: JSON errors, suggested commands, closed pipes and full disks."""

import json
import subprocess
from pathlib import Path

import pytest

from callsheet.cli.output import shell_command
from tests.cli.conftest import connection_environment, connection_options, invoke_cli
from tests.support.processes.cli_process import CALLSHEET
from tests.support.processes.live_server import LiveServer


def test_a_suggested_command_names_this_program_if_the_path_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = tmp_path / "mine" / "callsheet", tmp_path / "other" / "callsheet"
    for program in (mine, other):
        program.parent.mkdir()
        program.touch(0o755)
    monkeypatch.setattr("sys.argv", [str(mine)])
    for path, expected in ((mine, "callsheet up"), (other, f"{mine} up"), (tmp_path / "none", f"{mine} up")):
        monkeypatch.setenv("PATH", str(path.parent if path.name == "callsheet" else path))
        assert shell_command("up") == expected
    monkeypatch.setattr("sys.argv", ["-c"])
    assert shell_command("up") == "callsheet up"


def test_with_the_json_option_errors_are_json(live_server: LiveServer, tmp_path: Path) -> None:
    words = ("jobs", "show", "nothing", "--json")
    refused = invoke_cli(*words, *connection_options(live_server))
    error = json.loads(refused.err)
    assert (refused.code, refused.out, error["code"]) == (1, "", "job_not_found")
    assert (set(error), bool(error["request_id"])) == ({"code", "message", "request_id"}, True)
    unknown, silent = invoke_cli(*words, "--data-dir", tmp_path), invoke_cli(*words, "--url", "http://127.0.0.1:1")
    assert (unknown.code, json.loads(unknown.err)["code"]) == (3, "no_server")
    assert (silent.code, json.loads(silent.err)["code"]) == (3, "connection_failed")


def test_a_closed_pipe_prints_no_traceback(live_server: LiveServer) -> None:
    for _ in range(3):
        live_server.work(worker=live_server.submit()["id"])
    line = f"{CALLSHEET} jobs --json --url {live_server.url} --api-key {live_server.keys['admin']} | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_full_disk_is_reported_in_one_sentence(live_server: LiveServer) -> None:
    live_server.work(worker=live_server.submit()["id"])
    options = connection_options(live_server)
    for words in (["jobs", *options], ["jobs", "--json", *options], ["--help"], ["--version"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([CALLSHEET, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "Cannot write all of the output: No space left on device." in done.stderr


@pytest.mark.parametrize(("closed", "code"), [("jobs >&-", 0), ("jobs >&- 2>&-", 0), ("jobs show nothing 2>&-", 1)])
def test_a_closed_output_is_ignored(live_server: LiveServer, closed: str, code: int) -> None:
    live_server.work(worker=live_server.submit()["id"])
    env = connection_environment(live_server)
    done = subprocess.run(["bash", "-c", f"{CALLSHEET} {closed}"], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
