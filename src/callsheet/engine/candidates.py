"""Selects the tasks that a claim may lease: the first of each queue below its limits, by priority, then round robin.

SQL reads a queue's index in order and skips jobs that another transaction has locked; everything else is decided here.
The use of a limit is counted from live rows. The queues that share it are locked, once for the whole batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Queue
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.fair_order import QueueHead, order_queues
from callsheet.core.policy.task_start_limits import Headroom, Limit, LimitedQueue, limits_of
from callsheet.store.connection import Connection, NamedQuery

Kinds = tuple[str, ...]
_SERVED_MAX = 10_000


class Candidate(NamedTuple):
    """A ready task at or near the head of a queue. Its job is locked."""

    priority: int
    queue: str
    task: str
    job: str


class QueueHeads(NamedTuple):
    """The queues with ready tasks: the priority of each queue's first task, and its limits."""

    queues: dict[str, LimitedQueue]
    priorities: dict[str, int]
    limits_by_queue: dict[str, list[Limit]]


class CandidateSelector:
    """Selects tasks for the claims of a batch."""

    def __init__(self) -> None:
        self.demand: dict[Kinds, int] = {}
        self.rate_waits: dict[Kinds, float] = {}
        """For kinds that a rate limit delays: the seconds until the next task may start."""
        self.rated: dict[str, bool] = {}
        """Whether a rate limit counts the starts of a queue, for the queues that were read."""
        self._offered_counts: dict[Limit, int] = {}
        """Tasks that this batch has selected, by limit. They do not run yet, so the counts do not include them."""
        self._offered_tasks: dict[str, set[str]] = {}
        """Tasks that this batch has selected, by queue. Other claims of the batch get later tasks."""
        self._served: dict[str, int] = {}
        """The last turn of each queue, newest last. Jobs can create queues, so the oldest entries are dropped. Such a
        queue is served first again, which it would be anyway."""
        self._turn_count = 0

    def begin(self) -> None:
        """Reset the state for a new batch."""
        for state in (self.demand, self.rate_waits, self.rated, self._offered_counts, self._offered_tasks):
            state.clear()

    def pick(
        self, connection: Connection, limits: Limits, requested_kinds: Sequence[Kinds]
    ) -> Iterator[tuple[Kinds, list[Candidate]]]:
        """Yield each set of kinds with the tasks that its claims may lease, best first."""
        heads = self._read_heads(connection, limits, sorted({kind for kinds in requested_kinds for kind in kinds}))
        headrooms = self._read_headrooms(connection, {limit for own in heads.limits_by_queue.values() for limit in own})
        free = {limit: headroom.free for limit, headroom in headrooms.items()}
        for kinds in requested_kinds:
            demand = self.demand.get(kinds, 1)
            own = [QueueHead(name, heads.priorities[name]) for name, q in heads.queues.items() if q.kind in kinds]
            chosen = self._choose(
                self._read_candidates(connection, own, heads.limits_by_queue, free, demand),
                heads.limits_by_queue,
                free,
                demand,
            )
            if len(chosen) < demand:
                exhausted = {limit for head in own for limit in heads.limits_by_queue[head.queue] if free[limit] <= 0}
                if available_at := [at for limit in exhausted if (at := headrooms[limit].available_at) is not None]:
                    self.rate_waits[kinds] = max(min(available_at) - connection.now(), 0) / SECOND
            yield kinds, chosen

    def _read_heads(self, connection: Connection, limits: Limits, kinds: list[str]) -> QueueHeads:
        found = [
            (LimitedQueue(*row[:-1]), row[-1]) for row in connection.fetch("heads", ids=kinds) if row[-1] is not None
        ]
        limits_by_queue = {queue.id: limits_of(queue, limits) for queue, _ in found}
        self.rated |= {name: any(limit.seconds for limit in own) for name, own in limits_by_queue.items()}
        return QueueHeads(
            {queue.id: queue for queue, _ in found}, {queue.id: first for queue, first in found}, limits_by_queue
        )

    def _read_candidates(
        self, connection: Connection, heads: Sequence[QueueHead], limits_by_queue: dict[str, list[Limit]],
        free: dict[Limit, int],
        demand: int,
    ) -> list[Candidate]:  # fmt: skip
        """Read queues in turn, each up to its limits, until there are enough tasks."""
        found: list[Candidate] = []
        priorities = {head.queue: head.priority for head in heads}
        for name in order_queues(heads, self._served):
            if len(found) >= demand and found[demand - 1].priority >= priorities[name]:
                break
            count = min([demand, *(free[limit] for limit in limits_by_queue[name])])
            if count > 0:
                already_offered = self._offered_tasks.get(name, set())
                rows = connection.fetch("candidates", queue=name, count=count + len(already_offered))
                found.extend(
                    Candidate(priority, name, task, job) for task, job, priority in rows if task not in already_offered
                )
                found.sort(key=lambda candidate: -candidate.priority)
        return found

    def _choose(
        self, found: Sequence[Candidate], limits_by_queue: dict[str, list[Limit]], free: dict[Limit, int], demand: int
    ) -> list[Candidate]:
        """Return the tasks that all limits allow to start, and count them."""
        chosen: list[Candidate] = []
        for candidate in found:
            name = candidate.queue
            if len(chosen) == demand or any(free[limit] <= 0 for limit in limits_by_queue[name]):
                continue
            for limit in limits_by_queue[name]:
                free[limit] -= 1
                self._offered_counts[limit] = self._offered_counts.get(limit, 0) + 1
            chosen.append(candidate)
            self._offered_tasks.setdefault(name, set()).add(candidate.task)
            self._record_turn(name)
        return chosen

    def _record_turn(self, name: str) -> None:
        self._turn_count += 1
        self._served.pop(name, None)
        self._served[name] = self._turn_count
        if len(self._served) > _SERVED_MAX:
            del self._served[next(iter(self._served))]

    def _read_headrooms(self, connection: Connection, limits: set[Limit]) -> dict[Limit, Headroom]:
        """Return what is left of each limit. Its queues are locked first, so no other transaction can use it."""
        if not limits:
            return {}
        names_by_scope = {
            scope: [limit.name for limit in limits if limit.of == scope] for scope in ("kind", "workflow", "provider")
        }
        sharing = [
            Queue(*row)
            for row in connection.fetch(
                "queues_sharing",
                kinds=names_by_scope["kind"],
                workflows=names_by_scope["workflow"],
                providers=names_by_scope["provider"],
            )
        ]
        connection.fetch("lock_queues", ids=sorted(queue.id for queue in sharing))
        now = connection.now()
        counts = connection.fetch_all([count_query(limit, sharing, now) for limit in limits])
        return {
            limit: limit.headroom(counted + self._offered_counts.get(limit, 0), oldest, now)
            for limit, ((counted, oldest),) in zip(limits, counts, strict=True)
        }


def count_query(limit: Limit, queues: Iterable[Queue], now: int) -> NamedQuery:
    """Return the query that counts the use of a limit: running tasks, or tasks that started within its period."""
    ids = [queue.id for queue in queues if getattr(queue, limit.of) == limit.name]
    if limit.seconds:
        return "count_recent_starts", {"ids": ids, "since": now - limit.seconds * SECOND, "most": limit.maximum}
    return "count_running", {"ids": ids, "most": limit.maximum}
