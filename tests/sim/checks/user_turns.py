"""A second reading of the fair order: while a user waits, no other user of the same tenant starts again and again.

It reads which tasks wait and which start, and none of the ranks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.sim.checks.inspector import Inspector

Line = tuple[str, int, str]
"""Queue, priority and tenant."""
_WAITING = (
    "SELECT t.id, t.queue, t.priority, t.tenant, j.user_id FROM task t JOIN job j ON j.id = t.job_id WHERE t.ready = 1"
)
_STARTED = "SELECT requeues FROM task WHERE id = ? AND status = 'running'"
_STARTS_MAX = 2
"""Starts of one user while another one waits: users take turns, and may arrive in the middle of a round."""


class UserTurns:
    """Compares the waiting tasks before and after each commit."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._waiting: dict[str, tuple[Line, str]] = {}
        self._starts_of_others: dict[tuple[Line, str], Counter[str]] = defaultdict(Counter)
        """By line and waiting user: the starts of each other user since then."""
        self._withdrew: set[tuple[Line, str]] = set()
        """Users whose later tasks keep their late places, because they withdrew earlier ones."""

    def check(self) -> Iterator[str]:
        """Yield the users who waited too long."""
        before, self._waiting = self._waiting, self._read_waiting()
        started: dict[Line, list[tuple[str, bool]]] = defaultdict(list)
        for task, (line, user) in before.items():
            if self._waiting.get(task) == (line, user):
                continue
            if not (found := self._inspector.rows(_STARTED, task)):
                self._withdrew.add((line, user))
            else:
                started[line].append((user, found[0][0] > 0))
        for line, starts in started.items():
            yield from self._count_starts(line, starts, {user for other, user in before.values() if other == line})
        for key in [key for key in self._starts_of_others | dict.fromkeys(self._withdrew) if not self._waits(key)]:
            self._starts_of_others.pop(key, None)
            self._withdrew.discard(key)

    def _count_starts(self, line: Line, starts: list[tuple[str, bool]], waiting: set[str]) -> Iterator[str]:
        """Count the starts of users, each with whether the task was requeued: such a task goes to the front."""
        for user in waiting:
            key = (line, user)
            if user in {starter for starter, _ in starts}:
                self._starts_of_others.pop(key, None)
                continue
            self._starts_of_others[key].update(starter for starter, requeued in starts if not requeued)
            for other, count in self._starts_of_others[key].items():
                if count > _STARTS_MAX and key not in self._withdrew:
                    yield f"V6 {other} started {count} tasks in {line} while {user} waited"

    def _waits(self, key: tuple[Line, str]) -> bool:
        return key in self._waiting.values()

    def _read_waiting(self) -> dict[str, tuple[Line, str]]:
        rows = self._inspector.rows(_WAITING)
        return {task: ((queue, priority, tenant), user) for task, queue, priority, tenant, user in rows}
