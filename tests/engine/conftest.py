"""The world of the scenarios: a studio in virtual time, with a tenant, a workflow and somebody who can pay."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.engine_harness import EngineHarness

OpenHarness = Callable[..., EngineHarness]


@pytest.fixture
def open_harness(database_url: str) -> Iterator[OpenHarness]:
    """Open studios on one place: with other settings, with gates, or a second server beside the first.

    However a scenario ended, every invariant holds after it.
    """
    harnesses: list[EngineHarness] = []

    def open_one(*args: Any, **kwargs: Any) -> EngineHarness:
        harnesses.append(EngineHarness(database_url, *args, **kwargs))
        return set_up(harnesses[-1])

    yield open_one
    try:
        for harness in harnesses[:1]:
            assert harness.broken() == []
    finally:
        for harness in harnesses:
            harness.close()


@pytest.fixture
def harness(open_harness: OpenHarness) -> EngineHarness:
    """One server; acme is a tenant, ada has 100 credits, and a sketch costs 5."""
    return open_harness()


def set_up(harness: EngineHarness) -> EngineHarness:
    harness.tenant()
    harness.workflow()
    harness.top_up(100, key="welcome")
    return harness
