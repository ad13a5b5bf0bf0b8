"""The command `callsheet` in child processes: servers on a free port, and commands that run to their end."""

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
    """Return the environment without the variables that would change a `callsheet` or `make` command."""
    removed = ("CALLSHEET_", "MAKE")
    return {name: value for name, value in os.environ.items() if not name.startswith(removed)} | dict(extra or {})


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
    """A command that runs until it is stopped; its standard error goes to a log file."""

    def __init__(
        self, *arguments: object, log: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None,
        ulimit_options: str = "", command: Sequence[object] = (CALLSHEET,), read_output: bool = True,
    ) -> None:  # fmt: skip
        """`ulimit_options` are passed to the shell's `ulimit` before the command starts.

        Without `read_output`, the standard output goes to the log too. Otherwise the caller must read it.
        """
        self._log = log.open("ab")
        shell_prefix = ["sh", "-c", f'ulimit {ulimit_options} && exec "$0" "$@"'] if ulimit_options else []
        self.process = subprocess.Popen(
            [*shell_prefix, *map(str, (*command, *arguments))],
            stdout=subprocess.PIPE if read_output else self._log,
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
        with suppress(ProcessLookupError):  # child processes that it left running
            os.killpg(self.process.pid, signal.SIGKILL)

    def line(self) -> str:
        """Read the next line of standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, SIGTERM by default, and return the exit code."""
        return self._end(number)

    def interrupt(self) -> None:
        """Send SIGINT to the command and its child processes, as Ctrl-C does."""
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
    """A server in a child process: `callsheet up`, or another command, with `--json` on a free port."""

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
        first_line = self.line()
        assert first_line, log.read_text()
        self.banner: dict[str, Any] = json.loads(first_line)
        self.url: str = self.banner["url"]

    @property
    def key(self) -> str:
        return (self.data / "admin.key").read_text().strip()

    def client(self) -> Client:
        return Client(self.url, self.key)
