"""Load of the installation, over all tenants: waiting and running tasks, active jobs, workers, provider calls.

Every count stops at `scan_rows_max`, so a reading costs the same with a thousand and with ten million waiting tasks.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from callsheet.core.model.capped_count import CappedCount, cap_count
from callsheet.core.model.clock import SECOND
from callsheet.core.model.state_machines import JOB
from callsheet.queries.context import QueryContext

_OVERDUE = 60 * SECOND
"""A provider call is overdue if it should have been polled this long ago."""
_ACTIVE_STATUSES = tuple(status for status in JOB.statuses if status not in JOB.terminal)


class QueueDepth(NamedTuple):
    """Tasks of one queue that wait or run."""

    kind: str
    workflow: str
    waiting: CappedCount
    running: CappedCount


class LeasingWorkers(NamedTuple):
    """Workers that hold a lease, each with the kind of the lease. A worker with leases of two kinds is in two pairs."""

    pairs: Sequence[tuple[str, str]] = ()
    is_capped: bool = False

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.pairs}


class ProviderCalls(NamedTuple):
    """Provider calls that have not ended, and those of them that are overdue."""

    open: CappedCount
    overdue: CappedCount


class Load(NamedTuple):
    """The load at one moment."""

    depths: Sequence[QueueDepth]
    active_jobs: Mapping[str, CappedCount]
    """By status."""
    workers: LeasingWorkers
    provider_calls: ProviderCalls


async def read_load(context: QueryContext, now: int) -> Load:
    """Read the load."""
    maximum = context.settings.scan_rows_max
    depths, active, workers, ((open_calls, overdue),) = await context.reads.scan_many([
        ("depths", {"most": maximum + 1}),
        ("jobs_by_status", {"statuses": [(status,) for status in _ACTIVE_STATUSES], "most": maximum + 1}),
        ("leasing_workers", {"most": maximum + 1}),
        ("open_calls", {"due_before": now - _OVERDUE, "most": maximum + 1}),
    ])  # fmt: skip
    return Load(
        [QueueDepth(kind, name, cap_count(waiting, maximum), cap_count(running, maximum))
         for kind, name, waiting, running in depths],
        {status: cap_count(count, maximum) for status, count in active},
        LeasingWorkers([(name, kind) for name, kind in workers[:maximum]], len(workers) > maximum),
        ProviderCalls(cap_count(open_calls, maximum), cap_count(overdue, maximum)),
    )  # fmt: skip
