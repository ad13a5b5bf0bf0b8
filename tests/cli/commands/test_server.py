"""`callsheet up`, `serve` and `demo`, called with what they reject."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import invoke_cli


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_database_without_a_scheme_is_a_usage_error(command: str, tmp_path: Path) -> None:
    done = invoke_cli(command, "--data-dir", tmp_path / "data", "--port", "0", "--database", "postgres.db")
    assert (done.code, "takes a postgresql:// URL" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["secret.key", "admin.key", "fleet.key"])
def test_an_invalid_secret_is_reported_with_its_file_and_a_remedy(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("\n")
    done = invoke_cli("up", "--data-dir", tmp_path, "--port", "0", "--no-demo-workflows")
    assert (done.code, done.out) == (1, "")
    assert f"The secret in {tmp_path / file} is not valid. Restore the original file, or delete it" in done.err


def test_a_demo_without_a_server_fails_as_other_commands_do(tmp_path: Path) -> None:
    done = invoke_cli("demo", "--once", "--json", "--url", "http://127.0.0.1:1", "--data-dir", tmp_path)
    assert (done.code, json.loads(done.err)["code"]) == (3, "connection_failed")
    plain = invoke_cli("demo", "--once", "--url", "http://127.0.0.1:1", "--data-dir", tmp_path)
    assert (plain.code, "No response from http://127.0.0.1:1" in plain.err) == (3, True)
