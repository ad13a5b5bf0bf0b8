"""A floor on each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.worker import Worker
from tests.support.places import Places
from tests.worker.floor import Floor


@pytest.fixture(params=["embedded", "sqlite", "postgresql"])
def floor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Floor]:
    """A house, and ada with 100 credits: worked for in its own process, and over HTTP on each database.

    Every invariant holds afterwards.
    """
    if request.param != "postgresql":
        with Floor(str(tmp_path / "callsheet.db"), tmp_path, embedded=request.param == "embedded") as made:
            yield made
        return
    places: Places = request.getfixturevalue("places")
    url = places.lend()
    with Floor(url, tmp_path) as made:
        yield made
    places.give_back(url)


@pytest.fixture
def remote(place: str, tmp_path: Path) -> Iterator[Floor]:
    """A house that is reached over HTTP only."""
    with Floor(place, tmp_path) as made:
        yield made


@pytest.fixture
def worker() -> Worker:
    return Worker("studio")
