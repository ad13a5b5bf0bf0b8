"""What the pages tell a newcomer to type works as it stands there, in that order."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.processes.cli_process import END_SECONDS, CommandProcess, ServerProcess, clean_environment
from tests.support.tidiness.tidy import ROOT

README, WORKER = ROOT / "README.md", ROOT / "docs" / "guides" / "first-worker.md"
ADDRESS = "http://127.0.0.1:8787"
VENV = Path(sys.prefix)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.+?)```", page.read_text(), re.DOTALL)


def typed(folder: Path, text: str) -> str:
    """Type lines into a shell in a folder that has the environment of `make setup`; each of them goes well."""
    done = subprocess.run(
        ["/bin/sh", "-ec", f'PATH="{VENV}/bin:$PATH"\n{text}'],
        capture_output=True, text=True, check=False, cwd=folder, env=clean_environment(), timeout=END_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readme_can_be_typed_in_a_second_terminal(tmp_path: Path) -> None:
    (shell, *_), (example, *_) = blocks(README, "sh"), blocks(README, "python")
    (tmp_path / ".venv").symlink_to(VENV)
    (tmp_path / "first.py").write_text(example)
    with ServerProcess(tmp_path / "callsheet-data") as server:
        assert ADDRESS in shell
        said = typed(tmp_path, f"{shell.replace(ADDRESS, server.url)}\npython first.py").splitlines()
    assert (said[0], said[-2:]) == ("job.created", ["sketch.png image/png", "completed 17"])
    assert (tmp_path / "sketch.png").is_file()


def test_the_first_worker_can_be_typed(tmp_path: Path) -> None:
    (module, *_), (workflow, *_) = blocks(WORKER, "python"), blocks(WORKER, "toml")
    setting_up, asking, *_ = blocks(WORKER, "sh")
    for text in (module, workflow):
        (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    assert {"studio.py", "shout.toml"} == {file.name for file in tmp_path.iterdir()}
    *before, work = setting_up.strip().splitlines()
    with ServerProcess(tmp_path / "callsheet-data"):
        typed(tmp_path, "\n".join(before))
        cache = ("--cache-dir", tmp_path / "cache")  # that of whoever runs this is theirs
        with CommandProcess(*work.split()[1:], *cache, log=tmp_path / "worker.log", cwd=tmp_path):
            said = typed(tmp_path, asking)
    assert re.search(r"shout +ann +completed", said), said


def test_the_readme_shows_the_worker_of_its_page() -> None:
    (page, *_), (_, shown, *_) = blocks(WORKER, "python"), blocks(README, "python")
    assert [line for line in shown.splitlines() if line not in page.splitlines()] == []
