"""What the whole suite shares: the order of its layers, a real PostgreSQL, and a place for a database on each kind."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callsheet.engine import Engine
from tests.support.places import Places
from tests.support.postgres import Cluster

HERE = Path(__file__).parent
FAST_FIRST = ("core", "store", "engine", "sim")


def pytest_configure() -> None:
    """Hear Ctrl-C, which some tests press: a shell that starts us in the background has it ignored, here and below."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the layers from the fastest up; within a layer, pytest's own order stays."""
    items.sort(key=_layer)


def _layer(item: pytest.Item) -> int:
    layer = item.path.relative_to(HERE).parts[0]
    return FAST_FIRST.index(layer) if layer in FAST_FIRST else len(FAST_FIRST)


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Tell whoever watches, however much is captured."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def told(line: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stdout.write(f"\n{line}\n")
            sys.stdout.flush()

    return told


@pytest.fixture(scope="session")
def postgres(say: Callable[[str], None]) -> Iterator[Cluster]:
    """The suite's PostgreSQL, started by the first test that needs a database."""
    with Cluster.from_environment(say) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Cluster) -> Cluster:
    """The same server; every database made from now on has the newest schema."""
    postgres.template(lambda url: Engine.open(url).close())
    return postgres


@pytest.fixture(scope="session")
def places(migrated_postgres: Cluster) -> Places:
    """Databases on that server, lent and given back."""
    return Places(migrated_postgres)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an engine can open a fresh database: a file, then a PostgreSQL URL."""
    if request.param == "sqlite":
        yield str(tmp_path / "callsheet.db")
        return
    places: Places = request.getfixturevalue("places")
    url = places.lend()
    yield url
    places.give_back(url)
