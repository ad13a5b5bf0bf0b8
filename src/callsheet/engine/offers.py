"""What a claim is offered: the heads of the queues with free places, by priority, then by turn.

The one choice that SQL makes is reading a queue's index in order and skipping jobs that somebody else has locked.
Running limits are counted from live rows, under a lock on the queues that share them.
"""

from collections.abc import Sequence

from callsheet.core.limits import Limits
from callsheet.core.order import Head, turn
from callsheet.core.rows import Queue
from callsheet.store.connection import Connection

Scope = tuple[str, str]


class Offers:
    """Picks tasks for the claims of a batch."""

    def __init__(self) -> None:
        self.demand: dict[tuple[str, ...], int] = {}
        self.given: dict[Scope, int] = {}
        """Places that this batch has offered already; they are not running yet, so no count shows them."""
        self.offered: dict[str, set[str]] = {}
        """Tasks that this batch has offered already, by queue: another claim of the batch gets those behind them."""
        self._served: dict[str, int] = {}
        self._turns = 0

    def pick(self, connection: Connection, limits: Limits, kinds: tuple[str, ...]) -> tuple[list[str], list[str]]:
        """Return the ids of tasks to lease, best first, and of their jobs, which are now locked."""
        rows = connection.fetch("heads", ids=list(kinds))
        waiting = {row[0]: (Queue(*row[:-1]), row[-1]) for row in rows if row[-1] is not None}
        if not waiting:
            return [], []
        queues = [queue for queue, _ in waiting.values()]
        free = self._free(connection, limits, queues)
        wanted = self.demand.get(kinds, 1)
        found: list[tuple[int, str, str, str]] = []
        for name in turn([Head(key, head) for key, (_, head) in waiting.items()], self._served):
            queue, head = waiting[name]
            if len(found) >= wanted and found[wanted - 1][0] >= head:
                break
            places = min([wanted, *(free[scope] for scope in scopes(queue, limits))])
            if places > 0:
                before = self.offered.get(name, set())
                got = connection.fetch("candidates", queue=name, count=places + len(before))
                found.extend((priority, name, task, job) for task, job, priority in got if task not in before)
                found.sort(key=lambda candidate: -candidate[0])
        return self._taken(found[: wanted if len(free) == 0 else None], waiting, limits, free, wanted)

    def _taken(
        self, found: list[tuple[int, str, str, str]], waiting: dict[str, tuple[Queue, int]], limits: Limits,
        free: dict[Scope, int], wanted: int,
    ) -> tuple[list[str], list[str]]:  # fmt: skip
        tasks: list[str] = []
        jobs: dict[str, None] = {}
        for _, name, task, job in found:
            mine = scopes(waiting[name][0], limits)
            if len(tasks) == wanted or any(free[scope] <= 0 for scope in mine):
                continue
            for scope in mine:
                free[scope] -= 1
                self.given[scope] = self.given.get(scope, 0) + 1
            tasks.append(task)
            self.offered.setdefault(name, set()).add(task)
            jobs[job] = None
            self._turns += 1
            self._served[name] = self._turns
        return tasks, list(jobs)

    def _free(self, connection: Connection, limits: Limits, queues: Sequence[Queue]) -> dict[Scope, int]:
        """Return the free places per limit, counted while nobody else can take them."""
        wanted = {scope for queue in queues for scope in scopes(queue, limits)}
        if not wanted:
            return {}
        named = {what: [name for kind, name in wanted if kind == what] for what in ("kind", "workflow", "provider")}
        sharing = [
            Queue(*row)
            for row in connection.fetch(
                "queues_sharing", kinds=named["kind"], workflows=named["workflow"], providers=named["provider"]
            )
        ]
        connection.fetch("lock_queues", ids=sorted(queue.id for queue in sharing))
        free = {}
        for what, name in wanted:
            members = [queue for queue in sharing if getattr(queue, what) == name]
            most = most_of(what, name, members, limits)
            taken = connection.fetch("running_in", ids=[queue.id for queue in members], most=most)[0][0]
            free[what, name] = most - taken - self.given.get((what, name), 0)
        return free


def scopes(queue: Queue, limits: Limits) -> list[Scope]:
    """Return the limits that a queue's tasks count towards."""
    found: list[Scope] = []
    if queue.kind in limits.kind_running_max:
        found.append(("kind", queue.kind))
    if queue.running_max:
        found.append(("workflow", queue.workflow))
    if queue.provider in limits.provider_running_max:
        found.append(("provider", queue.provider))
    return found


def most_of(what: str, name: str, members: Sequence[Queue], limits: Limits) -> int:
    """Return how many tasks a limit lets run."""
    if what == "workflow":
        return max(queue.running_max for queue in members)
    return (limits.kind_running_max if what == "kind" else limits.provider_running_max)[name]
