"""Selects the tasks that a claim may lease: the first of each queue below its limits, by priority, then round robin.

SQL reads a queue's index in order and skips jobs that another transaction has locked; everything else is decided here.
A claim reads, counts and locks only what the tasks that it finds need, however many queues and limits there are.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.fair_order import QueueHead, order_queues
from callsheet.core.policy.task_start_limits import Limit, LimitedQueue, limits_of
from callsheet.engine.limit_use import LimitUse
from callsheet.store.connection import Connection

Kinds = tuple[str, ...]
_SERVED_MAX = 10_000
_ROUNDS_MAX = 4
"""Rounds in which a claim looks for tasks. A second one is needed if another claim used up a limit meanwhile."""
_LOCKED_SECONDS = 0.02
"""When to look again for tasks that other transactions have locked: most transactions are shorter."""
_ESTIMATED_QUEUES = 16
"""Queues whose limits are estimated first. If they are not enough, all others are estimated together."""


class Candidate(NamedTuple):
    """A ready task, and the task that has the turn of the tenant that it would use. The jobs of both are locked."""

    priority: int
    queue: str
    tenant: str
    task: str
    job: str
    turn: str


class QueueHeads:
    """The queues with ready tasks: the priority of each queue's first task, and its limits."""

    def __init__(self, rows: Sequence[Sequence[Any]], limits: Limits) -> None:
        self._rows = {row[0]: row for row in rows if row[-1] is not None}
        self._limits = limits
        self._limits_by_queue: dict[str, list[Limit]] = {}

    def of_kinds(self, kinds: Kinds) -> list[QueueHead]:
        return [QueueHead(name, row[-1]) for name, row in self._rows.items() if row[1] in kinds]

    def queue(self, name: str) -> LimitedQueue:
        return LimitedQueue(*self._rows[name][:-1])

    def limits(self, name: str) -> list[Limit]:
        """Return the limits of a queue. They are parsed when they are first needed: there may be many queues."""
        if name not in self._limits_by_queue:
            self._limits_by_queue[name] = limits_of(self.queue(name), self._limits)
        return self._limits_by_queue[name]


class Search:
    """The search for the tasks of all claims of a batch for the same kinds."""

    def __init__(self, kinds: Kinds, demand: int, heads: Sequence[QueueHead], served: dict[str, int]) -> None:
        self.kinds = kinds
        self.demand = demand
        self.priorities = {head.queue: head.priority for head in heads}
        self.queues = deque(order_queues(heads, served))
        """The queues that were not read yet, best first."""
        self.found: list[Candidate] = []
        self.chosen: list[Candidate] = []
        self.skipped_locked = False
        """Whether all tasks of a queue were skipped, because other transactions have locked their jobs."""

    @property
    def missing(self) -> int:
        return self.demand - len(self.chosen)

    @property
    def needs_next_queue(self) -> bool:
        """Whether there are too few tasks so far, or the next queue has a task with a higher priority."""
        if not self.queues:
            return False
        if len(self.found) < self.missing:
            return True
        return self.found[self.missing - 1].priority < self.priorities[self.queues[0]]


