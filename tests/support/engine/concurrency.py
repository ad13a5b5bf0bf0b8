"""Helpers for races: several servers on one database, and calls that start at the same moment."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Barrier
from typing import Any

from callsheet.core.model.errors import Refusal
from callsheet.settings import Settings
from callsheet.store import verify
from tests.support.doubles.virtual_clock import VirtualClock
from tests.support.engine.engine_harness import EngineHarness

ANSWER_SECONDS = 120.0
"""A bound for tests that would otherwise hang; no test is expected to reach it."""


@contextmanager
def servers(
    database_url: str, count: int, settings: Settings | None = None, clock: VirtualClock | None = None
) -> Iterator[list[EngineHarness]]:
    """Open several servers on one database with one clock; afterwards every invariant must hold."""
    clock = clock or VirtualClock()
    with ExitStack() as opened:
        harnesses = [opened.enter_context(EngineHarness(database_url, settings, clock=clock)) for _ in range(count)]
        yield harnesses
        if violations := harnesses[0].find_violations():
            raise AssertionError(verify.report(violations))


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """Start all calls at the same moment; return their answers or refusals."""
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
    """Return the codes of the refusals."""
    return [answer.code for answer in answers if isinstance(answer, Refusal)]


def accepted(answers: Sequence[Any]) -> list[Any]:
    """Return the answers that are not refusals."""
    return [answer for answer in answers if not isinstance(answer, Refusal)]
