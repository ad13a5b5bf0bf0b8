"""Child processes that run a program of `child_programs` and report each answered command as one JSON line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[3]
END_SECONDS = 120.0


class Child:
    """A child process; each line that it writes is the answer to one of its commands."""

    def __init__(self, program: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.child_programs", program, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def lines(self) -> Iterator[Any]:
        """Yield the lines that the child writes, until it exits."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                yield json.loads(line)

    def start(self) -> None:
        """Start a child that waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL, so that no handler and no `finally` runs."""
        self._process.kill()
        self._process.wait(END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def kill_after(self, count: int) -> list[Any]:
        """Read so many lines, kill the child, and return all lines that it had written."""
        lines = self.lines()
        lines_read = [next(lines) for _ in range(count)]
        self._process.kill()
        lines_read.extend(lines)
        self.kill()
        return lines_read


def start_together(children: list[Child]) -> list[list[Any]]:
    """Start waiting children at the same moment, and return the lines that each wrote until it exited."""
    streams = [child.lines() for child in children]
    for stream in streams:
        assert next(stream) == "ready"
    for child in children:
        child.start()
    return [list(stream) for stream in streams]
