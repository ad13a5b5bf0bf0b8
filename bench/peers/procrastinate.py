"""Procrastinate: defers, fetches and finishes no-op jobs in one process, with the settings that are fastest here.

It gets the same conditions as Callsheet: pooled connections, as many callers or the same batches, finished rows stay,
and workers run on the same loop. Several settings are measured, and the fastest one is compared.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

from procrastinate import App, PsycopgConnector

Inputs = Sequence[dict[str, Any]]


class Setting(NamedTuple):
    """The number of workers, their concurrency and connections, and whether they run during or after the submission."""

    workers: int
    concurrency: int
    connections: int
    concurrent: bool

    def __str__(self) -> str:
        when = "beside" if self.concurrent else "after"
        return f"{self.workers} x {self.concurrency} jobs, {self.connections} connections, {when} the callers"


SETTINGS = (
    Setting(1, 8, 8, concurrent=False),
    Setting(1, 64, 16, concurrent=False),
    Setting(4, 16, 16, concurrent=False),
    Setting(8, 8, 32, concurrent=False),
    Setting(16, 4, 64, concurrent=False),
    Setting(4, 16, 32, concurrent=True),
    Setting(8, 8, 64, concurrent=True),
)


def time_jobs(url: str, inputs: Inputs, setting: Setting, *, callers: int = 0, batch: int = 0) -> float:
    """Return the seconds from the first defer to the last finish; jobs are deferred by callers or in batches."""
    return asyncio.run(_run(url, inputs, setting, callers, batch))


async def _run(url: str, inputs: Inputs, setting: Setting, callers: int, batch: int) -> float:
    connector = PsycopgConnector(conninfo=url, min_size=setting.connections, max_size=setting.connections)
    app = App(connector=connector)
    done = 0
    all_done = asyncio.Event()

    async def noop(**_: Any) -> None:
        nonlocal done
        done += 1
        if done == len(inputs):
            all_done.set()

    task = app.task(name="noop")(noop)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        start = perf_counter()
        workers = _start_workers(app, setting) if setting.concurrent else []
        if batch:
            for low in range(0, len(inputs), batch):
                await task.batch_defer_async(*inputs[low : low + batch])
        else:
            await asyncio.gather(*(_defer(task, inputs[n::callers]) for n in range(callers)))
        await _wait_until_drained(workers or _start_workers(app, setting), all_done, concurrent=setting.concurrent)
        took = perf_counter() - start
        await _check_finished(app, len(inputs))
    return took


async def _defer(task: Any, share: Inputs) -> None:
    for one in share:
        await task.defer_async(**one)


def _start_workers(app: App, setting: Setting) -> "list[asyncio.Task[None]]":
    return [
        asyncio.create_task(
            app.run_worker_async(
                name=f"worker-{n}",
                concurrency=setting.concurrency,
                wait=setting.concurrent,
                listen_notify=setting.concurrent,
                fetch_job_polling_interval=1.0,
                install_signal_handlers=False,
            )
        )
        for n in range(setting.workers)
    ]


async def _wait_until_drained(
    workers: "list[asyncio.Task[None]]", all_done: asyncio.Event, *, concurrent: bool
) -> None:
    """Wait until the workers have stopped, which they do when their jobs are finished and committed."""
    if concurrent:
        await all_done.wait()
        for worker in workers:
            worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*workers)
    await asyncio.gather(*workers, return_exceptions=True)


async def _check_finished(app: App, count: int) -> None:
    found = await app.connector.execute_query_one_async(
        "SELECT count(*) AS count FROM procrastinate_jobs WHERE status = 'succeeded'"
    )
    if found["count"] != count:
        raise AssertionError(f"{found['count']} of {count} jobs were finished")
