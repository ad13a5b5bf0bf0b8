"""Fixtures of the whole suite: the order of the layers, a PostgreSQL server, and an empty database of each kind."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from callsheet.engine import Engine
from tests.support.databases.database_pool import DatabasePool
from tests.support.databases.postgres import Cluster
from tests.support.engine.engine_harness import EngineHarness, OpenHarness, set_up

HERE = Path(__file__).parent
FAST_FIRST = ("core", "store", "engine", "sim")


def pytest_configure() -> None:
    """Restore SIGINT, which some tests send: a shell that starts the suite in the background makes it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Hypothesis draws constants of the imported modules, so its examples would depend on which tests are collected.
    providers._get_local_constants = Constants  # noqa: SLF001


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the fastest layers first; within a layer, the order of pytest stays."""
    items.sort(key=_layer)


def _layer(item: pytest.Item) -> int:
    layer = item.path.relative_to(HERE).parts[0]
    return FAST_FIRST.index(layer) if layer in FAST_FIRST else len(FAST_FIRST)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Return a function that prints a line although output is captured."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def write_line(line: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stdout.write(f"\n{line}\n")
            sys.stdout.flush()

    return write_line


@pytest.fixture(scope="session")
def postgres(report: Callable[[str], None]) -> Iterator[Cluster]:
    """The suite's PostgreSQL, started by the first test that needs a database."""
    with Cluster.from_environment(report) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Cluster) -> Cluster:
    """The same server; every database created from now on has the newest schema."""
    postgres.template(lambda url: Engine.open(url).close())
    return postgres


@pytest.fixture(scope="session")
def database_pool(migrated_postgres: Cluster) -> DatabasePool:
    """A pool of databases on that server."""
    return DatabasePool(migrated_postgres)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database: a SQLite file, then a PostgreSQL database."""
    if request.param == "sqlite":
        yield str(tmp_path / "callsheet.db")
        return
    database_pool: DatabasePool = request.getfixturevalue("database_pool")
    url = database_pool.acquire()
    yield url
    database_pool.release(url)


@pytest.fixture
def open_harness(database_url: str) -> Iterator[OpenHarness]:
    """Return a function that opens engines on one database: with other settings, with gates, or as a second server.

    After the test, every invariant of the database is checked.
    """
    harnesses: list[EngineHarness] = []

    def open_one(*args: Any, **kwargs: Any) -> EngineHarness:
        harnesses.append(EngineHarness(database_url, *args, **kwargs))
        return set_up(harnesses[-1])

    yield open_one
    try:
        for harness in harnesses[:1]:
            assert harness.find_violations() == []
    finally:
        for harness in harnesses:
            harness.close()


@pytest.fixture
def harness(open_harness: OpenHarness) -> EngineHarness:
    """One server with tenant acme; ada has 100 credits, and a sketch costs 5."""
    return open_harness()
