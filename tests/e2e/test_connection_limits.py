"""More connections than the soft limit of open files, and more than the hard limit."""

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
    with ExitStack() as stack:
        yield stack


def open_stream(up: ServerProcess, stack: ExitStack) -> int | None:
    """Open a stream and leave it open. Return the status, or None without a response."""
    try:
        reader = stack.enter_context(RawConnection(up.url))
        reader.send_request("GET", "/v1/events?cursor=now", up.key, accept=STREAM)
        return int(reader.read_until(b"\r\n").split()[1])
    except (OSError, EOFError):
        return None


def test_the_soft_limit_of_open_files_does_not_limit_streams(tmp_path: Path, stack: ExitStack) -> None:
    """The server raises the soft limit, 1,024 in most shells, to the hard limit."""
    with ServerProcess(tmp_path / "data", "--no-demo-workflows", ulimit_options="-Sn 160") as up:
        assert Counter(open_stream(up, stack) for _ in range(200)) == {200: 200}


def test_connections_over_the_hard_limit_get_503_and_open_ones_are_still_served(
    tmp_path: Path, stack: ExitStack
) -> None:
    with ServerProcess(tmp_path / "data", "--no-demo-workflows", ulimit_options="-n 256") as up:
        first = stack.enter_context(RawConnection(up.url))
        first.send_request("GET", "/healthz")
        assert first.read_response().status == 200
        with ExitStack() as many:
            seen = Counter(open_stream(up, many) for _ in range(230))
            assert seen[200] == 127
            assert seen[503] >= 60
            first.send_request("GET", "/readyz")
            assert first.read_response().status == 200
        with up.client() as client:
            assert client.identity.get().role == "operator"
