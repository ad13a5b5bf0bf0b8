"""No command prints a character of a server's texts that a terminal would act on, or that hides or reorders text."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_tree import commands
from tests.cli.conftest import CliResult, invoke_cli
from tests.cli.terminal import read_terminal, start_with_environment
from tests.support.doubles.hostile_server import MARK, TEXT, HostileServer

ARGUMENTS: dict[str, list[str]] = {
    "submit": ["sketch", "--user", "ann"], "watch": ["j1"], "approve": ["j1", "1"], "events": [],
    "quote": ["sketch", "--user", "ann"], "audit": [], "status": [],
    "jobs show": ["j1"], "jobs cancel": ["j1"], "jobs retry": ["j1"], "jobs refund": ["j1", "--reason", "x"],
    "jobs pause": ["j1"], "jobs resume": ["j1"], "jobs why": ["j1"], "jobs download": ["j1"], "jobs delete": ["j1"],
    "jobs update": ["j1", "--priority", "1"], "jobs events": ["j1"], "jobs list": [], "jobs input": ["j1"],
    "jobs add-tasks": ["j1", "1", "--input", "n=1"],
    "files upload": ["{file}", "--user", "ann"], "files list": ["--user", "ann"], "files show": ["f1"],
    "files download": ["f1"], "files delete": ["f1"],
    "wallet show": ["ann"], "wallet topup": ["ann", "5"], "wallet adjust": ["ann", "5", "--reason", "x"],
    "keys create": ["x", "--role", "client"], "keys list": [], "keys revoke": ["k1"],
    "workflows apply": ["{workflow}"], "workflows list": [], "workflows show": ["sketch"],
    "workers list": [], "workers show": ["w1"], "workers approve": ["w1"], "workers drain": ["w1"],
    "workers assign": ["w1", "draw"], "workers revoke": ["w1"], "workers rotate-token": ["w1"],
    "workers autoscale": ["--once"],
    "tenants list": [], "tenants set": ["default"], "tenants show": ["default"],
}  # fmt: skip
"""The arguments of every command that calls a server."""
ANSWERED = [words for words in ARGUMENTS if words != "files upload"]
"""Commands that accept the examples as answers. An upload has other bytes than the example says."""
LOCAL_COMMANDS = {
    "up", "serve", "demo", "worker", "comfyui", "verify", "migrate", "openapi", "files prune", "workflows check",
    "workflows import", "installation show", "installation accept-secret", "installation accept-storage",
}  # fmt: skip
OWN_SEQUENCES = re.compile(r"\x1b\[\??[0-9;]*[mhlKA]|\r")
"""Styles, cursor movements and line breaks of progress bars and tables."""
WITHOUT_TEXTS = {"jobs delete", "files delete", "jobs add-tasks"}
"""Commands whose output contains no text of the server, unless it refuses."""


@pytest.fixture(scope="module")
def hostile_server() -> Iterator[HostileServer]:
    with HostileServer() as server:
        yield server


@pytest.fixture(scope="module")
def refusing_server() -> Iterator[HostileServer]:
    with HostileServer(refuse=True) as server:
        yield server


def run(server: HostileServer, words: str, folder: Path, *options: str) -> CliResult:
    file, workflow = folder / "a.txt", folder / "sketch.toml"
    file.write_text("x")
    workflow.write_text('[[stages]]\nname = "draw"\nkind = "draw"\n')
    arguments = [argument.format(file=file, workflow=workflow) for argument in ARGUMENTS[words]]
    return invoke_cli(*words.split(), *arguments, *options, "--url", server.url, "--api-key", "cs_x")


def unsafe_characters(text: str) -> set[str]:
    return {character for character in text if not (character.isprintable() or character == "\n")}


def test_every_command_that_calls_a_server_is_listed() -> None:
    assert {" ".join(words) for words, _ in commands()} == ARGUMENTS.keys() | LOCAL_COMMANDS


@pytest.mark.parametrize("words", ANSWERED)
def test_a_command_prints_no_unsafe_character(
    hostile_server: HostileServer, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(hostile_server, words, tmp_path)
    assert unsafe_characters(done.out + done.err) == set()
    assert (MARK in done.out + done.err) is (words not in WITHOUT_TEXTS), done


@pytest.mark.parametrize("words", ARGUMENTS)
def test_a_refused_command_prints_no_unsafe_character(
    refusing_server: HostileServer, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(refusing_server, words, tmp_path)
    assert done.code != 0
    assert unsafe_characters(done.out + done.err) == set()
    assert MARK in done.err


@pytest.mark.parametrize("words", ANSWERED)
def test_json_escapes_unsafe_characters_and_loses_none(
    hostile_server: HostileServer, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(hostile_server, words, tmp_path, "--json")
    assert unsafe_characters(done.out + done.err) == set()
    if done.code == 0 and words not in WITHOUT_TEXTS:
        lines = done.out.splitlines() if words in {"events", "jobs events", "watch"} else [done.out]
        assert any(TEXT in text for line in lines for text in _texts(json.loads(line)))


@pytest.mark.parametrize("words", ["watch j1", "jobs list", "jobs show j1", "jobs download j1", "workers list"])
def test_a_command_on_a_terminal_prints_only_its_own_escape_sequences(
    hostile_server: HostileServer, words: str
) -> None:
    environment = {"CALLSHEET_URL": hostile_server.url, "CALLSHEET_API_KEY": "cs_x"}
    with start_with_environment(environment, *words.split()) as (_, terminal):
        printed = read_terminal(terminal)
    assert MARK in printed
    assert unsafe_characters(OWN_SEQUENCES.sub("", printed)) == set()


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
