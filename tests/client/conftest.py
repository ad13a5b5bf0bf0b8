"""A client of each kind, and servers to speak to: a real one on each database, and one that answers by a script."""

from collections.abc import Iterator
from typing import Any

import pytest

from callsheet.client import RetryPolicy
from tests.client.both_clients import CLIENT_KINDS, FAST_RETRIES, ClientFactory, create_client
from tests.client.stub_server import StubServer
from tests.http.conftest import live_server

__all__ = ["live_server"]


@pytest.fixture(params=CLIENT_KINDS)
def client_of(request: pytest.FixtureRequest) -> Iterator[ClientFactory]:
    """Makes clients: the blocking one, then the one of asyncio."""
    made: list[Any] = []

    def one(url: str, key: str | None = None, retry_policy: RetryPolicy = FAST_RETRIES) -> Any:
        made.append(create_client(request.param, url, key, retry_policy))
        return made[-1]

    yield one
    for client in made:
        client.close()


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server
