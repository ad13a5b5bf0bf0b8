"""`callsheet demo`, `verify` and `migrate` as processes, without a running server."""

import json
import re
import socket
from pathlib import Path

import apsw
import pytest

from callsheet.engine import Engine
from tests.support.databases.postgres import Cluster
from tests.support.processes.cli_process import run


@pytest.fixture(scope="module")
def finished_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A demo that has run once: its data folder, and what it printed."""
    data = tmp_path_factory.mktemp("demo")
    done = run("demo", "--once", "--data-dir", data)
    assert done.returncode == 0, done.stdout + done.stderr
    return data, done.stdout


def test_the_demo_starts_its_own_server_if_none_is_running(finished_demo: tuple[Path, str]) -> None:
    data, printed = finished_demo
    assert len(list((data / "demo").iterdir())) == 4
    assert "The wallet has 67 credits left.\n" in printed
    assert not (data / "server.json").exists()


def test_verify_reports_no_violations_on_a_valid_database(finished_demo: tuple[Path, str]) -> None:
    done = run("verify", "--data-dir", finished_demo[0], "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["sound"], found["violations"]) == (0, True, [])
    printed = run("verify", "--data-dir", finished_demo[0]).stdout
    assert re.fullmatch(rf"Every rule holds\.\n{finished_demo[0]}/callsheet\.db: 4 jobs, [1-9]\d rules\.\n", printed)


def test_verify_and_migrate_use_the_default_data_folder(finished_demo: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "callsheet-data").symlink_to(finished_demo[0])
    assert "up to date" in run("migrate", cwd=tmp_path).stdout
    assert run("verify", cwd=tmp_path).returncode == 0


def test_verify_names_a_broken_rule_and_exits_with_1(finished_demo: tuple[Path, str], tmp_path: Path) -> None:
    source = apsw.Connection(str(finished_demo[0] / "callsheet.db"))
    copy = apsw.Connection(str(tmp_path / "callsheet.db"))
    with copy.backup("main", source, "main") as backup:
        backup.step()
    copy.execute("UPDATE wallet SET balance = balance + 1")
    copy.close()
    done = run("verify", "--data-dir", tmp_path)
    assert done.returncode == 1
    assert "M1" in done.stdout
    names = [
        broken["name"] for broken in json.loads(run("verify", "--data-dir", tmp_path, "--json").stdout)["violations"]
    ]
    assert "M1" in names


def test_verify_and_migrate_work_on_postgresql(postgres: Cluster) -> None:
    url = postgres.create_database()
    assert "up to date" in run("migrate", "--database", url).stdout
    Engine.open(url).close()
    done = run("verify", "--database", url)
    assert (done.returncode, "0 jobs" in done.stdout, "@" in done.stdout) == (0, True, False)
    postgres.drop(url)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify"], "There is no folder callsheet-data. Pass --data-dir FOLDER or --database URL"),
        (
            ["verify", "--data-dir", ".", "--database", "postgresql://x/y"],
            "Pass only one of --data-dir",
        ),
        (["verify", "--data-dir", "nowhere"], "no folder nowhere"),
        (["verify", "--data-dir", "."], "no callsheet.db"),
        (["verify", "--newest", "3"], "--newest needs --files."),
        (["verify", "--database", "studio.db"], "For SQLite, pass --data-dir"),
        (["migrate", "--database", "studio.db"], "For SQLite, pass --data-dir"),
    ],
)
def test_a_usage_error_exits_with_2_and_a_remedy(words: list[str], message: str, tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in re.sub(r"[\s│]+", " ", done.stderr)


def test_a_failure_names_the_folder_the_port_or_the_database(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("demo", "--data-dir", tmp_path / "file" / "below")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Cannot create the folder" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = run("up", "--data-dir", tmp_path / "new", "--port", port)
    assert (done.returncode, done.stderr.count("\n"), f"Port {port}" in done.stderr) == (1, 1, True)
    assert "--port" in done.stderr
    assert not (tmp_path / "new").exists()
    (tmp_path / "callsheet.db").touch()
    done = run("verify", "--data-dir", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "not a Callsheet database" in done.stderr


def test_an_unreachable_database_is_reported_in_one_line() -> None:
    done = run("verify", "--database", "postgresql://user@127.0.0.1:1/none")
    assert done.returncode == 3
    assert done.stderr.startswith("callsheet: ")
    assert done.stderr.count("\n") == 1
