"""A server that starts while PostgreSQL is away waits for it, says so, and starts when it answers."""

import json
import signal
from pathlib import Path

import httpx

from tests.support.databases.postgres import Cluster
from tests.support.processes.cli_process import CommandProcess, run
from tests.support.wait import wait_until

MOMENT_SECONDS = 60.0
AWAY = "postgresql://user@127.0.0.1:1/none"
"""Nothing listens on this port."""


def start(url: str, folder: Path, *more: object) -> CommandProcess:
    options = ("--data-dir", folder / "data", "--port", 0, "--database", url, *more)
    return CommandProcess("serve", *options, log=folder / "log")


def wait_for_announcement(folder: Path) -> str:
    """Wait until a process said that it waits, and return the line."""
    log = folder / "log"
    wait_until(lambda: log.read_text().endswith("\n"), MOMENT_SECONDS)
    return log.read_text()


def test_a_server_waits_for_postgresql_and_then_starts(tmp_path: Path) -> None:
    with Cluster(report=lambda _: None) as cluster:
        url = cluster.create_database()
        cluster.stop()
        with start(url, tmp_path, "--json") as server:
            line = json.loads(wait_for_announcement(tmp_path))
            assert (line["code"], line["request_id"]) == ("waiting_for_database", None)
            assert "Waiting up to 60 seconds for PostgreSQL." in line["message"]
            cluster.start()
            announced = json.loads(server.line())
            assert httpx.get(f"{announced['url']}/readyz").json() == {"status": "ready"}
            assert server.stop() == 0
    assert (tmp_path / "log").read_text().count("waiting_for_database") == 1


def test_a_signal_ends_a_server_that_waits(tmp_path: Path) -> None:
    with start(AWAY, tmp_path) as server:
        assert wait_for_announcement(tmp_path).startswith("callsheet: ")
        assert server.stop(signal.SIGTERM) == 0


def test_the_wait_is_bounded_by_a_setting(tmp_path: Path) -> None:
    config = tmp_path / "config"
    options = ("--data-dir", tmp_path / "data", "--port", 0, "--database", AWAY, "--config", config)
    config.write_text("[engine]\ndatabase_start_seconds = 0.3\n")
    done = run("serve", *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 2)
    assert "127.0.0.1" in done.stderr
    config.write_text("[engine]\ndatabase_start_seconds = 0\n")
    done = run("serve", *options, "--json")
    assert (done.returncode, json.loads(done.stderr)["code"]) == (1, "failed")
