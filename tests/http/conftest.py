"""A served Callsheet on each database, shared by a module: tests use users and keys of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import Places
from tests.support.served import Served


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with tenants `default` and `other`, keys for every role, a priced sketch, and ann with credits."""
    data: Path = tmp_path_factory.mktemp("served")
    if request.param == "sqlite":
        with Served(data / "callsheet.db", data) as made:
            yield made
        return
    places: Places = request.getfixturevalue("places")
    url = places.lend()
    with Served(url, data) as made:
        yield made
    places.give_back(url)