class CandidateSelector:
    """Selects tasks for the claims of a batch."""

    def __init__(self) -> None:
        self.demand: dict[Kinds, int] = {}
        self.delays: dict[Kinds, float] = {}
        """For kinds whose waiting tasks may start later: the seconds until then. Nothing announces that time."""
        self.rated: dict[str, bool] = {}
        """Whether a rate limit counts the starts of a queue, for the queues of selected tasks."""
        self._use: LimitUse | None = None
        self._offered: dict[str, list[Candidate]] = {}
        """What this batch has found, by queue. Other claims of the batch get later turns and tasks."""
        self._served: dict[str, int] = {}
        """The last turn of each queue, newest last. Jobs can create queues, so the oldest entries are dropped. Such a
        queue is served first again, which it would be anyway."""
        self._turn_count = 0

    def begin(self) -> None:
        """Reset the state for a new batch."""
        self._use = None
        for state in (self.demand, self.delays, self.rated, self._offered):
            state.clear()

    def pick(
        self, connection: Connection, limits: Limits, requested_kinds: Sequence[Kinds]
    ) -> Iterator[tuple[Kinds, list[Candidate]]]:
        """Yield each set of kinds with the tasks that its claims may lease, best first."""
        kinds = sorted({kind for kinds in requested_kinds for kind in kinds})
        heads = QueueHeads(connection.fetch("heads", ids=kinds), limits)
        use = self._use = self._use or LimitUse(connection)
        searches = [
            Search(kinds, self.demand.get(kinds, 1), heads.of_kinds(kinds), self._served) for kinds in requested_kinds
        ]
        for round_no in range(_ROUNDS_MAX):
            pending = [search for search in searches if search.missing and search.queues]
            for search in pending:
                self._find(connection, search, heads, use)
            needed = {limit for search in pending for one in search.found for limit in heads.limits(one.queue)}
            use.lock(needed, wait=round_no == 0)
            for search in pending:
                self._choose(search, heads, use)
            if not pending:
                break
        for search in searches:
            if search.missing:
                self._record_delay(connection.now(), search, heads, use)
            yield search.kinds, sorted(search.chosen, key=lambda candidate: -candidate.priority)

    def _find(self, connection: Connection, search: Search, heads: QueueHeads, use: LimitUse) -> None:
        """Read queues in turn, each up to its limits, until there are enough tasks."""
        estimated = _ESTIMATED_QUEUES
        while search.needs_next_queue:
            name = search.queues[0]
            if not use.knows(heads.limits(name)):
                ahead = list(islice(search.queues, estimated))
                use.estimate([heads.queue(one) for one in ahead], [n for one in ahead for n in heads.limits(one)])
                estimated = len(search.queues)
            search.queues.popleft()
            if (count := use.free(heads.limits(name), search.missing)) > 0:
                tasks = self._read_tasks(connection, name, count)
                search.skipped_locked |= not tasks and name not in self._offered
                search.found += tasks
                search.found.sort(key=lambda candidate: -candidate.priority)
        for candidate in search.found[: search.missing]:
            self._offered.setdefault(candidate.queue, []).append(candidate)

    def _read_tasks(self, connection: Connection, name: str, count: int) -> list[Candidate]:
        """Read the first turns of a queue, and for each of them the next task of its tenant."""
        offered = self._offered.get(name, [])
        used_turns, used_tasks = {one.turn for one in offered}, {one.task for one in offered}
        rows = connection.fetch("first_turns", queue=name, count=count + len(offered))
        turns = [row for row in rows if row[0] not in used_turns][:count]
        if not turns:
            return []
        lines = Counter((priority, tenant) for _, priority, tenant in turns)
        tasks_of_lines = connection.fetch_all(
            ("candidates", {"queue": name, "priority": priority, "tenant": tenant, "count": n + len(offered)})
            for (priority, tenant), n in lines.items()
        )
        next_tasks = {
            line: iter([row for row in rows if row[0] not in used_tasks])
            for line, rows in zip(lines, tasks_of_lines, strict=True)
        }
        return [
            Candidate(priority, name, tenant, task[0], task[1], turn)
            for turn, priority, tenant in turns
            if (task := next(next_tasks[priority, tenant], None)) is not None
        ]

    def _choose(self, search: Search, heads: QueueHeads, use: LimitUse) -> None:
        """Move the found tasks that all limits allow to start to the chosen ones."""
        for candidate in search.found:
            limits = heads.limits(candidate.queue)
            if search.missing and use.free(limits, 1) > 0:
                use.take(limits)
                search.chosen.append(candidate)
                self.rated[candidate.queue] = any(limit.seconds for limit in limits)
                self._record_turn(candidate.queue)
        search.found = []

    def _record_delay(self, now: int, search: Search, heads: QueueHeads, use: LimitUse) -> None:
        """Record when tasks may start that a rate delays, or that other transactions have locked."""
        available_at = use.available_at({limit for name in search.priorities for limit in heads.limits(name)})
        if available_at is not None:
            self.delays[search.kinds] = max(available_at - now, 0) / SECOND
        if search.skipped_locked or use.skipped_locked:
            self.delays[search.kinds] = _LOCKED_SECONDS

    def _record_turn(self, name: str) -> None:
        self._turn_count += 1
        self._served.pop(name, None)
        self._served[name] = self._turn_count
        if len(self._served) > _SERVED_MAX:
            del self._served[next(iter(self._served))]
