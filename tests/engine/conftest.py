"""The world of the scenarios: a studio in virtual time, with a tenant, a workflow and somebody who can pay."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.studio import Studio

OpenStudio = Callable[..., Studio]


@pytest.fixture
def open_studio(place: str) -> Iterator[OpenStudio]:
    """Open studios on one place: with other settings, with gates, or a second server beside the first.

    However a scenario ended, every invariant holds after it.
    """
    studios: list[Studio] = []

    def opened(*given: Any, **named: Any) -> Studio:
        studios.append(Studio(place, *given, **named))
        return furnished(studios[-1])

    yield opened
    try:
        for studio in studios[:1]:
            assert studio.broken() == []
    finally:
        for studio in studios:
            studio.close()


@pytest.fixture
def studio(open_studio: OpenStudio) -> Studio:
    """One server; acme is a tenant, ada has 100 credits, and a sketch costs 5."""
    return open_studio()


def furnished(studio: Studio) -> Studio:
    studio.tenant()
    studio.workflow()
    studio.top_up(100, key="welcome")
    return studio
