"""The fair order over thousands of starts: the shares of tenants and of their users.

`Scheduler` is a queue in memory that places tasks with the functions of the policy, without a database.
"""

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from callsheet.core.model.rows import Task
from callsheet.core.policy.fair_order import STRIDE, exchanges, next_rank
from callsheet.core.prefetched_facts import QueueTail
from callsheet.core.working_set import QueueExit

User = tuple[str, str]


class Scheduler:
    """One queue with tasks of one priority."""

    def __init__(self, **weights: int) -> None:
        self.weights = weights
        self.lines: dict[str, dict[str, Task]] = {tenant: {} for tenant in weights}
        self.started: list[Task] = []
        self._count = 0

    def submit(self, tenant: str, user: str, count: int = 1) -> None:
        for _ in range(count):
            self._count += 1
            line = self.lines[tenant].values()
            heads = [min(one, key=_by_rank).rank for other in self.lines.values() if (one := other.values())]
            last = max((task.rank for task in line), default=None)
            user_last = max((task.user_rank for task in line if task.user_id == user), default=None)
            task = Task(
                f"{self._count:06}", "", "", tenant, user, 1, "queue", "draw", 1, 1, 1, 0, "pending", 50, 1,
                next_rank(QueueTail(min(heads, default=None), last), STRIDE // self.weights[tenant]),
                next_rank(QueueTail(min((task.user_rank for task in line), default=None), user_last), STRIDE),
            )  # fmt: skip
            self.lines[tenant][task.id] = task

    def start(self, count: int = 1) -> list[User]:
        """Start the next tasks, and return their tenants and users."""
        for _ in range(count):
            first_turn = min((task for line in self.lines.values() for task in line.values()), key=_by_rank)
            line = self.lines[first_turn.tenant]
            self._leave(min(line.values(), key=_by_user_rank), first_turn, first=True)
            self.started.append(self._left)
        return [(task.tenant, task.user_id) for task in self.started[-count:]]

    def withdraw(self, tenant: str, user: str) -> None:
        """Withdraw all tasks of a user."""
        for task in [task for task in self.lines[tenant].values() if task.user_id == user]:
            self._leave(self.lines[tenant][task.id], max(self.lines[tenant].values(), key=_by_rank), first=False)

    def _leave(self, task: Task, other: Task, *, first: bool) -> None:
        line = self.lines[task.tenant]
        leaving = QueueExit((task.queue, task.priority, task.tenant), task.id, task.rank, first)
        self._left = line.pop(task.id)
        for _, staying in exchanges([leaving], [other] if other is not task else [], first=first):
            line[staying.id] = replace(staying, rank=task.rank)
            self._left = replace(task, rank=staying.rank)


def _by_rank(task: Task) -> tuple[int, str]:
    return task.rank, task.id


def _by_user_rank(task: Task) -> tuple[int, str]:
    return task.user_rank, task.id


def shares(starts: Iterable[User]) -> Counter[str]:
    return Counter(tenant for tenant, _ in starts)


def refill(scheduler: Scheduler, rng: random.Random, users: dict[str, list[str]], waiting: int) -> None:
    """Submit tasks of random users until each tenant has so many waiting tasks."""
    for tenant, names in users.items():
        while len(scheduler.lines[tenant]) < waiting:
            scheduler.submit(tenant, rng.choice(names), rng.choice((1, 1, 1, 5)))


@pytest.mark.parametrize("started_before", [0, 1, 37])
def test_a_new_user_starts_next_or_next_but_one_however_many_tasks_of_another_user_wait(started_before: int) -> None:
    scheduler = Scheduler(acme=1)
    scheduler.submit("acme", "flooder", 1_000)
    scheduler.start(started_before)
    scheduler.submit("acme", "new")
    assert ("acme", "new") in scheduler.start(2)


def test_the_share_of_a_tenant_does_not_depend_on_the_number_of_its_users() -> None:
    """Each tenant always has waiting tasks. Their users are one, thirty and a thousand."""
    rng = random.Random(3)
    users = {"one": ["u"], "some": [f"u{n}" for n in range(30)], "many": [f"u{n}" for n in range(1_000)]}
    scheduler = Scheduler(one=1, some=2, many=1)
    starts: list[User] = []
    for _ in range(300):
        refill(scheduler, rng, users, waiting=40)
        starts += scheduler.start(10)
    found = shares(starts)
    for tenant, expected in (("one", 0.25), ("some", 0.5), ("many", 0.25)):
        assert found[tenant] / len(starts) == pytest.approx(expected, abs=0.01), found


def test_users_who_arrive_one_after_the_other_do_not_add_to_the_share_of_their_tenant() -> None:
    """With strides that only grow with the number of users, each arrival would take an early turn."""
    scheduler = Scheduler(one=1, many=1)
    scheduler.submit("one", "u", 600)
    starts: list[User] = []
    for n in range(500):
        scheduler.submit("many", f"u{n}", 3)
        starts += scheduler.start(1)
    assert shares(starts)["one"] == pytest.approx(250, abs=2)


def test_users_of_a_tenant_share_equally_whatever_they_submit() -> None:
    rng = random.Random(5)
    scheduler = Scheduler(acme=1, other=3)
    scheduler.submit("acme", "flooder", 400)
    scheduler.submit("other", "u", 1_300)
    starts: list[User] = []
    for _ in range(400):
        for user in ("ann", "bea"):
            while sum(task.user_id == user for task in scheduler.lines["acme"].values()) < 5:
                scheduler.submit("acme", user, rng.choice((1, 4)))
        starts += scheduler.start(4)
    assert shares(starts)["acme"] == pytest.approx(400, abs=4)
    found = Counter(user for tenant, user in starts if tenant == "acme")
    for user in ("flooder", "ann", "bea"):
        assert found[user] == pytest.approx(400 / 3, rel=0.03), found


def test_the_tasks_of_a_user_start_in_the_order_in_which_they_were_submitted() -> None:
    rng = random.Random(7)
    users = {"acme": ["ann", "bea", "cat"], "bolt": ["ann", "dan"]}
    scheduler = Scheduler(acme=1, bolt=2)
    for _ in range(200):
        refill(scheduler, rng, users, waiting=20)
        scheduler.start(rng.choice((1, 5, 9)))
    for tenant, names in users.items():
        for name in names:
            own = [task.id for task in scheduler.started if (task.tenant, task.user_id) == (tenant, name)]
            assert own == sorted(own)
            assert len(own) > 50


def test_a_user_who_withdraws_many_tasks_does_not_leave_others_of_the_tenant_with_late_turns() -> None:
    scheduler = Scheduler(acme=1, other=1)
    scheduler.submit("acme", "flooder", 500)
    scheduler.submit("acme", "ann", 2)
    scheduler.submit("other", "u", 500)
    scheduler.withdraw("acme", "flooder")
    assert scheduler.start(4).count(("acme", "ann")) == 2


def test_no_turn_is_lost_or_used_twice() -> None:
    rng = random.Random(9)
    scheduler = Scheduler(acme=1, bolt=1)
    for tenant in ("acme", "bolt"):
        for _ in range(100):
            scheduler.submit(tenant, rng.choice("abcdefgh"), rng.choice((1, 1, 9)))
    before = [sorted(task.rank for task in line.values()) for line in scheduler.lines.values()]
    scheduler.start(200)
    for tenant, ranks in zip(("acme", "bolt"), before, strict=True):
        used = [task.rank for task in scheduler.started if task.tenant == tenant]
        waiting = [task.rank for task in scheduler.lines[tenant].values()]
        assert sorted(used + waiting) == ranks
        assert max(used) < min(waiting)
