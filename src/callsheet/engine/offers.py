"""What a claim is offered: the heads of the queues with free places, by priority, then by turn.

The one choice that SQL makes is reading a queue's index in order and skipping jobs that somebody else has locked.
Limits are counted from live rows, under a lock on the queues that share them, taken once for a whole batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from callsheet.core.clock import SECOND
from callsheet.core.limiting import Limit, Limited, Room, limits_of
from callsheet.core.limits import Limits
from callsheet.core.order import Head, turn
from callsheet.core.rows import Queue
from callsheet.store.connection import Ask, Connection

Kinds = tuple[str, ...]
_SERVED_MAX = 10_000


class Candidate(NamedTuple):
    """The head of a queue, or one behind it; its job is now locked."""

    priority: int
    queue: str
    task: str
    job: str


class Heads(NamedTuple):
    """The queues with waiting work: the priority of each one's first task, and its limits."""

    queues: dict[str, Limited]
    priorities: dict[str, int]
    bound: dict[str, list[Limit]]


class Offers:
    """Picks tasks for the claims of a batch."""

    def __init__(self) -> None:
        self.demand: dict[Kinds, int] = {}
        self.expected: dict[Kinds, float] = {}
        """In how many seconds a rate lets the next task start, for kinds that it held back."""
        self.rated: dict[str, bool] = {}
        """Whether a rate counts the starts of a queue, for those that were looked at."""
        self._given: dict[Limit, int] = {}
        """Places that this batch has offered already; they are not running yet, so no count shows them."""
        self._offered: dict[str, set[str]] = {}
        """Tasks that this batch has offered already, by queue: another claim of the batch gets those behind them."""
        self._served: dict[str, int] = {}
        """When a queue had its last turn, the newest last. Jobs may bring queues of their own, so the oldest are
        forgotten: they come first again, as they would have."""
        self._turns = 0

    def begin(self) -> None:
        """Forget the batch before."""
        for kept in (self.demand, self.expected, self.rated, self._given, self._offered):
            kept.clear()

    def pick(
        self, connection: Connection, limits: Limits, asked: Sequence[Kinds]
    ) -> Iterator[tuple[Kinds, list[Candidate]]]:
        """Choose what the claims of each set of kinds are offered, best first."""
        heads = self._heads(connection, limits, sorted({kind for kinds in asked for kind in kinds}))
        rooms = self._rooms(connection, {limit for mine in heads.bound.values() for limit in mine})
        free = {limit: room.free for limit, room in rooms.items()}
        for kinds in asked:
            wanted = self.demand.get(kinds, 1)
            mine = [Head(name, heads.priorities[name]) for name, q in heads.queues.items() if q.kind in kinds]
            taken = self._taken(self._found(connection, mine, heads.bound, free, wanted), heads.bound, free, wanted)
            if len(taken) < wanted:
                bound = {limit for head in mine for limit in heads.bound[head.queue] if free[limit] <= 0}
                if until := [at for limit in bound if (at := rooms[limit].until) is not None]:
                    self.expected[kinds] = max(min(until) - connection.now(), 0) / SECOND
            yield kinds, taken

    def _heads(self, connection: Connection, limits: Limits, kinds: list[str]) -> Heads:
        found = [(Limited(*row[:-1]), row[-1]) for row in connection.fetch("heads", ids=kinds) if row[-1] is not None]
        bound = {queue.id: limits_of(queue, limits) for queue, _ in found}
        self.rated |= {name: any(limit.seconds for limit in mine) for name, mine in bound.items()}
        return Heads({queue.id: queue for queue, _ in found}, {queue.id: first for queue, first in found}, bound)

    def _found(
        self, connection: Connection, heads: Sequence[Head], bound: dict[str, list[Limit]], free: dict[Limit, int],
        wanted: int,
    ) -> list[Candidate]:  # fmt: skip
        """Read queues in turn, each as far as its limits let it begin, until there is enough."""
        found: list[Candidate] = []
        priorities = {head.queue: head.priority for head in heads}
        for name in turn(heads, self._served):
            if len(found) >= wanted and found[wanted - 1].priority >= priorities[name]:
                break
            places = min([wanted, *(free[limit] for limit in bound[name])])
            if places > 0:
                before = self._offered.get(name, set())
                got = connection.fetch("candidates", queue=name, count=places + len(before))
                found.extend(Candidate(priority, name, task, job) for task, job, priority in got if task not in before)
                found.sort(key=lambda candidate: -candidate.priority)
        return found

    def _taken(
        self, found: Sequence[Candidate], bound: dict[str, list[Limit]], free: dict[Limit, int], wanted: int
    ) -> list[Candidate]:
        """Return those that all limits let begin, and count them."""
        taken: list[Candidate] = []
        for candidate in found:
            name = candidate.queue
            if len(taken) == wanted or any(free[limit] <= 0 for limit in bound[name]):
                continue
            for limit in bound[name]:
                free[limit] -= 1
                self._given[limit] = self._given.get(limit, 0) + 1
            taken.append(candidate)
            self._offered.setdefault(name, set()).add(candidate.task)
            self._serve(name)
        return taken

    def _serve(self, name: str) -> None:
        self._turns += 1
        self._served.pop(name, None)
        self._served[name] = self._turns
        if len(self._served) > _SERVED_MAX:
            del self._served[next(iter(self._served))]

    def _rooms(self, connection: Connection, wanted: set[Limit]) -> dict[Limit, Room]:
        """Return what is left of each limit, counted while nobody else can take it."""
        if not wanted:
            return {}
        named = {
            what: [limit.name for limit in wanted if limit.of == what] for what in ("kind", "workflow", "provider")
        }
        sharing = [
            Queue(*row)
            for row in connection.fetch(
                "queues_sharing", kinds=named["kind"], workflows=named["workflow"], providers=named["provider"]
            )
        ]
        connection.fetch("lock_queues", ids=sorted(queue.id for queue in sharing))
        now = connection.now()
        counts = connection.fetch_all([counting(limit, sharing, now) for limit in wanted])
        return {
            limit: limit.room(counted + self._given.get(limit, 0), oldest, now)
            for limit, ((counted, oldest),) in zip(wanted, counts, strict=True)
        }


def counting(limit: Limit, queues: Iterable[Queue], now: int) -> Ask:
    """Return the query of what counts towards a limit: tasks that run, or those that started within its stretch."""
    ids = [queue.id for queue in queues if getattr(queue, limit.of) == limit.name]
    if limit.seconds:
        return "started_in", {"ids": ids, "since": now - limit.seconds * SECOND, "most": limit.most}
    return "running_in", {"ids": ids, "most": limit.most}
