"""The program as a whole: help, completion, version, invalid options and exit codes."""

import json
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.cli.command_tree import commands
from tests.cli.conftest import connection_environment, connection_options, invoke_cli
from tests.support.processes.cli_process import CALLSHEET
from tests.support.processes.live_server import LiveServer

SLOW_IMPORTS = ("numpy", "av", "uvicorn", "psycopg", "apsw", "httpx", "jsonschema_rs")


def test_help_and_completion_import_no_slow_modules() -> None:
    program = "import sys; from callsheet.cli.main import app; app(['--help'], standalone_mode=False); "
    done = subprocess.run(
        [sys.executable, "-c", f"{program}print([m for m in {SLOW_IMPORTS} if m in sys.modules])"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("[]\n"), done.stdout
    env = {"_CALLSHEET_COMPLETE": "complete_bash", "COMP_WORDS": "callsheet jobs ", "COMP_CWORD": "2"}
    completed = subprocess.run([CALLSHEET], capture_output=True, text=True, check=False, env=env)
    assert {"show", "cancel", "retry", "pause", "resume", "why"} <= set(completed.stdout.split())
    env |= {"COMP_WORDS": "callsheet jobs --status c", "COMP_CWORD": "3"}
    statuses = subprocess.run([CALLSHEET], capture_output=True, text=True, check=False, env=env)
    assert set(statuses.stdout.split()) == {"canceled", "completed"}


def test_the_version_option_prints_the_version_of_the_package() -> None:
    assert invoke_cli("--version") == (0, f"callsheet {version('callsheet')}\n", "")


def test_every_command_has_help_and_a_json_option() -> None:
    listed = list(commands())
    assert len(listed) > 25
    for words, command in listed:
        assert command.help, words
        assert any("--json" in option.opts for option in command.params), words
        done = invoke_cli(*words, "--help")
        assert done.code == 0
        assert re.search(r"<(str|int|float|path|list)|^Usage:.*\{[a-z]", done.out) is None, done.out


def test_the_list_of_commands_shows_whole_descriptions() -> None:
    groups = {words[:-1] for words, _ in commands()}
    assert len(groups) > 5
    for words in groups:
        listed = invoke_cli(*words, "--help", env={"COLUMNS": "80"}).out.partition("Commands:")[2]
        assert listed
        assert "..." not in listed, listed


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--port", "70000"],
        ["serve", "--port", "-1"],
        ["submit", "sketch", "--user", "ann", "--input", "{}", "--priority", "101"],
        ["submit", "sketch", "--user", "", "--input", "{}"],
        ["jobs", "--since", "yesterday"],
        ["keys", "create", "x", "--role", "client", "--expires-in", "-5"],
        ["events", "--cursor", "nonsense"],
        ["tenants", "set", "a b"],
        ["wallet", "topup", "eve", "-3"],
        ["wallet", "topup", "eve", "1000000000000000"],
    ],
)
def test_an_invalid_value_of_an_option_is_a_usage_error(live_server: LiveServer, words: list[str]) -> None:
    starts_server = words[0] in {"up", "serve"}
    options = [] if starts_server else [*connection_options(live_server, "operator"), "--tenant", "default"]
    wrong = invoke_cli(*words, *options)
    assert (wrong.code, wrong.out) == (2, ""), wrong.err
    assert "No such option" not in wrong.err


def test_a_real_process_exits_with_the_documented_codes(live_server: LiveServer) -> None:
    env = connection_environment(live_server)

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
