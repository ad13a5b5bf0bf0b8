"""Fair order of waiting tasks: priority first, then tenants by weight, then the users of a tenant in turn.

A task gets its place when it becomes ready. Its `rank` is a turn of its tenant: one stride after the tenant's last
waiting task of the same queue and priority, and never before the queue's head. A tenant of weight 2 has strides half as
long. Its `user_rank` is its place within the tenant, by the same rule with equal strides for all users.

The ranks say how many of the next starts a tenant gets, and the user ranks which of its tasks start. If a task starts
before another one that has an earlier turn, the two exchange their turns. So a tenant always uses its first turn, and
its share does not depend on its users. Ranks come from live rows only, so there is no counter to leak.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.model.rows import Task, Tenant
from callsheet.core.prefetched_facts import Line, QueueTail
from callsheet.core.working_set import QueueExit, WorkingSet

STRIDE = 1_000_000


def queue_of(kind: str, workflow: str, provider: str) -> str:
    """Return the id of the queue of a kind, workflow and provider; `provider` may be empty."""
    return f"{kind}/{workflow}/{provider}" if provider else f"{kind}/{workflow}"


# -- entering a queue


def queue_task(ws: WorkingSet, task: Task) -> Task:
    """Return a newly ready task: one stride after the last task of its tenant, and of its user."""
    line = (task.queue, task.priority, task.tenant)
    user_line = (*line, task.user_id)
    tail, user_tail = ws.get_fact(facts.QUEUE_TAIL, line), ws.get_fact(facts.USER_TAIL, user_line)
    rank = next_rank(tail, STRIDE // ws.get(Tenant, task.tenant).weight)
    user_rank = next_rank(user_tail, STRIDE)
    ws.set_fact(facts.QUEUE_TAIL, line, QueueTail(rank if tail.head is None else tail.head, rank))
    ws.set_fact(
        facts.USER_TAIL,
        user_line,
        QueueTail(user_rank if user_tail.head is None else user_tail.head, user_rank),
    )
    return replace(task, ready=1, rank=rank, user_rank=user_rank)


def next_rank(tail: QueueTail, stride: int) -> int:
    """Return the rank one stride after the last one, and not before the head."""
    floor = 0 if tail.head is None else max(tail.head - stride, 0)
    return (floor if tail.last is None else max(tail.last, floor)) + stride


def requeue_at_front(ws: WorkingSet, task: Task) -> Task:
    """Return a requeued task: at the head of its queue and first of its tenant, without moving virtual time back."""
    line = (task.queue, task.priority, task.tenant)
    head = ws.get_fact(facts.QUEUE_TAIL, line).head
    user_head = ws.get_fact(facts.USER_TAIL, (*line, task.user_id)).head
    return replace(
        task,
        ready=1,
        rank=task.rank if head is None else max(task.rank, head),
        user_rank=task.user_rank if user_head is None else max(task.user_rank, user_head - 1),
    )


# -- leaving a queue


def withdrawn_counts(exits: Iterable[QueueExit]) -> dict[Line, int]:
    """Count the tasks that were withdrawn, by line."""
    counts: dict[Line, int] = defaultdict(int)
    for one in exits:
        if not one.started:
            counts[one.line] += 1
    return dict(counts)


def settle_turns(ws: WorkingSet) -> None:
    """Exchange turns, so that started tasks use the first turns of their tenant, and withdrawn ones the last.

    Otherwise a tenant could keep its first turn forever, or a user who withdraws many tasks could leave the others with
    late turns.
    """
    exits_by_line: dict[tuple[Line, bool], list[QueueExit]] = defaultdict(list)
    for one in ws.queue_exits:
        exits_by_line[one.line, one.started].append(one)
    for (line, started), exits in sorted(exits_by_line.items(), key=lambda item: not item[0][1]):
        ids = ws.find_fact(facts.FIRST_TURNS if started else facts.LAST_TURNS, line) or ()
        waiting = [task for key in ids if is_waiting(task := ws.get(Task, key), line)]
        gone = [one for one in exits if not (started and ws.get(Task, one.task_id).ready)]  # some were requeued
        for leaving, staying in exchanges(gone, waiting, first=started):
            ws.put(replace(staying, rank=leaving.rank))
            task = ws.get(Task, leaving.task_id)
            if started:
                ws.put(replace(task, rank=staying.rank))


def is_waiting(task: Task, line: Line) -> bool:
    """Return whether a task waits in a line."""
    return bool(task.ready) and (task.queue, task.priority, task.tenant) == line


def exchanges(leaving: Sequence[QueueExit], waiting: Sequence[Task], *, first: bool) -> list[tuple[QueueExit, Task]]:
    """Return the pairs that exchange ranks, so that those who leave have the first (or last) ranks of all."""
    sign = 1 if first else -1
    ordered: list[QueueExit | Task] = sorted([*leaving, *waiting], key=lambda one: sign * one.rank)
    early = ordered[: len(leaving)]
    displaced = [one for one in early if isinstance(one, Task)]
    late = [one for one in ordered[len(leaving) :] if isinstance(one, QueueExit)]
    return list(zip(late, displaced, strict=True))


# -- the order of queues


class QueueHead(NamedTuple):
    """A queue with waiting tasks, and the priority of its first task."""

    queue: str
    priority: int


def order_queues(heads: Sequence[QueueHead], served: Mapping[str, int]) -> list[str]:
    """Order queues by the priority of their first task; equal ones by the time they were last served."""
    ordered = sorted(heads, key=lambda head: (-head.priority, served.get(head.queue, 0), head.queue))
    return [head.queue for head in ordered]
