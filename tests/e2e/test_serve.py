"""`callsheet serve`: several servers without a worker on one database."""

from pathlib import Path

import httpx
import pytest

from callsheet.client import Client
from tests.support.processes.cli_process import ServerProcess, run

SECRET = "0123456789abcdef0123456789abcdef"


def test_servers_accept_each_others_tokens_and_one_with_another_secret_or_storage_does_not_start(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database_pool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "config").write_text(f'[blobs]\nurl = "{(tmp_path / "files").as_uri()}"\n')
    options = ("--database", url, "--config", tmp_path / "config")
    with ServerProcess(
        tmp_path / "a", *options, "--signing-secret-file", tmp_path / "secret", command="serve"
    ) as first:
        key = first.key
        with (
            ServerProcess(
                tmp_path / "b", *options, command="serve", env={"CALLSHEET_SIGNING_SECRET": SECRET}
            ) as second,
            Client(first.url, key) as client,
        ):
            assert second.banner["admin_key_file"] is None
            assert not (tmp_path / "b" / "admin.key").exists()
            token = client.tokens.create("ann").token
            seen = httpx.get(f"{second.url}/v1/jobs", headers={"authorization": f"Bearer {token}"})
            assert seen.status_code == 200
            assert second.stop() == 0
        for words, remedy in (
            (options, "pass it with --signing-secret-file"),
            (("--database", url, "--signing-secret-file", tmp_path / "secret"), "check blobs.url"),
        ):
            done = run("serve", "--port", 0, "--data-dir", tmp_path / "c", *words)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
            assert remedy in done.stderr
        assert first.stop() == 0
    database_pool.release(url)


def test_a_usage_error_exits_with_2_and_a_remedy(tmp_path: Path) -> None:
    done = run("up", "--demo", "--no-demo-workflows", cwd=tmp_path)
    assert done.returncode == 2
    assert "Remove --demo or --no-demo-workflows." in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
