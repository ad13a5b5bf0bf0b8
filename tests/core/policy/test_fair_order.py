"""Fair order: no tenant starves another, tenants share by weight, and queues take turns."""

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


def _harness_with_tenants(**weights: int) -> CoreHarness:
    harness = CoreHarness(FREE, initial_credits=0)
    for tenant, weight in weights.items():
        harness.do(c.PutTenant(tenant=tenant, weight=weight))
    return harness


def _submit(harness: CoreHarness, tenant: str, count: int = 1, **more: object) -> None:
    command = c.Submit(tenant=tenant, user="u", workflow="draw", **more)  # type: ignore[arg-type]
    assert all(isinstance(result, c.SubmitResult) for result in harness.batch(*[command] * count))


def _claimed_tenants(harness: CoreHarness, count: int) -> list[str]:
    return [leased.tenant for leased in harness.claim(count)]


@given(st.integers(1, 80), st.integers(0, 80))
@settings(max_examples=25, deadline=None)
def test_the_task_of_another_tenant_is_claimed_early_however_many_tasks_wait(many: int, claimed_before: int) -> None:
    """V6."""
    harness = _harness_with_tenants(busy=1, other=1)
    _submit(harness, "busy", many + 1)
    harness.claim(min(claimed_before, many) or 1)
    _submit(harness, "busy")
    _submit(harness, "other")
    assert "other" in _claimed_tenants(harness, 2)


@given(st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_tenants_share_by_their_weights(weight_a: int, weight_b: int) -> None:
    harness = _harness_with_tenants(a=weight_a, b=weight_b)
    _submit(harness, "a", 60)
    _submit(harness, "b", 60)
    window = 40
    shares = Counter(_claimed_tenants(harness, window))
    assert abs(shares["a"] - window * weight_a / (weight_a + weight_b)) <= 2


def test_weights_of_one_and_three_share_exactly_one_to_three() -> None:
    harness = _harness_with_tenants(a=1, b=3)
    for _ in range(20):
        _submit(harness, "a", 2)
        _submit(harness, "b", 2)
    assert Counter(_claimed_tenants(harness, 40)) == {"a": 10, "b": 30}


def test_a_higher_priority_is_claimed_first_and_then_the_older_task() -> None:
    """R190."""
    harness = _harness_with_tenants(a=1, b=1)
    _submit(harness, "a", 3)
    _submit(harness, "b", priority=90)
    _submit(harness, "b", priority=10)
    leased = harness.claim(5)
    assert [one.tenant for one in leased] == ["b", "a", "a", "a", "b"]
    ids = [one.lease.job_id for one in leased if one.tenant == "a"]
    created = [job.id for job in harness.all(Job) if job.id in ids]
    assert ids == created


def test_an_idle_tenant_does_not_save_up_its_share() -> None:
    harness = _harness_with_tenants(busy=1, idle=1)
    _submit(harness, "busy", 50)
    harness.claim(30)
    _submit(harness, "idle", 20)
    shares = Counter(_claimed_tenants(harness, 20))
    assert abs(shares["busy"] - shares["idle"]) <= 2


def test_the_rank_grows_by_the_stride_divided_by_the_weight() -> None:
    harness = _harness_with_tenants(heavy=4)
    _submit(harness, "heavy", 3)
    assert sorted(task.rank for task in harness.all(Task)) == [STRIDE // 4, STRIDE // 2, 3 * STRIDE // 4]


def test_a_requeued_task_is_claimed_next() -> None:
    """R260."""
    harness = _harness_with_tenants(a=1, b=1)
    _submit(harness, "a", 3)
    _submit(harness, "b", 3)
    [first] = harness.claim()
    harness.claim(2)
    harness.do(c.Requeue(lease=first.lease, reason="spot"))
    [next_claim] = harness.claim()
    assert next_claim.lease.task_id == first.lease.task_id


def test_a_requeued_task_gets_the_rank_at_the_head_of_the_queue() -> None:
    """With its old rank, a new task of another tenant would be placed before all waiting tasks."""
    harness = _harness_with_tenants(a=1, b=1)
    _submit(harness, "a", 30)
    [first] = harness.claim()
    harness.claim(20)
    head = min(_ready_ranks(harness))
    harness.do(c.Requeue(lease=first.lease, reason="spot"))
    assert min(_ready_ranks(harness)) == head
    _submit(harness, "b")
    assert sorted(_claimed_tenants(harness, 3)) == ["a", "a", "b"]


def _ready_ranks(harness: CoreHarness) -> list[int]:
    return [task.rank for task in harness.all(Task) if task.ready]


def test_a_changed_priority_moves_waiting_tasks() -> None:
    harness = _harness_with_tenants(a=1)
    _submit(harness, "a", 2)
    first, second = (task.job_id for task in sorted(harness.all(Task), key=lambda task: task.rank))
    assert harness.do(c.Update(tenant="a", job_id=second, priority=80)).changed
    assert [one.lease.job_id for one in harness.claim(2)] == [second, first]


def test_queues_are_ordered_by_the_priority_at_their_head_and_then_by_their_last_claim() -> None:
    heads = [QueueHead("a", 50), QueueHead("b", 50), QueueHead("c", 90), QueueHead("d", 50)]
    assert order_queues(heads, {"a": 3, "b": 1, "c": 9}) == ["c", "d", "b", "a"]
    assert order_queues(heads, {}) == ["c", "a", "b", "d"]
    assert order_queues([], {"a": 1}) == []


def test_queues_of_equal_priority_take_turns() -> None:
    served: dict[str, int] = {}
    heads = [QueueHead(name, 50) for name in "abcd"]
    order = []
    for now in range(1, 13):
        first = order_queues(heads, served)[0]
        served[first] = now
        order.append(first)
    assert order == list("abcd" * 3)


def test_a_worker_gets_tasks_of_its_kinds_and_other_kinds_do_not_block_them() -> None:
    """R187, R197."""
    harness = CoreHarness(
        FREE, WorkflowDefinition(name="cut", stages=[StageSpec(name="cut", kind="cut")]), initial_credits=0
    )
    harness.submit("cut", priority=100)
    harness.submit()
    [leased] = harness.claim(5)
    assert leased.kind == "draw"
    assert harness.claim(5, kinds=("paint",)) == []
