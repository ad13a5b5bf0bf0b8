"""A second reading of the queries of a queue, over rows in memory: its ends, and the tasks that a claim gets."""

from collections.abc import Collection

from callsheet.core.model.rows import Task
from callsheet.core.policy.fair_order import is_waiting
from callsheet.core.prefetched_facts import Line, QueueTail


def in_turn(tasks: Collection[Task], line: Line) -> list[Task]:
    """Return the waiting tasks of a line, in the order of their turns."""
    return sorted((task for task in tasks if is_waiting(task, line)), key=lambda task: (task.rank, task.id))


def queue_tail(tasks: Collection[Task], line: Line) -> QueueTail:
    queue, priority, tenant = line
    ready = [task for task in tasks if task.ready and (task.queue, task.priority) == (queue, priority)]
    own = [task.rank for task in ready if task.tenant == tenant]
    return QueueTail(min((task.rank for task in ready), default=None), max(own, default=None))


def user_tail(tasks: Collection[Task], key: tuple[str, int, str, str]) -> QueueTail:
    line = in_turn(tasks, key[:3])
    own = [task.user_rank for task in line if task.user_id == key[3]]
    return QueueTail(min((task.user_rank for task in line), default=None), max(own, default=None))


def pick_candidates(
    tasks: Collection[Task], kinds: tuple[str, ...], demand: int
) -> tuple[list[Task], dict[Line, tuple[str, ...]]]:
    """Return the tasks that a claim gets, and the tasks whose turns it uses."""
    ready = [task for task in tasks if task.ready and task.kind in kinds]
    ready.sort(key=lambda task: (-task.priority, task.rank, task.id))
    turns: dict[Line, tuple[str, ...]] = {}
    offered = []
    for task in ready[:demand]:
        line = (task.queue, task.priority, task.tenant)
        used = turns.get(line, ())
        offered.append(sorted(in_turn(tasks, line), key=lambda one: (one.user_rank, one.id))[len(used)])
        turns[line] = (*used, task.id)
    return offered, turns
