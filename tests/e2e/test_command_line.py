"""The command line in processes of its own: the demonstration, the proof, the schema, and the engine's example."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from callsheet.engine import Engine
from tests.support.databases.postgres import Cluster
from tests.support.processes.cli_process import run

ENGINE_PAGE = Path(__file__).parents[2] / "docs" / "guides" / "embed.md"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demonstration, run once: its folder and what it printed."""
    data = tmp_path_factory.mktemp("demo")
    done = run("demo", "--once", "--data-dir", data)
    assert done.returncode == 0, done.stdout + done.stderr
    return data, done.stdout


def test_the_demonstration_brings_its_own_server_where_there_is_none(shown: tuple[Path, str]) -> None:
    data, said = shown
    assert len(list((data / "demo").iterdir())) == 4
    assert "The wallet has 67 credits left.\n" in said
    assert not (data / "server.json").exists()


def test_verify_finds_nothing_on_a_sound_database(shown: tuple[Path, str]) -> None:
    done = run("verify", "--data-dir", shown[0], "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"sound": True, "violations": []})
    said = run("verify", "--data-dir", shown[0]).stdout
    assert re.fullmatch(rf"Every rule holds\.\n{shown[0]}/callsheet\.db: 4 jobs, [1-9]\d rules\.\n", said)


def test_verify_and_migrate_look_where_the_others_look(shown: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "callsheet-data").symlink_to(shown[0])
    assert "up to date" in run("migrate", cwd=tmp_path).stdout
    assert run("verify", cwd=tmp_path).returncode == 0


def test_verify_names_a_broken_rule_and_exits_with_1(shown: tuple[Path, str], tmp_path: Path) -> None:
    source = apsw.Connection(str(shown[0] / "callsheet.db"))
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
    ("words", "said"),
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
def test_a_wrong_call_exits_with_2_and_says_what_to_do(words: list[str], said: str, tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in re.sub(r"[\s│]+", " ", done.stderr)


def test_a_folder_that_cannot_be_made_a_port_that_is_taken_and_a_foreign_database_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("demo", "--data-dir", tmp_path / "file" / "below")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Cannot create the folder" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("up", "--data-dir", tmp_path / "new", "--port", port)
    assert (done.returncode, done.stderr.count("\n"), f"Port {port}" in done.stderr) == (1, 1, True)
    assert "--port" in done.stderr
    assert not (tmp_path / "new").exists()
    (tmp_path / "callsheet.db").touch()
    done = run("verify", "--data-dir", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "not a Callsheet database" in done.stderr


def test_a_database_that_is_not_there_is_said_in_one_line() -> None:
    done = run("verify", "--database", "postgresql://nobody@127.0.0.1:1/none")
    assert done.returncode == 1
    assert done.stderr.startswith("callsheet: ")
    assert done.stderr.count("\n") == 1


def test_the_example_of_the_engine_runs(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.+?)```", ENGINE_PAGE.read_text(), re.DOTALL)
    assert example is not None
    done = subprocess.run([sys.executable, "-c", example[1]], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("completed 15\n", "")
