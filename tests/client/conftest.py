"""A client of each kind, and servers to speak to: a real one on each database, and one that answers by a script."""

from collections.abc import Iterator
from typing import Any

import pytest

from callsheet.client import Patience
from tests.client.either import KINDS, QUICK, Make, make
from tests.client.stub import Stub
from tests.http.conftest import served

__all__ = ["served"]


@pytest.fixture(params=KINDS)
def client_of(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes clients: the blocking one, then the one of asyncio."""
    made: list[Any] = []

    def one(url: str, key: str | None = None, patience: Patience = QUICK) -> Any:
        made.append(make(request.param, url, key, patience))
        return made[-1]

    yield one
    for client in made:
        client.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        yield server
