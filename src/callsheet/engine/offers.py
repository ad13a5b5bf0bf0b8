"""What a claim is offered: the heads of the queues with free places, by priority, then by turn.

The one choice that SQL makes is reading a queue's index in order and skipping jobs that somebody else has locked.
Limits are counted from live rows, under a lock on the queues that share them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from callsheet.core.clock import SECOND
from callsheet.core.limiting import Limit, Room, limits_of
from callsheet.core.limits import Limits
from callsheet.core.order import Head, turn
from callsheet.core.rows import Queue
from callsheet.store.connection import Ask, Connection

Kinds = tuple[str, ...]


class Offer(NamedTuple):
    """Tasks to lease, best first, their jobs, which are now locked, and the queues that were looked at."""

    tasks: list[str]
    jobs: list[str]
    queues: list[Queue]


class Candidate(NamedTuple):
    """The head of a queue, or one behind it."""

    priority: int
    queue: str
    task: str
    job: str


class Offers:
    """Picks tasks for the claims of a batch."""

    def __init__(self) -> None:
        self.demand: dict[Kinds, int] = {}
        self.expected: dict[Kinds, float] = {}
        """In how many seconds a rate lets the next task start, for kinds that it held back."""
        self._given: dict[Limit, int] = {}
        """Places that this batch has offered already; they are not running yet, so no count shows them."""
        self._offered: dict[str, set[str]] = {}
        """Tasks that this batch has offered already, by queue: another claim of the batch gets those behind them."""
        self._served: dict[str, int] = {}
        self._turns = 0

    def begin(self) -> None:
        """Forget the batch before."""
        for kept in (self.demand, self.expected, self._given, self._offered):
            kept.clear()

    def pick(self, connection: Connection, limits: Limits, kinds: Kinds) -> Offer:
        """Choose what the claims of these kinds are offered."""
        rows = connection.fetch("heads", ids=list(kinds))
        waiting = {row[0]: (Queue(*row[:-1]), row[-1]) for row in rows if row[-1] is not None}
        if not waiting:
            return Offer([], [], [])
        bound = {name: limits_of(queue, limits) for name, (queue, _) in waiting.items()}
        rooms = self._rooms(connection, {limit for mine in bound.values() for limit in mine})
        free = {limit: room.free for limit, room in rooms.items()}
        wanted = self.demand.get(kinds, 1)
        found: list[Candidate] = []
        for name in turn([Head(key, head) for key, (_, head) in waiting.items()], self._served):
            head = waiting[name][1]
            if len(found) >= wanted and found[wanted - 1].priority >= head:
                break
            places = min([wanted, *(free[limit] for limit in bound[name])])
            if places > 0:
                before = self._offered.get(name, set())
                got = connection.fetch("candidates", queue=name, count=places + len(before))
                found.extend(Candidate(priority, name, task, job) for task, job, priority in got if task not in before)
                found.sort(key=lambda candidate: -candidate.priority)
        taken = self._taken(found, bound, free, wanted)
        if len(taken) < wanted:
            until = [room.until for limit, room in rooms.items() if room.until is not None and free[limit] <= 0]
            if until:
                self.expected[kinds] = max(min(until) - connection.now(), 0) / SECOND
        jobs = dict.fromkeys(candidate.job for candidate in taken)
        return Offer([candidate.task for candidate in taken], list(jobs), [queue for queue, _ in waiting.values()])

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
            self._turns += 1
            self._served[name] = self._turns
        return taken

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
        rooms = {}
        for limit, ((counted, oldest),) in zip(wanted, counts, strict=True):
            rooms[limit] = limit.room(counted + self._given.get(limit, 0), oldest, now)
        return rooms


def counting(limit: Limit, queues: Iterable[Queue], now: int) -> Ask:
    """Return the query of what counts towards a limit: tasks that run, or those that started within its stretch."""
    ids = [queue.id for queue in queues if getattr(queue, limit.of) == limit.name]
    if limit.seconds:
        return "started_in", {"ids": ids, "since": now - limit.seconds * SECOND, "most": limit.most}
    return "running_in", {"ids": ids, "most": limit.most}
