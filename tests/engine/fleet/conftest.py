"""Fixtures of tests about providers."""

import pytest

from tests.support.doubles.fake_provider import clip_workflow
from tests.support.engine.engine_harness import EngineHarness


@pytest.fixture
def clips(harness: EngineHarness) -> EngineHarness:
    """A server with the workflow clip, whose tasks a provider runs."""
    clip_workflow(harness)
    return harness
