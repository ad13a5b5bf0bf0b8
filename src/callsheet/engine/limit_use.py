"""The use of limits, counted from live rows with one query for all running limits and one for all rates.

A claim first estimates the use without locks, to skip queues whose limits are exhausted. It then locks the limits of
the tasks that it found and counts them again. No other transaction can use them until the commit.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.core.model.rows import Queue
from callsheet.core.policy.task_start_limits import Headroom, Limit, LimitedQueue
from callsheet.store.connection import Connection, NamedQuery, Rows


class Use(NamedTuple):
    """How often a limit is used now; for a rate also when the first start within its period happened."""

    counted: int
    oldest: int | None


class UseCount:
    """Counts the use of limits over the queues that share them."""

    def __init__(self, limits: Collection[Limit], queues: Iterable[Queue | LimitedQueue], now: int) -> None:
        self._now = now
        ids: dict[tuple[str, str], list[str]] = {(limit.of, limit.name): [] for limit in limits}
        for queue in queues:
            for scope in ("kind", "workflow", "provider"):
                if (sharing := ids.get((scope, getattr(queue, scope)))) is not None:
                    sharing.append(queue.id)
        self._queues_by_limit = {limit: ids[limit.of, limit.name] for limit in limits}

    def named_queries(self) -> list[NamedQuery]:
        """Return the queries to run: at most two."""
        pairs = {
            (queue, self._since(limit)): limit for limit, queues in self._queues_by_limit.items() for queue in queues
        }
        most = max((limit.maximum for limit in self._queues_by_limit), default=0)
        running = sorted(queue for queue, since in pairs if since is None)
        starts = sorted((queue, since) for queue, since in pairs if since is not None)
        queries: list[NamedQuery] = []
        if running:
            queries.append(("running_by_queue", {"ids": running, "most": most}))
        if starts:
            queries.append(("starts_by_queue", {"keys": starts, "most": most}))
        return queries

    def add_up(self, answers: Iterable[Rows]) -> dict[Limit, Use]:
        """Return the use of each limit, given the rows of the queries."""
        counted = {(queue, since): (count, oldest) for rows in answers for queue, since, count, oldest in rows}
        found: dict[Limit, Use] = {}
        for limit, queues in self._queues_by_limit.items():
            parts = [counted[key] for queue in queues if (key := (queue, self._since(limit))) in counted]
            oldest = min((first for _, first in parts if first is not None), default=None)
            found[limit] = Use(min(sum(count for count, _ in parts), limit.maximum), oldest)
        return found

    def _since(self, limit: Limit) -> int | None:
        return self._now - limit.seconds * SECOND if limit.seconds else None


class LimitUse:
    """What is left of the limits that the claims of one batch count towards."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._headrooms: dict[Limit, Headroom] = {}
        self._locked: set[Limit] = set()
        self.skipped_locked = False
        """Whether a limit was skipped, because another transaction has locked it."""

    def knows(self, limits: Iterable[Limit]) -> bool:
        """Return whether all these limits were estimated or counted."""
        return all(limit in self._headrooms for limit in limits)

    def estimate(self, queues: Collection[LimitedQueue], limits: Iterable[Limit]) -> None:
        """Estimate limits. Those of workflows are counted in these queues only; shared ones count as unused."""
        unknown = {limit for limit in limits if limit not in self._headrooms}
        self._headrooms |= {limit: Headroom(limit.maximum, None) for limit in unknown}
        self._count([limit for limit in unknown if limit.of == "workflow"], queues)

    def lock(self, limits: Iterable[Limit], *, wait: bool) -> None:
        """Lock limits and count them over all their queues; without `wait`, those that are locked have no headroom.

        Waiting once, in one order, cannot deadlock. Waiting again could.
        """
        wanted = {limit for limit in limits if limit not in self._locked}
        if not wanted:
            return
        names = sorted({_lock_name(limit) for limit in wanted})
        names_by_scope = {
            scope: sorted({limit.name for limit in wanted if limit.of == scope})
            for scope in ("kind", "workflow", "provider")
        }
        locked, sharing = self._connection.fetch_all([
            ("lock_refs" if wait else "try_lock_refs", {"keys": [(name,) for name in names]}),
            ("queues_sharing", {f"{scope}s": found for scope, found in names_by_scope.items()}),
        ])  # fmt: skip
        if not wait:
            granted = {row[0] for row in locked}
            busy = {limit for limit in wanted if _lock_name(limit) not in granted}
            self.skipped_locked |= bool(busy)
            self._headrooms |= {limit: Headroom(0, None) for limit in busy}
            wanted -= busy
        self._locked |= wanted
        self._count(wanted, [Queue(*row) for row in sharing])

    def _count(self, limits: Collection[Limit], queues: Iterable[Queue | LimitedQueue]) -> None:
        now = self._connection.now()
        count = UseCount(limits, queues, now)
        if queries := count.named_queries():
            found = count.add_up(self._connection.fetch_all(queries))
            self._headrooms |= {limit: limit.headroom(*use, now) for limit, use in found.items()}

    def free(self, limits: Iterable[Limit], most: int) -> int:
        """Return how many more tasks these limits allow to start, at most `most`."""
        return min([most, *(self._headrooms[limit].free for limit in limits)])

    def take(self, limits: Iterable[Limit]) -> None:
        """Count a task that will start with this batch."""
        for limit in limits:
            headroom = self._headrooms[limit]
            self._headrooms[limit] = headroom._replace(free=headroom.free - 1)

    def available_at(self, limits: Iterable[Limit]) -> int | None:
        """Return when the first exhausted rate among these limits allows another start."""
        exhausted = (self._headrooms[limit] for limit in limits if limit in self._headrooms)
        times = [room.available_at for room in exhausted if room.free <= 0 and room.available_at is not None]
        return min(times, default=None)


def _lock_name(limit: Limit) -> str:
    return f"limit of {limit.of} {limit.name}"
