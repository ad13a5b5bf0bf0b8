"""A floor on each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.worker import Worker
from tests.worker.floor import Floor


@pytest.fixture
def floor(place: str, tmp_path: Path) -> Iterator[Floor]:
    """An engine, a folder for files, ada with 100 credits; every invariant holds afterwards."""
    with Floor(place, tmp_path / "files") as made:
        yield made


@pytest.fixture
def worker() -> Worker:
    return Worker("studio")
