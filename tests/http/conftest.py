"""A running server on each database, shared by a module; each test uses its own users and keys."""

from collections.abc import Iterator

import pytest

from callsheet.settings import HttpSettings
from tests.http.server_on_each_database import DATABASES, start_server
from tests.http.worker_sandbox import WorkerSandbox
from tests.support.processes.live_server import LiveServer

FAST_HEARTBEAT = HttpSettings(
    heartbeat_seconds=0.05, stream_buffer_events_max=4, streams_per_key_max=500, wait_seconds_max=3_600
)


@pytest.fixture(scope="module", params=DATABASES)
def live_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with tenants `default` and `other`, keys for every role, a priced sketch, and ann with credits."""
    with start_server(request, tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture(scope="module", params=DATABASES)
def fast_stream_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server with fast stream heartbeats and a small buffer for slow readers."""
    with start_server(request, tmp_path_factory.mktemp("fast_stream_server"), FAST_HEARTBEAT) as server:
        yield server


@pytest.fixture
def sandbox(live_server: LiveServer) -> WorkerSandbox:
    """A worker sandbox on the shared server."""
    return WorkerSandbox(live_server)
