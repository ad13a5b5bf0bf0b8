"""Races: several servers on one database, and callers that start at the same moment."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Barrier
from typing import Any

from callsheet.config import Settings
from callsheet.core.model.errors import Refusal
from callsheet.store import verify
from tests.support.doubles.virtual_clock import VirtualClock
from tests.support.engine.engine_harness import EngineHarness

ANSWER_SECONDS = 120.0
"""A bound for tests that would otherwise hang; nothing is expected to come near it."""


@contextmanager
def servers(
    database_url: str, count: int, settings: Settings | None = None, clock: VirtualClock | None = None
) -> Iterator[list[EngineHarness]]:
    """Open several servers on one database, under one clock; when they are done, nothing may be amiss in it."""
    clock = clock or VirtualClock()
    with ExitStack() as opened:
        harnesses = [opened.enter_context(EngineHarness(database_url, settings, clock=clock)) for _ in range(count)]
        yield harnesses
        if violations := find_violations(harnesses[0]):
            raise AssertionError(verify.report(violations))


def find_violations(harness: EngineHarness) -> list[verify.Violation]:
    """Return what `verify` finds wrong."""
    connection = harness.database.connect()
    try:
        return verify.check(connection, harness.clock.now())
    finally:
        connection.close()


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """Start every call at the same moment; return their answers, and refusals as they are."""
    start = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait(ANSWER_SECONDS)
        try:
            return call()
        except Refusal as refusal:
            return refusal

    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(ANSWER_SECONDS) for future in [threads.submit(run, call) for call in calls]]


def refusals(answers: Sequence[Any]) -> list[str]:
    """Return the codes of those that were refused."""
    return [answer.code for answer in answers if isinstance(answer, Refusal)]


def accepted(answers: Sequence[Any]) -> list[Any]:
    """Return the answers of those that were not."""
    return [answer for answer in answers if not isinstance(answer, Refusal)]
