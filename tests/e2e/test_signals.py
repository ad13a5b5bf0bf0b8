"""SIGINT and SIGTERM at every moment of the start and the stop of servers and workers: they end at once, in order.

A moment is a condition: a file exists, a line was printed, a port is open.
"""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from callsheet.cli.server_process import lock_directory
from callsheet.data_folder import running
from callsheet.store.migrate import _ADVISORY_LOCK
from callsheet.worker.runtime.worker_name_reservation import hold_worker_name
from tests.support.databases.postgres import Cluster
from tests.support.processes.cli_process import CommandProcess, ServerProcess
from tests.support.wait import wait_until

MOMENT_SECONDS = 60.0
"""A bound for a moment that never comes."""
PROMPT_SECONDS = 20.0
"""A bound for the end of a process. It is below every timeout that a process could wait for instead."""
BOTH = (signal.SIGTERM, signal.SIGINT)
Moment = Callable[[CommandProcess, Path], object]


def end(process: CommandProcess, number: signal.Signals) -> int:
    """Send a signal and return the exit code."""
    process.process.send_signal(number)
    return process.process.wait(PROMPT_SECONDS)


def start_server(command: str, data: Path, *more: object) -> CommandProcess:
    log = data.with_name("log")
    return CommandProcess(command, "--data-dir", data, "--port", 0, "--json", *more, log=log)


def exists(pattern: str) -> Moment:
    return lambda _, data: wait_until(lambda: any(data.glob(pattern)), MOMENT_SECONDS)


def port_open(process: CommandProcess, data: Path) -> None:
    _ = data
    url = json.loads(process.line())["url"]
    assert httpx.get(f"{url}/readyz").status_code == 200


SERVER_MOMENTS: dict[str, Moment] = {
    "the process was created": lambda *_: None,
    "the folder is locked": exists("server.lock"),
    "the database exists": exists("callsheet.db"),
    "the database is written": exists("callsheet.db-wal"),
    "the secret exists": exists("secret.key"),
    "the storage is marked": exists("files/.identity/*"),
    "the first key exists": exists("fleet.key"),
    "the server is announced": exists("server.json"),
    "the first line was printed": lambda process, _: process.line(),
    "the port is open": port_open,
}


def is_stopped(data: Path) -> bool:
    """Return whether a folder has no running server and no lock."""
    if data.exists():
        lock_directory(data).close()
    return running(data) is None


@pytest.mark.parametrize(
    ("command", "number", "moment"),
    [
        (command, BOTH[(no + first) % 2], moment)
        for first, command in enumerate(("up", "serve"))
        for no, moment in enumerate(SERVER_MOMENTS)
    ],
)
def test_a_signal_during_the_start_of_a_server_ends_it_in_order(
    command: str, number: signal.Signals, moment: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with start_server(command, data) as server:
        SERVER_MOMENTS[moment](server, data)
        code = end(server, number)
    if moment == "the process was created":  # Python itself may not have started yet
        assert code in {0, 128 + number, -number}
    else:
        assert code == 0, (tmp_path / "log").read_text()
    assert is_stopped(data)


@pytest.mark.parametrize("number", BOTH)
def test_a_second_signal_ends_a_server_at_once(number: signal.Signals, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with start_server("up", data) as server:
        port_open(server, data)
        server.process.send_signal(number)
        if number == signal.SIGINT:  # in the middle of the stop
            wait_until(lambda: not (data / "server.json").exists(), MOMENT_SECONDS)
        assert end(server, number) in {0, 128 + number, -number}
    assert is_stopped(data)
    with ServerProcess(data, "--no-demo-workflows") as again:  # nothing is left that would prevent the next start
        assert again.stop() == 0


def test_a_server_that_waits_for_a_migration_ends_at_once(migrated_postgres: Cluster, tmp_path: Path) -> None:
    url = migrated_postgres.create_database()
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(url) as other, start_server("serve", tmp_path / "data", "--database", url) as server:
        other.execute(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        wait_until(lambda: other.execute(waiting).fetchall(), MOMENT_SECONDS)
        assert end(server, signal.SIGINT) == 0
    assert is_stopped(tmp_path / "data")
    migrated_postgres.drop(url)


# -- workers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data", command="serve") as started:
        yield started


WORKER = "from callsheet.worker import Worker\nworker = Worker()\nworker.task('draw')(lambda ctx: None)\n"
SLOW_IMPORT = "import threading, pathlib\npathlib.Path('importing').touch()\nthreading.Event().wait()\n"
WORKER_MOMENTS: dict[str, Moment] = {
    "the process was created": lambda *_: None,
    "its module is imported": exists("importing"),
    "its name is reserved": exists("cache/names/*"),
    "the first line was printed": lambda process, _: process.line(),
}


@pytest.mark.parametrize("moment", WORKER_MOMENTS)
@pytest.mark.parametrize("number", BOTH)
def test_a_signal_during_the_start_of_a_worker_ends_it_in_order(
    number: signal.Signals, moment: str, server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "handlers.py").write_text(SLOW_IMPORT if "imported" in moment else WORKER)
    options = ("--url", server.url, "--fleet-secret-file", server.data / "fleet.key", "--cache-dir", tmp_path / "cache")
    arguments = ("worker", "handlers:worker", *options, "--name", "w1", "--json")
    with CommandProcess(*arguments, log=tmp_path / "log", cwd=tmp_path) as worker:
        WORKER_MOMENTS[moment](worker, tmp_path)
        code = end(worker, number)
    if moment == "the process was created":
        assert code in {0, 128 + number, -number}
    else:
        assert code == 0, (tmp_path / "log").read_text()
    with hold_worker_name(tmp_path / "cache" / "names", "w1") as name:
        assert name == "w1"
