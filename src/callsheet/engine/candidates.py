"""What a claim is offered: the heads of the queues with free places, by priority, then by turn.

The one choice that SQL makes is reading a queue's index in order and skipping jobs that somebody else has locked.
Limits are counted from live rows, under a lock on the queues that share them, taken once for a whole batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Queue
from callsheet.core.policy.concurrency_and_rates import Headroom, Limit, LimitedQueue, limits_of
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.fair_order import QueueHead, order_queues
from callsheet.store.connection import Connection, NamedQuery

Kinds = tuple[str, ...]
_SERVED_MAX = 10_000


class Candidate(NamedTuple):
    """The head of a queue, or one behind it; its job is now locked."""

    priority: int
    queue: str
    task: str
    job: str


class QueueHeads(NamedTuple):
    """The queues with waiting work: the priority of each one's first task, and its limits."""

    queues: dict[str, LimitedQueue]
    priorities: dict[str, int]
    limits_by_queue: dict[str, list[Limit]]


class CandidateSelector:
    """Picks tasks for the claims of a batch."""

    def __init__(self) -> None:
        self.demand: dict[Kinds, int] = {}
        self.rate_waits: dict[Kinds, float] = {}
        """In how many seconds a rate lets the next task start, for kinds that it held back."""
        self.rated: dict[str, bool] = {}
        """Whether a rate counts the starts of a queue, for those that were looked at."""
        self._offered_counts: dict[Limit, int] = {}
        """Places that this batch has offered already; they are not running yet, so no count shows them."""
        self._offered_tasks: dict[str, set[str]] = {}
        """Tasks that this batch has offered already, by queue: another claim of the batch gets those behind them."""
        self._served: dict[str, int] = {}
        """When a queue had its last turn, the newest last. Jobs may bring queues of their own, so the oldest are
        forgotten: they come first again, as they would have."""
        self._turn_count = 0

    def begin(self) -> None:
        """Forget the batch before."""
        for state in (self.demand, self.rate_waits, self.rated, self._offered_counts, self._offered_tasks):
            state.clear()

    def pick(
        self, connection: Connection, limits: Limits, requested_kinds: Sequence[Kinds]
    ) -> Iterator[tuple[Kinds, list[Candidate]]]:
        """Choose what the claims of each set of kinds are offered, best first."""
        heads = self._read_heads(connection, limits, sorted({kind for kinds in requested_kinds for kind in kinds}))
        headrooms = self._read_headrooms(connection, {limit for own in heads.limits_by_queue.values() for limit in own})
        free = {limit: headroom.free for limit, headroom in headrooms.items()}
        for kinds in requested_kinds:
            wanted = self.demand.get(kinds, 1)
            own = [QueueHead(name, heads.priorities[name]) for name, q in heads.queues.items() if q.kind in kinds]
            chosen = self._choose(
                self._read_candidates(connection, own, heads.limits_by_queue, free, wanted),
                heads.limits_by_queue,
                free,
                wanted,
            )
            if len(chosen) < wanted:
                limits_by_queue = {
                    limit for head in own for limit in heads.limits_by_queue[head.queue] if free[limit] <= 0
                }
                if available_at := [
                    at for limit in limits_by_queue if (at := headrooms[limit].available_at) is not None
                ]:
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
        wanted: int,
    ) -> list[Candidate]:  # fmt: skip
        """Read queues in turn, each as far as its limits let it begin, until there is enough."""
        found: list[Candidate] = []
        priorities = {head.queue: head.priority for head in heads}
        for name in order_queues(heads, self._served):
            if len(found) >= wanted and found[wanted - 1].priority >= priorities[name]:
                break
            places = min([wanted, *(free[limit] for limit in limits_by_queue[name])])
            if places > 0:
                already_offered = self._offered_tasks.get(name, set())
                got = connection.fetch("candidates", queue=name, count=places + len(already_offered))
                found.extend(
                    Candidate(priority, name, task, job) for task, job, priority in got if task not in already_offered
                )
                found.sort(key=lambda candidate: -candidate.priority)
        return found

    def _choose(
        self, found: Sequence[Candidate], limits_by_queue: dict[str, list[Limit]], free: dict[Limit, int], wanted: int
    ) -> list[Candidate]:
        """Return those that all limits let begin, and count them."""
        chosen: list[Candidate] = []
        for candidate in found:
            name = candidate.queue
            if len(chosen) == wanted or any(free[limit] <= 0 for limit in limits_by_queue[name]):
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

    def _read_headrooms(self, connection: Connection, wanted: set[Limit]) -> dict[Limit, Headroom]:
        """Return what is left of each limit, counted while nobody else can take it."""
        if not wanted:
            return {}
        names_by_scope = {
            what: [limit.name for limit in wanted if limit.of == what] for what in ("kind", "workflow", "provider")
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
        counts = connection.fetch_all([count_query(limit, sharing, now) for limit in wanted])
        return {
            limit: limit.headroom(counted + self._offered_counts.get(limit, 0), oldest, now)
            for limit, ((counted, oldest),) in zip(wanted, counts, strict=True)
        }


def count_query(limit: Limit, queues: Iterable[Queue], now: int) -> NamedQuery:
    """Return the query of what counts towards a limit: tasks that run, or those that started within its stretch."""
    ids = [queue.id for queue in queues if getattr(queue, limit.of) == limit.name]
    if limit.seconds:
        return "count_recent_starts", {"ids": ids, "since": now - limit.seconds * SECOND, "most": limit.maximum}
    return "count_running", {"ids": ids, "most": limit.maximum}
