"""A client with an operator key."""

from typing import Any

import pytest

from tests.client.both_clients import ClientFactory
from tests.support.processes.live_server import LiveServer


@pytest.fixture
def operator(live_server: LiveServer, client_of: ClientFactory) -> Any:
    return client_of(live_server.url, live_server.keys["operator"])
