"""Fair order of waiting tasks: priority first, then tenants by weighted virtual time, then the older task.

A task gets its rank when it becomes ready: one stride after its tenant's last waiting task of the same queue and
priority, and never before the queue's head. A tenant of weight 2 has strides half as long. Ranks come from live
rows only (the head and the tail of what waits), so there is no counter to leak and a claim is one index scan.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from callsheet.core import facts
from callsheet.core.facts import QueueTail
from callsheet.core.model.rows import Task, Tenant
from callsheet.core.working_set import WorkingSet

STRIDE = 1_000_000


def queue_of(kind: str, workflow: str, provider: str) -> str:
    """Return the id of the queue of a kind, workflow and provider; `provider` may be empty."""
    return f"{kind}/{workflow}/{provider}" if provider else f"{kind}/{workflow}"


def next_rank(ws: WorkingSet, queue: str, priority: int, tenant: str) -> int:
    """Return the rank of a newly ready task: one stride after the last task of its tenant."""
    key = (queue, priority, tenant)
    tail = ws.get_fact(facts.QUEUE_TAIL, key)
    stride = STRIDE // ws.get(Tenant, tenant).weight
    floor = 0 if tail.head is None else max(tail.head - stride, 0)
    rank = (floor if tail.last is None else max(tail.last, floor)) + stride
    ws.set_fact(facts.QUEUE_TAIL, key, QueueTail(rank if tail.head is None else tail.head, rank))
    return rank


def front_rank(ws: WorkingSet, task: Task) -> int:
    """Return the rank of a requeued task: at the head of its queue, without moving virtual time back."""
    tail = ws.get_fact(facts.QUEUE_TAIL, (task.queue, task.priority, task.tenant))
    return task.rank if tail.head is None else max(task.rank, tail.head)


class QueueHead(NamedTuple):
    """A queue with waiting tasks, and the priority of its first task."""

    queue: str
    priority: int


def order_queues(heads: Sequence[QueueHead], served: Mapping[str, int]) -> list[str]:
    """Order queues by the priority of their first task; equal ones by the time they were last served."""
    ordered = sorted(heads, key=lambda head: (-head.priority, served.get(head.queue, 0), head.queue))
    return [head.queue for head in ordered]
