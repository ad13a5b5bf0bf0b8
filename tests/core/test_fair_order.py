"""Fair order: a flooding tenant never starves another, weights share by weight, and queues take turns."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.rows import Job, Task
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.fair_order import STRIDE, QueueHead, order_queues
from tests.core.rule_harness import DRAW, CoreHarness

FREE = replace(DRAW, price=0)


def _world(**weights: int) -> CoreHarness:
    harness = CoreHarness(FREE, initial_credits=0)
    for tenant, weight in weights.items():
        harness.do(c.PutTenant(tenant=tenant, weight=weight))
    return harness


def _submit(harness: CoreHarness, tenant: str, count: int = 1, **more: object) -> None:
    command = c.Submit(tenant=tenant, user="u", workflow="draw", **more)  # type: ignore[arg-type]
    assert all(isinstance(result, c.SubmitResult) for result in harness.batch(*[command] * count))


def _served(harness: CoreHarness, count: int) -> list[str]:
    return [leased.tenant for leased in harness.claim(count)]


@given(st.integers(1, 80), st.integers(0, 80))
@settings(max_examples=25, deadline=None)
def test_the_other_tenants_task_is_near_the_head_of_a_flood(flood: int, served_before: int) -> None:
    """V6: however many wait, only the head goes before it."""
    harness = _world(flood=1, quiet=1)
    _submit(harness, "flood", flood + 1)
    harness.claim(min(served_before, flood) or 1)
    _submit(harness, "flood")
    _submit(harness, "quiet")
    assert "quiet" in _served(harness, 2)


@given(st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_tenants_share_by_their_weights(one: int, two: int) -> None:
    harness = _world(a=one, b=two)
    _submit(harness, "a", 60)
    _submit(harness, "b", 60)
    window = 40
    shares = Counter(_served(harness, window))
    assert abs(shares["a"] - window * one / (one + two)) <= 2


def test_one_to_three_is_one_to_three_over_a_window() -> None:
    harness = _world(a=1, b=3)
    for _ in range(20):
        _submit(harness, "a", 2)
        _submit(harness, "b", 2)
    assert Counter(_served(harness, 40)) == {"a": 10, "b": 30}


def test_priority_goes_before_fairness_and_the_older_task_before_the_younger() -> None:
    """R190, R197."""
    harness = _world(a=1, b=1)
    _submit(harness, "a", 3)
    _submit(harness, "b", priority=90)
    _submit(harness, "b", priority=10)
    leased = harness.claim(5)
    assert [one.tenant for one in leased] == ["b", "a", "a", "a", "b"]
    ids = [one.lease.job_id for one in leased if one.tenant == "a"]
    created = [job.id for job in harness.all(Job) if job.id in ids]
    assert ids == created


def test_a_tenant_that_was_away_gets_no_credit_for_it() -> None:
    """Time not used is lost: whoever comes back shares from now on."""
    harness = _world(busy=1, back=1)
    _submit(harness, "busy", 50)
    harness.claim(30)
    _submit(harness, "back", 20)
    shares = Counter(_served(harness, 20))
    assert abs(shares["busy"] - shares["back"]) <= 2


def test_ranks_grow_by_one_stride_over_the_tenants_weight() -> None:
    harness = _world(heavy=4)
    _submit(harness, "heavy", 3)
    assert sorted(task.rank for task in harness.all(Task)) == [STRIDE // 4, STRIDE // 2, 3 * STRIDE // 4]


def test_a_task_given_back_is_at_the_head_again() -> None:
    """R260: it is available at the next poll, before those that came after it."""
    harness = _world(a=1, b=1)
    _submit(harness, "a", 3)
    _submit(harness, "b", 3)
    [first] = harness.claim()
    harness.claim(2)
    harness.do(c.Requeue(lease=first.lease, reason="spot"))
    [again] = harness.claim()
    assert again.lease.task_id == first.lease.task_id


def test_a_task_given_back_does_not_pull_the_queues_time_back() -> None:
    """Its rank is the head's, so a newcomer is not placed before everybody who waits."""
    harness = _world(a=1, b=1)
    _submit(harness, "a", 30)
    [first] = harness.claim()
    harness.claim(20)
    head = min(_ready(harness))
    harness.do(c.Requeue(lease=first.lease, reason="spot"))
    assert min(_ready(harness)) == head
    _submit(harness, "b")
    assert sorted(_served(harness, 3)) == ["a", "a", "b"]


def _ready(harness: CoreHarness) -> list[int]:
    return [task.rank for task in harness.all(Task) if task.ready]


def test_a_changed_priority_moves_what_waits() -> None:
    harness = _world(a=1)
    _submit(harness, "a", 2)
    first, second = (task.job_id for task in sorted(harness.all(Task), key=lambda task: task.rank))
    assert harness.do(c.Update(tenant="a", job_id=second, priority=80)).changed
    assert [one.lease.job_id for one in harness.claim(2)] == [second, first]


def test_queues_go_by_the_priority_at_their_head_then_by_who_was_served_longest_ago() -> None:
    heads = [QueueHead("a", 50), QueueHead("b", 50), QueueHead("c", 90), QueueHead("d", 50)]
    assert order_queues(heads, {"a": 3, "b": 1, "c": 9}) == ["c", "d", "b", "a"]
    assert order_queues(heads, {}) == ["c", "a", "b", "d"]
    assert order_queues([], {"a": 1}) == []


def test_every_queue_of_equal_priority_gets_its_turn() -> None:
    served: dict[str, int] = {}
    heads = [QueueHead(name, 50) for name in "abcd"]
    order = []
    for now in range(1, 13):
        first = order_queues(heads, served)[0]
        served[first] = now
        order.append(first)
    assert order == list("abcd" * 3)


def test_an_unmatched_kind_blocks_nobody() -> None:
    """R188, R197: a worker gets what it can do, and nothing else."""
    harness = CoreHarness(
        FREE, WorkflowDefinition(name="cut", stages=[StageSpec(name="cut", kind="cut")]), initial_credits=0
    )
    harness.submit("cut", priority=100)
    harness.submit()
    [leased] = harness.claim(5)
    assert leased.kind == "draw"
    assert harness.claim(5, kinds=("paint",)) == []
