"""A race of the broadcaster, step by step: a position found for an unsubscribed client is not used for the next one."""

import asyncio
from pathlib import Path

from callsheet.engine import Engine
from callsheet.http.streams.broadcaster import JOB, Broadcaster
from callsheet.settings import HttpSettings

KEY = (JOB, "a job")


async def _run_loop_briefly() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_position_found_for_an_unsubscribed_client_does_not_start_the_next_one(tmp_path: Path) -> None:
    with Engine.open(tmp_path / "callsheet.db") as engine:
        broadcaster = Broadcaster(engine, HttpSettings())  # its thread is not started; the test runs its steps

        async def race() -> tuple[bool, bool]:
            first = asyncio.ensure_future(broadcaster.subscribe(KEY, "first"))
            await _run_loop_briefly()
            broadcaster._follow()  # noqa: SLF001 - finds the position; the loop does not know it yet
            first.cancel()
            (subscription,) = broadcaster._channels[KEY].subscriptions  # noqa: SLF001
            broadcaster.unsubscribe(KEY, "first", subscription)
            await _run_loop_briefly()
            second = asyncio.ensure_future(broadcaster.subscribe(KEY, "second"))
            await _run_loop_briefly()
            too_early = second.done()
            broadcaster._follow()  # noqa: SLF001
            await _run_loop_briefly()
            return too_early, second.done()

        assert asyncio.run(race()) == (False, True)
        assert broadcaster.count == 1
