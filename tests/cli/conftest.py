"""The command line in this process, against a served Callsheet on each database."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from callsheet.cli.main import app
from tests.http.conftest import served
from tests.support.served import Served

__all__ = ["served"]


class Ran(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


def ran(*words: str | Path, env: dict[str, str] | None = None, stdin: str | None = None) -> Ran:
    """Run the command line in this process; an exception that it lets out is the test's."""
    nothing = {"CALLSHEET_URL": None, "CALLSHEET_KEY": None, "CALLSHEET_TENANT": None, "COLUMNS": "200"}
    done = CliRunner().invoke(app, [str(word) for word in words], env=nothing | (env or {}), input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def run(served: Served) -> Run:
    """Runs a command with the operator's key, which is of the tenant `default` as well."""

    def one(*words: str | Path, role: str = "admin", stdin: str | None = None) -> Ran:
        return ran(*words, "--url", served.url, "--key", served.keys[role], stdin=stdin)

    return one
