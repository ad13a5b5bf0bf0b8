"""Kinds and queues with names that clients choose: their memory is bounded, and dropping it loses no work."""

import gc
import sys
from typing import Any

import pytest

from callsheet.core.model.commands import AddStage, Claim
from callsheet.core.policy.engine_limits import Limits
from callsheet.engine import candidates
from callsheet.engine.hints import Hints
from callsheet.settings import Settings
from tests.support.engine.engine_harness import EngineHarness, stage

MANY = 30_000


def memory_bytes(hints: Hints) -> int:
    """Return the bytes of all objects that hints refer to."""
    seen: dict[int, int] = {}
    pending: list[object] = list(vars(hints).values())
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = sys.getsizeof(one)
        if isinstance(one, dict):
            pending += [*one, *one.values()]
        elif isinstance(one, list | tuple | set):
            pending += one
    return sum(seen.values())


def test_hints_for_many_kinds_use_bounded_memory() -> None:
    hints = Hints()
    for _ in range(MANY):
        hints.announce(["draw"])
    before = memory_bytes(hints)
    for number in range(MANY):
        hints.announce([f"kind-{number}"])
        hints.wait([f"never-{number}"], hints.mark([f"never-{number}"]), 0)
    assert memory_bytes(hints) < 2 * before


def test_expected_work_of_many_kinds_uses_bounded_memory() -> None:
    hints = Hints()
    for number in range(MANY):
        hints.expect_work_in((f"kind-{number}",), 60)
    assert memory_bytes(hints) < 2_500_000
    assert hints.poll_delay((f"kind-{MANY - 1}",), 600) < 61, "the newest is known"
    assert hints.poll_delay(("kind-0",), 600) == 600, "a dropped kind has the normal poll interval"


def test_a_hint_reaches_its_subscriber_among_many_kinds() -> None:
    hints = Hints()
    mark = hints.mark(["draw", "paint"])
    calls: list[str] = []
    assert hints.subscribe(["draw", "paint"], mark, lambda: calls.append("called"))
    hints.announce([f"kind-{number}" for number in range(MANY)])
    assert calls == []
    hints.announce(["paint"])
    assert calls == ["called"]
    assert not hints.subscribe(["draw", "paint"], mark, lambda: None), "a hint was announced since the mark"


def test_inline_stages_add_a_limited_number_of_queues_to_a_workflow(open_harness: Any) -> None:
    """A claim of a kind looks at each of its queues, so clients cannot add any number of them."""
    harness: EngineHarness = open_harness(Settings(database_retry_seconds=5, limits=Limits(queues_per_workflow_max=3)))
    harness.workflow("own", price=2, stages=[], inline=True)
    harness.workflow("other", price=0, stages=[], inline=True)
    inline_stages = [stage(name, "draw", provider=name) for name in ("a", "b")]
    job = harness.submit_job("own", stages=inline_stages)
    before = harness.snapshot()
    for stages in ([stage(name, "draw", provider=name) for name in ("c", "d")], [stage(f"kind-{n}") for n in range(3)]):
        refusal = harness.expect_refusal(harness.submission("own", stages=stages))
        assert (refusal.code, refusal.details["max"]) == ("too_many_queues", 3)
    assert harness.snapshot() == before
    harness.submit_job("own", stages=[*inline_stages, stage("paint")])
    refusal = harness.expect_refusal(AddStage(tenant="acme", job_id=job, stage=stage("sing")))
    assert (refusal.code, refusal.details) == ("too_many_queues", {"queues": 3, "max": 3})
    harness.do(AddStage(tenant="acme", job_id=job, stage=stage("paint")))
    harness.submit_job("other", stages=[stage("sing")])
    harness.workflow("whole", price=0, stages=[stage(f"kind-{number}") for number in range(9)])
    assert harness.status(harness.submit_job("whole")) == "queued", "the limit does not apply to an operator's workflow"


def test_queues_take_turns_although_only_the_last_turns_are_remembered(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "_SERVED_MAX", 2)
    names = [f"w{number}" for number in range(4)]
    for name in names:
        harness.workflow(name, price=0, stages=[stage()])
    for name in names[1:]:
        harness.submit_job(name)
    taken = [one.workflow for _ in names[1:] for one in harness.engine.execute(Claim(worker_id="w1", kinds=("draw",)))]
    assert taken == names[1:]
    for name in reversed(names):
        harness.submit_job(name)
        harness.submit_job(name)
    taken = [one.workflow for _ in range(8) for one in harness.engine.execute(Claim(worker_id="w1", kinds=("draw",)))]
    assert sorted(taken) == sorted([*names, *names]), "no queue is left out"
    assert set(taken[:2]) == {"w0", "w1"}, "the queues that were served longest ago, or never, come first"
    kept = [one._served for one in gc.get_objects() if type(one) is candidates.CandidateSelector]  # noqa: SLF001 - its memory
    assert {len(mine) for mine in kept if f"draw/{taken[-1]}" in mine} == {2}
