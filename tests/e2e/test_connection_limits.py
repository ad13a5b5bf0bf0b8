"""More connections than a process may begin with, and more than it may ever have: all are served, or told."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.http.raw_http import RawConnection
from tests.support.processes.cli_process import ServerProcess

STREAM = "text/event-stream"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def opened(up: ServerProcess, stack: ExitStack) -> int | None:
    """Open a stream and leave it open; return the status, or None if nobody answers."""
    try:
        reader = stack.enter_context(RawConnection(up.url))
        reader.send_request("GET", "/v1/events?cursor=now", up.key, accept=STREAM)
        return int(reader.read_until(b"\r\n").split()[1])
    except (OSError, EOFError):
        return None


def test_a_shell_s_usual_limit_is_no_limit_of_streams(tmp_path: Path, stack: ExitStack) -> None:
    """The soft limit of open files, 1,024 in most shells, is raised to what the system allows."""
    with ServerProcess(tmp_path / "data", "--no-demo-workflows", ulimit_options="-Sn 160") as up:
        assert Counter(opened(up, stack) for _ in range(200)) == {200: 200}


def test_whoever_is_too_many_is_told_and_those_who_are_here_are_served(tmp_path: Path, stack: ExitStack) -> None:
    with ServerProcess(tmp_path / "data", "--no-demo-workflows", ulimit_options="-n 256") as up:
        first = stack.enter_context(RawConnection(up.url))
        first.send_request("GET", "/healthz")
        assert first.read_response().status == 200
        with ExitStack() as crowd:
            seen = Counter(opened(up, crowd) for _ in range(230))
            assert seen[200] == 127
            assert seen[503] >= 60
            first.send_request("GET", "/readyz")
            assert first.read_response().status == 200
        with up.client() as client:
            assert client.identity.get().role == "operator"
