"""Fixtures: a server with a worker harness, on each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.worker import Worker
from tests.support.databases.database_pool import DatabasePool
from tests.worker.worker_harness import WorkerHarness


@pytest.fixture(params=["embedded", "sqlite", "postgresql"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerHarness]:
    """A server with a user `ada` who has 100 credits: embedded, and over HTTP on each database.

    Every invariant holds afterwards.
    """
    if request.param != "postgresql":
        with WorkerHarness(str(tmp_path / "callsheet.db"), tmp_path, embedded=request.param == "embedded") as made:
            yield made
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    with WorkerHarness(url, tmp_path) as made:
        yield made
    database_pool.release(url)


@pytest.fixture
def http_harness(database_url: str, tmp_path: Path) -> Iterator[WorkerHarness]:
    """The same, over HTTP only."""
    with WorkerHarness(database_url, tmp_path) as made:
        yield made


@pytest.fixture
def worker() -> Worker:
    return Worker("studio")
