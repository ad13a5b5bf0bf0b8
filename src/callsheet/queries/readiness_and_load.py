"""Readiness of this server, and its load: for operators and for metrics."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from callsheet.api.admin import Ops, Queue
from callsheet.core.model.errors import TemporarilyUnavailable
from callsheet.core.policy.autoscale import ScaleSignals
from callsheet.core.policy.signing_secret_and_storage import replaced_value
from callsheet.engine.engine import Engine
from callsheet.engine.lane import NO_ANSWER
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.fleet.load import Load, QueueDepth, read_load
from callsheet.queries.fleet.scaling import default_signals
from callsheet.queries.fleet.stats import seen_within
from callsheet.store.connection import DatabaseUnusable, StoreError

_READY_SECONDS = 5.0
"""Timeout of a readiness check."""


class LoadMetrics(NamedTuple):
    """Load values that are read for metrics."""

    load: Load
    signals: list[ScaleSignals]


async def check_ready(
    context: QueryContext, engine: Engine, shared_values: Mapping[str, str], storage_error: str | None
) -> None:
    """Raise unless the database answers, accepts writes, and is used with its signing secret and file storage."""
    queries = (("feed_end", {"tx": 0, "position": 0}), ("recorded_values", {"ids": sorted(shared_values)}))
    try:
        async with asyncio.timeout(_READY_SECONDS):
            _, rows = await context.reads.lookup_many(queries)
    except DatabaseUnusable as error:
        raise _not_ready(str(error)) from None
    except (StoreError, TimeoutError):
        raise _not_ready(NO_ANSWER) from None
    recorded = {name: value for name, value, _ in rows}
    if reason := engine.write_error or replaced_value(recorded, shared_values) or storage_error:
        raise _not_ready(reason)


def _not_ready(reason: str) -> TemporarilyUnavailable:
    return TemporarilyUnavailable("not_ready", reason, retry_after_seconds=1)


async def read_load_metrics(context: QueryContext) -> LoadMetrics | None:
    """Return the load values for metrics; None if the database does not answer."""
    try:
        load = await read_load(context, await context.reads.current_time())
        return LoadMetrics(load, await default_signals(context))
    except StoreError:
        return None


async def get_ops(context: QueryContext, streams: int, embedded_workers: Iterable[str]) -> Ops:
    """Return load counts across all tenants. `embedded_workers` are those of this server, which do not register."""
    now = await context.reads.current_time()
    load = await read_load(context, now)
    live = await context.reads.scan("live_worker_ids", seen_since=now - seen_within(context.settings))
    busy = load.workers.names
    active = {status: count for status, count in load.active_jobs.items() if count.value}
    return Ops(
        render.to_datetime(now),
        {status: count.value for status, count in active.items()},
        {status: count.is_capped for status, count in active.items()},
        [_queue_view(depth) for depth in load.depths],
        len(busy.union(embedded_workers, (row[0] for row in live))), len(busy), load.workers.is_capped, streams,
        *load.provider_calls.open, *load.provider_calls.overdue,
    )  # fmt: skip


def _queue_view(depth: QueueDepth) -> Queue:
    return Queue(depth.kind, depth.workflow, *depth.waiting, *depth.running)
