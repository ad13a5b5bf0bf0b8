"""The command `callsheet` in processes of its own: servers that tell where they are, and commands that end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from callsheet.client import Client

CALLSHEET = Path(sys.executable).with_name("callsheet")
END_SECONDS = 120.0


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what would lead a command to another server, or make to another make."""
    left_out = ("CALLSHEET_", "MAKE")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | dict(extra or {})


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [str(CALLSHEET), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=clean_environment(),
        timeout=END_SECONDS,
    )


class CommandProcess:
    """A command that goes on until it is told to end; what it logs goes to a file."""

    def __init__(
        self, *arguments: object, log: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None,
        ulimit_options: str = "", command: Sequence[object] = (CALLSHEET,),
    ) -> None:  # fmt: skip
        """`files` is what a shell's `ulimit` is told of open files before."""
        self._log = log.open("ab")
        shell_prefix = ["sh", "-c", f'ulimit {ulimit_options} && exec "$0" "$@"'] if ulimit_options else []
        self.process = subprocess.Popen(
            [*shell_prefix, *map(str, (*command, *arguments))],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=cwd,
            env=clean_environment(env),
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        with suppress(ProcessLookupError):  # what it started and left behind
            os.killpg(self.process.pid, signal.SIGKILL)

    def line(self) -> str:
        """Read the next line of standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill(self) -> None:
        """End it without a word of warning."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and return its exit code."""
        return self._end(number)

    def interrupt(self) -> None:
        """Press Ctrl-C: everything that it started hears it too."""
        os.killpg(self.process.pid, signal.SIGINT)

    def _end(self, number: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(END_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()
        return code


class ServerProcess(CommandProcess):
    """A server in a process of its own: `callsheet up`, or another command, with --json on a free port."""

    def __init__(
        self,
        data: Path,
        *arguments: object,
        command: str = "up",
        env: Mapping[str, str] | None = None,
        ulimit_options: str = "",
    ) -> None:
        data.parent.mkdir(parents=True, exist_ok=True)
        self.data = data
        log = data.with_name(f"{data.name}.log")
        super().__init__(
            command,
            "--data-dir",
            data,
            "--port",
            0,
            "--json",
            *arguments,
            log=log,
            env=env,
            ulimit_options=ulimit_options,
        )
        first = self.line()
        assert first, log.read_text()
        self.banner: dict[str, Any] = json.loads(first)
        self.url: str = self.banner["url"]

    @property
    def key(self) -> str:
        return (self.data / "admin.key").read_text().strip()

    def client(self) -> Client:
        return Client(self.url, self.key)
