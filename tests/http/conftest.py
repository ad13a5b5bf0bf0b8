"""A served Callsheet on each database, shared by a module: tests use users and keys of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from callsheet.config import HttpSettings
from tests.support.places import Places
from tests.support.served import Served

LIVELY = HttpSettings(beat_seconds=0.05, stream_buffer_max=4, streams_per_key_max=500)
BOTH = ["sqlite", "postgresql"]


@contextmanager
def _served(request: pytest.FixtureRequest, data: Path, http: HttpSettings | None = None) -> Iterator[Served]:
    if request.param == "sqlite":
        with Served(data / "callsheet.db", data, http) as made:
            yield made
        return
    places: Places = request.getfixturevalue("places")
    url = places.lend()
    with Served(url, data, http) as made:
        yield made
    places.give_back(url)


@pytest.fixture(scope="module", params=BOTH)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with tenants `default` and `other`, keys for every role, a priced sketch, and ann with credits."""
    with _served(request, tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture(scope="module", params=BOTH)
def lively(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose streams beat fast and keep next to nothing for a slow reader."""
    with _served(request, tmp_path_factory.mktemp("lively"), LIVELY) as made:
        yield made
