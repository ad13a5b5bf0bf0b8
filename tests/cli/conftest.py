"""Runs the command line in this process, against a live server on each database."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from callsheet.cli.main import app
from tests.http.conftest import live_server
from tests.support.processes.live_server import LiveServer

__all__ = ["live_server"]


class CliResult(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., CliResult]


def invoke_cli(*words: str | Path, env: dict[str, str] | None = None, stdin: str | None = None) -> CliResult:
    """Run the command line in this process. An exception that it does not handle is raised."""
    defaults = {"CALLSHEET_URL": None, "CALLSHEET_API_KEY": None, "CALLSHEET_TENANT": None, "COLUMNS": "200"}
    done = CliRunner().invoke(app, [str(word) for word in words], env=defaults | (env or {}), input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return CliResult(done.exit_code, done.stdout, done.stderr)


def connection_options(live_server: LiveServer, role: str = "admin") -> list[str]:
    """Return the options that connect a command to a server."""
    return ["--url", live_server.url, "--api-key", live_server.keys[role]]


def connection_environment(live_server: LiveServer, role: str = "admin") -> dict[str, str]:
    """Return the environment variables that connect a command to a server."""
    return {"CALLSHEET_URL": live_server.url, "CALLSHEET_API_KEY": live_server.keys[role]}


def write_server_note(folder: Path, url: str = "http://127.0.0.1:1", key: str = "secret") -> Path:
    """Write the files that a running server keeps in its data folder, with the pid of this process."""
    (folder / "admin.key").write_text(f"{key}\n")
    note = {"url": url, "admin_key_file": str(folder / "admin.key"), "pid": os.getpid()}
    (folder / "server.json").write_text(json.dumps(note))
    return folder


@pytest.fixture
def run(live_server: LiveServer) -> Run:
    """Runs a command with the key of a role: an admin of the tenant `default` unless the test names another."""

    def one(*words: str | Path, role: str = "admin", stdin: str | None = None) -> CliResult:
        return invoke_cli(*words, *connection_options(live_server, role), stdin=stdin)

    return one
