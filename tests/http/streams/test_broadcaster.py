"""The hub's one race, step by step: a place that was found for those who left is too late for whoever comes."""

import asyncio
from pathlib import Path

from callsheet.config import HttpSettings
from callsheet.engine import Engine
from callsheet.http.broadcaster import JOB, Broadcaster

KEY = (JOB, "a job")


async def _run_loop_briefly() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_place_that_was_found_for_those_who_left_lets_nobody_in(tmp_path: Path) -> None:
    with Engine.open(tmp_path / "callsheet.db") as engine:
        broadcaster = Broadcaster(engine, HttpSettings())  # its thread is not started: this test takes its steps

        async def scene() -> tuple[bool, bool]:
            first = asyncio.ensure_future(broadcaster.subscribe(KEY, "first"))
            await _run_loop_briefly()
            broadcaster._follow()  # noqa: SLF001 - finds the place; the loop has not heard of it yet
            first.cancel()
            (subscription,) = broadcaster._subscriptions[KEY]  # noqa: SLF001
            broadcaster.unsubscribe(KEY, "first", subscription)
            await _run_loop_briefly()
            second = asyncio.ensure_future(broadcaster.subscribe(KEY, "second"))
            await _run_loop_briefly()
            too_early = second.done()
            broadcaster._follow()  # noqa: SLF001
            await _run_loop_briefly()
            return too_early, second.done()

        assert asyncio.run(scene()) == (False, True)
        assert broadcaster.count == 1
