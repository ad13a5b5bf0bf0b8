"""Readiness of this server, and the load values of its metrics."""

import asyncio
from typing import NamedTuple

from callsheet.core.model.errors import TemporarilyUnavailable
from callsheet.core.policy.autoscale import ScaleSignals
from callsheet.engine.engine import Engine
from callsheet.queries.administration import read_load
from callsheet.queries.context import QueryContext
from callsheet.queries.fleet.scaling import default_signals
from callsheet.store.connection import Rows, StoreError

_READY_SECONDS = 5.0
"""Timeout of a readiness check."""


class LoadMetrics(NamedTuple):
    """Load values that are read for metrics."""

    depths: Rows
    active: Rows
    working: Rows
    signals: list[ScaleSignals]
    provider_calls: tuple[int, int]


async def check_ready(context: QueryContext, engine: Engine) -> None:
    """Raise unless the database answers and the engine can write."""
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await context.reads.lookup("feed_end", tx=0, position=0)
    except (StoreError, TimeoutError):
        raise TemporarilyUnavailable("not_ready", "The database does not answer.", retry_after_seconds=1) from None
    if engine.write_error:
        raise TemporarilyUnavailable("not_ready", engine.write_error, retry_after_seconds=1)


async def read_load_metrics(context: QueryContext) -> LoadMetrics | None:
    """Return the load values for metrics; None if the database does not answer."""
    try:
        depths, active, working, (provider_calls,) = await read_load(context)
        return LoadMetrics(depths, active, working, await default_signals(context), provider_calls)
    except StoreError:
        return None
