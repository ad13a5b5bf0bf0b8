"""`callsheet serve`: servers without a worker, on one database."""

from pathlib import Path

import httpx
import pytest

from callsheet.client import Client
from tests.support.processes.cli_process import ServerProcess, run

SECRET = "0123456789abcdef0123456789abcdef"


def test_servers_that_share_a_database_and_a_secret_take_each_others_tokens(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database_pool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    (tmp_path / "secret").write_text(SECRET + "\n")
    with ServerProcess(
        tmp_path / "a", "--database", url, "--signing-secret-file", tmp_path / "secret", command="serve"
    ) as first:
        key = first.key
        with (
            ServerProcess(
                tmp_path / "b", "--database", url, command="serve", env={"CALLSHEET_SIGNING_SECRET": SECRET}
            ) as second,
            Client(first.url, key) as client,
        ):
            assert second.banner["admin_key_file"] is None
            assert not (tmp_path / "b" / "admin.key").exists()
            token = client.tokens.create("ann").token
            seen = httpx.get(f"{second.url}/v1/jobs", headers={"authorization": f"Bearer {token}"})
            assert seen.status_code == 200
            assert second.stop() == 0
        assert first.stop() == 0
    database_pool.release(url)


def test_a_wrong_call_exits_with_2_and_says_what_to_do(tmp_path: Path) -> None:
    done = run("up", "--demo", "--no-demo-workflows", cwd=tmp_path)
    assert done.returncode == 2
    assert "Remove --demo or --no-demo-workflows." in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
