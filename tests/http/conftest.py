"""A served Callsheet on each database, shared by a module: tests use users and keys of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from callsheet.config import HttpSettings
from tests.support.databases.database_pool import DatabasePool
from tests.support.processes.live_server import LiveServer

FAST_HEARTBEAT = HttpSettings(heartbeat_seconds=0.05, stream_buffer_events_max=4, streams_per_key_max=500)
DATABASES = ["sqlite", "postgresql"]


@contextmanager
def _start_server(request: pytest.FixtureRequest, data: Path, http: HttpSettings | None = None) -> Iterator[LiveServer]:
    if request.param == "sqlite":
        with LiveServer(data / "callsheet.db", data, http) as server:
            yield server
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with LiveServer(url, data, http) as server:
        yield server
    database_pool.release(url)


@pytest.fixture(scope="module", params=DATABASES)
def live_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with tenants `default` and `other`, keys for every role, a priced sketch, and ann with credits."""
    with _start_server(request, tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture(scope="module", params=DATABASES)
def fast_stream_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server whose streams beat fast and keep next to nothing for a slow reader."""
    with _start_server(request, tmp_path_factory.mktemp("fast_stream_server"), FAST_HEARTBEAT) as server:
        yield server
