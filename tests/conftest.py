"""What the whole suite shares: the order of its layers, and a real PostgreSQL."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Cluster

HERE = Path(__file__).parent
FAST_FIRST = ("core", "store", "engine", "sim")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the layers from the fastest up; within a layer, pytest's own order stays."""
    items.sort(key=_layer)


def _layer(item: pytest.Item) -> int:
    layer = item.path.relative_to(HERE).parts[0]
    return FAST_FIRST.index(layer) if layer in FAST_FIRST else len(FAST_FIRST)


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The suite's PostgreSQL, started by the first test that needs a database."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stdout.write(f"\n{line}\n")

    with Cluster.from_environment(say) as cluster:
        yield cluster
