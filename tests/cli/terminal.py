"""Runs the command `callsheet` on a pseudo-terminal."""

import contextlib
import os
import pty
import re
import subprocess
from collections.abc import Iterator, Mapping

from tests.cli.conftest import connection_environment
from tests.support.processes.cli_process import CALLSHEET, clean_environment
from tests.support.processes.live_server import LiveServer


@contextlib.contextmanager
def start_on_terminal(
    live_server: LiveServer, *words: str, columns: int = 200
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a command on a terminal of so many columns. Yield the process and a descriptor to read the terminal."""
    with start_with_environment(connection_environment(live_server), *words, columns=columns) as started:
        yield started


@contextlib.contextmanager
def start_with_environment(
    environment: Mapping[str, str], *words: str, columns: int = 200
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a command on a terminal, with environment variables that name its server."""
    ours, theirs = pty.openpty()
    env = clean_environment(dict(environment) | {"TERM": "xterm", "COLUMNS": str(columns)})
    with subprocess.Popen([CALLSHEET, *words], stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        yield process, ours


def run_on_terminal(live_server: LiveServer, *words: str, columns: int = 200) -> str:
    """Run a command that exits with 0, and return what it printed."""
    with start_on_terminal(live_server, *words, columns=columns) as (process, terminal):
        printed = read_terminal(terminal)
    assert process.returncode == 0, printed
    return printed


def read_terminal(terminal: int) -> str:
    """Read a terminal until the command that writes to it has exited."""
    printed = b""
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 65_536):
            printed += chunk
    os.close(terminal)
    return printed.decode()


def strip_styles(text: str) -> str:
    """Remove the escape sequences of colours and styles."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
