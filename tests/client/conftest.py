"""Clients of both kinds, and servers for them: a live one on each database, and one with scripted responses."""

from collections.abc import Iterator
from typing import Any

import pytest

from callsheet.client import RetryPolicy
from tests.client.both_clients import CLIENT_KINDS, FAST_RETRIES, ClientFactory, create_client
from tests.client.stub_server import StubServer
from tests.http.conftest import live_server
from tests.support.processes.live_server import LiveServer

__all__ = ["live_server"]


@pytest.fixture(params=CLIENT_KINDS)
def client_of(request: pytest.FixtureRequest) -> Iterator[ClientFactory]:
    """Creates clients: the blocking one, then the asyncio one. All are closed after the test."""
    created: list[Any] = []

    def one(url: str, key: str | None = None, retry_policy: RetryPolicy = FAST_RETRIES) -> Any:
        created.append(create_client(request.param, url, key, retry_policy))
        return created[-1]

    yield one
    for client in created:
        client.close()


@pytest.fixture
def client(live_server: LiveServer, client_of: ClientFactory) -> Any:
    """A client with an API key of the role `client`."""
    return client_of(live_server.url, live_server.keys["client"])


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server
