"""How a command finds its server, and what it says when there is none."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from callsheet.cli.in_process_server import lock_directory
from callsheet.cli.output import shell_command
from tests.cli.command_tree import commands
from tests.cli.conftest import invoke_cli
from tests.client.stub_server import ScriptedResponse, StubServer
from tests.support.processes.live_server import LiveServer

CALLSHEET = Path(sys.executable).with_name("callsheet")
HEAVY = ("numpy", "av", "uvicorn", "psycopg", "apsw", "httpx", "jsonschema_rs")


def write_server_note(folder: Path, url: str, key: str) -> Path:
    """Leave what a running server leaves in its folder."""
    (folder / "admin.key").write_text(f"{key}\n")
    note = {"url": url, "admin_key_file": str(folder / "admin.key"), "pid": 1}
    (folder / "server.json").write_text(json.dumps(note))
    return folder


def test_the_server_is_that_of_the_options_then_of_the_environment_then_of_the_folder(
    live_server: LiveServer, tmp_path: Path
) -> None:
    url, key = live_server.url, live_server.keys["operator"]
    away = {"CALLSHEET_URL": "http://127.0.0.1:1", "CALLSHEET_API_KEY": "none"}
    assert invoke_cli("workers", "--url", url, "--api-key", key, env=away).code == 0
    folder = write_server_note(tmp_path, "http://127.0.0.1:1", "none")
    with lock_directory(tmp_path):
        assert (
            invoke_cli("workers", "--data-dir", folder, env={"CALLSHEET_URL": url, "CALLSHEET_API_KEY": key}).code == 0
        )
        assert invoke_cli("workers", "--data-dir", write_server_note(tmp_path, url, key)).code == 0
        assert invoke_cli("workers", "--data-dir", folder, env={"CALLSHEET_API_KEY": "wrong"}).code == 1


def test_the_key_of_a_folder_is_not_sent_to_whoever_took_the_address_of_a_server_that_was_killed(
    tmp_path: Path,
) -> None:
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, {"workers": [], "next": None})]
        left = invoke_cli("workers", "--data-dir", write_server_note(tmp_path, stub.url, "secret"))
        assert (left.code, stub.asked) == (3, [])
    assert f"No server found in {tmp_path}. Start one with `callsheet up --data-dir {tmp_path}`" in left.err


def test_the_key_of_a_folder_is_sent_to_no_other_server(tmp_path: Path) -> None:
    folder = write_server_note(tmp_path, "http://127.0.0.1:1", "secret")
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, {"workers": [], "next": None})]
        listed = invoke_cli("workers", "--data-dir", folder, "--url", stub.url)
        assert (listed.code, "The one inside `callsheet up` is not listed." in listed.out) == (0, True)
        assert "authorization" not in stub.asked[0].headers


@pytest.mark.parametrize("words", [["workers"], ["submit", "sketch", "--user", "ann"], ["wallet", "show", "ann"]])
def test_no_server_is_exit_code_3_and_one_sentence(words: list[str], tmp_path: Path) -> None:
    unknown = invoke_cli(*words, "--data-dir", tmp_path)
    assert (unknown.code, unknown.out, unknown.err.count("\n")) == (3, "", 1)
    assert f"No server found in {tmp_path}. Start one with `callsheet up --data-dir {tmp_path}`" in unknown.err
    silent = invoke_cli(*words, "--url", "http://ann:password@127.0.0.1:1", "--api-key", "secret")
    assert (silent.code, silent.out, silent.err.count("\n")) == (3, "", 1)
    assert silent.err.startswith("callsheet: No response from http://127.0.0.1:1")
    (tmp_path / "server.json").write_text("{")
    assert invoke_cli(*words, "--data-dir", tmp_path).code == 3


def test_a_server_that_was_there_and_is_gone_is_to_be_started_again(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        gone = invoke_cli("workers", "--data-dir", write_server_note(tmp_path, "http://127.0.0.1:1", "secret"))
    assert (gone.code, gone.err.count("\n")) == (3, 1)
    assert gone.err.endswith(f" Start it with `callsheet up --data-dir {tmp_path}`.\n")
    assert "Start it" not in invoke_cli("workers", "--url", "http://127.0.0.1:1").err


def test_a_key_that_is_missing_is_asked_for_in_the_words_of_a_shell(live_server: LiveServer) -> None:
    keyless = invoke_cli("jobs", "--url", live_server.url)
    assert (keyless.code, keyless.err.count("\n")) == (1, 1)
    assert f"{live_server.url} requires an API key. Pass --api-key, or set CALLSHEET_API_KEY." in keyless.err


def test_an_operator_names_the_tenant_to_act_for(live_server: LiveServer) -> None:
    job = live_server.submit("other client")["id"]
    for words in (["--tenant", "other"], ["--tenant", "default"]):
        found = invoke_cli(
            "jobs", "--json", "--url", live_server.url, "--api-key", live_server.keys["operator"], *words
        ).json["jobs"]
        assert (job in [one["id"] for one in found]) == (words[1] == "other")
    live_server.work(worker=job)


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--port", "70000"],
        ["serve", "--port", "-1"],
        ["submit", "sketch", "--user", "ann", "--input", "{}", "--priority", "101"],
        ["submit", "sketch", "--user", "", "--input", "{}"],
        ["jobs", "--since", "yesterday"],
        ["keys", "create", "x", "--role", "client", "--expires-in", "-5"],
        ["events", "--after", "nonsense"],
        ["tenants", "set", "a b"],
        ["wallet", "topup", "eve", "-3"],
        ["wallet", "topup", "eve", "1000000000000000"],
    ],
)
def test_a_value_that_is_not_taken_is_a_wrong_call(live_server: LiveServer, words: list[str]) -> None:
    house = [] if words[0] in {"up", "serve"} else ["--url", live_server.url, "--api-key", live_server.keys["operator"]]
    wrong = invoke_cli(*words, *house, *(["--tenant", "default"] if house else []))
    assert (wrong.code, wrong.out) == (2, ""), wrong.err
    assert "No such option" not in wrong.err


def test_what_is_suggested_works_where_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = tmp_path / "mine" / "callsheet", tmp_path / "other" / "callsheet"
    for program in (mine, other):
        program.parent.mkdir()
        program.touch(0o755)
    monkeypatch.setattr("sys.argv", [str(mine)])
    for path, wanted in ((mine, "callsheet up"), (other, f"{mine} up"), (tmp_path / "none", f"{mine} up")):
        monkeypatch.setenv("PATH", str(path.parent if path.name == "callsheet" else path))
        assert shell_command("up") == wanted
    monkeypatch.setattr("sys.argv", ["-c"])
    assert shell_command("up") == "callsheet up"


@pytest.mark.parametrize("url", ["nonsense", "localhost:8000", "http://", "http://x:port", "http://ann:password@[::1"])
def test_an_address_that_is_none_is_a_wrong_call(url: str, tmp_path: Path) -> None:
    for words in (["workers"], ["demo", "--data-dir", tmp_path / "data"]):
        wrong = invoke_cli(*words, "--url", url)
        assert (wrong.code, wrong.out, wrong.err.count("\n")) == (2, "", 1)
        assert "Write http://HOST:PORT" in wrong.err
        assert "password" not in wrong.err
    assert json.loads(invoke_cli("workers", "--url", url, "--json").err)["code"] == "invalid_url"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("words", [["up"], ["serve"], ["demo"], ["jobs"], ["verify"], ["worker", "studio:worker"]])
def test_a_folder_without_a_name_is_a_wrong_call(words: list[str]) -> None:
    wrong = invoke_cli(*words, "--data-dir", "")
    assert (wrong.code, "The folder's name is empty" in wrong.err) == (2, True)


def test_an_answer_that_is_not_callsheets_is_said_in_a_sentence() -> None:
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(200, "<html>")]
        other = invoke_cli("workers", "--url", stub.url)
    assert (other.code, other.err.count("\n")) == (1, 1)
    assert "Check that the URL is a Callsheet server's" in other.err


def test_with_json_a_failure_is_json_too(live_server: LiveServer, tmp_path: Path) -> None:
    words = ("jobs", "show", "nothing", "--json")
    refused = invoke_cli(*words, "--url", live_server.url, "--api-key", live_server.keys["admin"])
    said = json.loads(refused.err)
    assert (refused.code, refused.out, said["code"]) == (1, "", "job_not_found")
    assert (set(said), bool(said["request_id"])) == ({"code", "message", "request_id"}, True)
    unknown, silent = invoke_cli(*words, "--data-dir", tmp_path), invoke_cli(*words, "--url", "http://127.0.0.1:1")
    assert (unknown.code, json.loads(unknown.err)["code"]) == (3, "no_server")
    assert (silent.code, json.loads(silent.err)["code"]) == (3, "connection_failed")


def test_help_and_completion_bring_nothing_heavy() -> None:
    look = "import sys; from callsheet.cli.main import app; app(['--help'], standalone_mode=False); "
    done = subprocess.run(
        [sys.executable, "-c", f"{look}print([m for m in {HEAVY} if m in sys.modules])"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("[]\n"), done.stdout
    env = {"_CALLSHEET_COMPLETE": "complete_bash", "COMP_WORDS": "callsheet jobs ", "COMP_CWORD": "2"}
    completed = subprocess.run([CALLSHEET], capture_output=True, text=True, check=False, env=env)
    assert {"show", "cancel", "retry", "pause", "resume", "why"} <= set(completed.stdout.split())
    env |= {"COMP_WORDS": "callsheet jobs --status c", "COMP_CWORD": "3"}
    statuses = subprocess.run([CALLSHEET], capture_output=True, text=True, check=False, env=env)
    assert set(statuses.stdout.split()) == {"canceled", "completed"}


def test_a_reader_that_goes_away_is_not_a_traceback(live_server: LiveServer) -> None:
    for _ in range(3):
        live_server.work(worker=live_server.submit()["id"])
    line = f"{CALLSHEET} jobs --json --url {live_server.url} --api-key {live_server.keys['admin']} | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_an_output_that_cannot_be_written_is_one_sentence(live_server: LiveServer) -> None:
    live_server.work(worker=live_server.submit()["id"])
    house = ["--url", live_server.url, "--api-key", live_server.keys["admin"]]
    for words in (["jobs", *house], ["jobs", "--json", *house], ["--help"], ["--version"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([CALLSHEET, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "Cannot write all of the output: No space left on device." in done.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert invoke_cli("--version") == (0, f"callsheet {version('callsheet')}\n", "")


def test_what_is_not_there_is_named(live_server: LiveServer) -> None:
    house = ["--url", live_server.url, "--api-key", live_server.keys["admin"]]
    for words in (["jobs", "show"], ["jobs", "why"], ["watch"]):
        assert invoke_cli(*words, "j-404", *house) == (1, "", "callsheet: There is no job j-404.\n")
    assert invoke_cli("files", "show", "f-404", *house).err == "callsheet: There is no file f-404.\n"
    assert invoke_cli("jobs", "show", "", *house) == (
        1,
        "",
        "callsheet: '' is not a valid id or name. Pass a non-empty id or name.\n",
    )


@pytest.mark.parametrize(("closed", "code"), [("jobs >&-", 0), ("jobs >&- 2>&-", 0), ("jobs show nothing 2>&-", 1)])
def test_an_output_that_is_closed_is_nothing_to_stumble_over(live_server: LiveServer, closed: str, code: int) -> None:
    live_server.work(worker=live_server.submit()["id"])
    env = {"CALLSHEET_URL": live_server.url, "CALLSHEET_API_KEY": live_server.keys["admin"]}
    done = subprocess.run(["bash", "-c", f"{CALLSHEET} {closed}"], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_real_process_submits_and_ends_with_the_codes_that_scripts_use(live_server: LiveServer) -> None:
    env = {"CALLSHEET_URL": live_server.url, "CALLSHEET_API_KEY": live_server.keys["admin"]}

    def process(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([CALLSHEET, *words], capture_output=True, text=True, check=False, env=env)

    done = process("submit", "sketch", "--user", "ann", "--input", "prompt=dunes", "--json")
    job = json.loads(done.stdout)["id"]
    live_server.work()
    watched = process("watch", job)
    assert (watched.returncode, watched.stdout.splitlines()[-1]) == (0, f"{job} is completed.")
    assert process("jobs", "show", "nothing").returncode == 1
    assert process("submit", "sketch").returncode == 2
    env["CALLSHEET_URL"] = "http://127.0.0.1:1"
    assert process("workers").returncode == 3


def test_every_command_takes_json_and_has_help() -> None:
    listed = list(commands())
    assert len(listed) > 25
    for words, command in listed:
        assert command.help, words
        assert any("--json" in option.opts for option in command.params), words
        said = invoke_cli(*words, "--help")
        assert said.code == 0
        assert re.search(r"<(str|int|float|path|list)|^Usage:.*\{[a-z]", said.out) is None, said.out


def test_what_a_list_of_commands_says_of_each_is_whole() -> None:
    groups = {words[:-1] for words, _ in commands()}
    assert len(groups) > 5
    for words in groups:
        listed = invoke_cli(*words, "--help", env={"COLUMNS": "80"}).out.partition("Commands:")[2]
        assert listed
        assert "..." not in listed, listed
