"""Extracts the examples of documentation pages and runs their commands."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.processes.cli_process import END_SECONDS, clean_environment

VENV = Path(sys.prefix)


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.+?)```", page.read_text(), re.DOTALL)


def run_in_shell(folder: Path, text: str) -> str:
    """Run commands in a shell with the virtual environment on its path. All of them must succeed."""
    done = subprocess.run(
        ["/bin/sh", "-ec", f'PATH="{VENV}/bin:$PATH"\n{text}'],
        capture_output=True, text=True, check=False, cwd=folder, env=clean_environment(), timeout=END_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
