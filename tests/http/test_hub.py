"""The hub's one race, step by step: a place that was found for those who left is too late for whoever comes."""

import asyncio
from pathlib import Path

from callsheet.config import HttpSettings
from callsheet.engine import Engine
from callsheet.http.hub import JOB, Hub

KEY = (JOB, "a job")


async def _turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_place_that_was_found_for_those_who_left_lets_nobody_in(tmp_path: Path) -> None:
    with Engine.open(tmp_path / "callsheet.db") as engine:
        hub = Hub(engine, HttpSettings())  # its thread is not started: this test takes its steps

        async def scene() -> tuple[bool, bool]:
            first = asyncio.ensure_future(hub.join(KEY, "first"))
            await _turn()
            hub._follow()  # noqa: SLF001 - finds the place; the loop has not heard of it yet
            first.cancel()
            (watch,) = hub._watches[KEY]  # noqa: SLF001
            hub.leave(KEY, "first", watch)
            await _turn()
            second = asyncio.ensure_future(hub.join(KEY, "second"))
            await _turn()
            too_early = second.done()
            hub._follow()  # noqa: SLF001
            await _turn()
            return too_early, second.done()

        assert asyncio.run(scene()) == (False, True)
        assert hub.count == 1
