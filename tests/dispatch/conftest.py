"""The server of the HTTP tests and a sandbox of workers, for tests of the dispatch layer."""

import pytest

from tests.http.conftest import live_server
from tests.http.worker_sandbox import WorkerSandbox
from tests.support.processes.live_server import LiveServer

__all__ = ["live_server"]


@pytest.fixture
def sandbox(live_server: LiveServer) -> WorkerSandbox:
    return WorkerSandbox(live_server)
