"""The command line in this process, against a served Callsheet on each database."""

import json
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
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., CliResult]


def invoke_cli(*words: str | Path, env: dict[str, str] | None = None, stdin: str | None = None) -> CliResult:
    """Run the command line in this process; an exception that it lets out is the test's."""
    nothing = {"CALLSHEET_URL": None, "CALLSHEET_API_KEY": None, "CALLSHEET_TENANT": None, "COLUMNS": "200"}
    done = CliRunner().invoke(app, [str(word) for word in words], env=nothing | (env or {}), input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return CliResult(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def run(live_server: LiveServer) -> Run:
    """Runs a command with the operator's key, which is of the tenant `default` as well."""

    def one(*words: str | Path, role: str = "admin", stdin: str | None = None) -> CliResult:
        return invoke_cli(*words, "--url", live_server.url, "--api-key", live_server.keys[role], stdin=stdin)

    return one
