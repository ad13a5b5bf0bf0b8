"""The commands and examples of the README and of the first worker guide work as printed."""

import re
from pathlib import Path

from tests.e2e.doc_examples import VENV, blocks, run_in_shell
from tests.support.processes.cli_process import CommandProcess, ServerProcess
from tests.support.tidiness.tidy import ROOT

README, WORKER = ROOT / "README.md", ROOT / "docs" / "guides" / "first-worker.md"
DEFAULT_URL = "http://127.0.0.1:8787"


def test_the_commands_of_the_readme_work(tmp_path: Path) -> None:
    (shell, *_), (example, *_) = blocks(README, "sh"), blocks(README, "python")
    (tmp_path / ".venv").symlink_to(VENV)
    (tmp_path / "first.py").write_text(example)
    with ServerProcess(tmp_path / "callsheet-data") as server:
        assert DEFAULT_URL in shell
        lines = run_in_shell(tmp_path, f"{shell.replace(DEFAULT_URL, server.url)}\npython first.py").splitlines()
    assert (lines[0], lines[-2:]) == ("job.created", ["sketch.png image/png", "completed 17"])
    assert (tmp_path / "sketch.png").is_file()


def test_the_commands_of_the_first_worker_guide_work(tmp_path: Path) -> None:
    (module, *_), (workflow, *_) = blocks(WORKER, "python"), blocks(WORKER, "toml")
    setup, submit, *_ = blocks(WORKER, "sh")
    for text in (module, workflow):
        (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    assert {"studio.py", "shout.toml"} == {file.name for file in tmp_path.iterdir()}
    *before, work = setup.strip().splitlines()
    with ServerProcess(tmp_path / "callsheet-data"):
        run_in_shell(tmp_path, "\n".join(before))
        cache = ("--cache-dir", tmp_path / "cache")  # do not use the cache of the user who runs the tests
        with CommandProcess(*work.split()[1:], *cache, log=tmp_path / "worker.log", cwd=tmp_path):
            printed = run_in_shell(tmp_path, submit)
    assert re.search(r"shout +ann +completed", printed), printed


def test_the_worker_in_the_readme_is_that_of_the_guide() -> None:
    (page, *_), (_, in_readme, *_) = blocks(WORKER, "python"), blocks(README, "python")
    assert [line for line in in_readme.splitlines() if line not in page.splitlines()] == []
