"""Kinds and queues that anybody may name: what is kept of them in memory has an end, and losing it costs no work."""

import gc
import sys
from typing import Any

import pytest

from callsheet.config import Settings
from callsheet.core.commands import AddStage, Claim
from callsheet.core.limits import Limits
from callsheet.engine import offers
from callsheet.engine.hints import Hints
from tests.support.studio import Studio, stage

MANY = 30_000


def weight(hints: Hints) -> int:
    """Return the bytes of everything that hints hold on to."""
    seen: dict[int, int] = {}
    todo: list[object] = list(vars(hints).values())
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = sys.getsizeof(one)
        if isinstance(one, dict):
            todo += [*one, *one.values()]
        elif isinstance(one, list | tuple | set):
            todo += one
    return sum(seen.values())


def test_hints_of_ever_new_kinds_weigh_no_more_than_of_one() -> None:
    hints = Hints()
    for _ in range(MANY):
        hints.announce(["draw"])
    before = weight(hints)
    for number in range(MANY):
        hints.announce([f"kind-{number}"])
        hints.wait([f"never-{number}"], hints.mark([f"never-{number}"]), 0)
    assert weight(hints) < 2 * before


def test_what_is_expected_of_ever_new_kinds_has_an_end() -> None:
    hints = Hints()
    for number in range(MANY):
        hints.expect((f"kind-{number}",), 60)
    assert weight(hints) < 2_500_000
    assert hints.patience((f"kind-{MANY - 1}",), 600) < 61, "the newest is known"
    assert hints.patience(("kind-0",), 600) == 600, "one that was forgotten is looked for as ever"


def test_a_hint_is_heard_among_ever_new_kinds() -> None:
    hints = Hints()
    mark = hints.mark(["draw", "paint"])
    heard: list[str] = []
    assert hints.subscribe(["draw", "paint"], mark, lambda: heard.append("called"))
    hints.announce([f"kind-{number}" for number in range(MANY)])
    assert heard == []
    hints.announce(["paint"])
    assert heard == ["called"]
    assert not hints.subscribe(["draw", "paint"], mark, lambda: None), "there has been one since"


def test_jobs_bring_so_many_queues_to_a_workflow_and_use_those_there_are(open_studio: Any) -> None:
    """Every claim of a kind looks at each of its queues, whoever named them."""
    studio: Studio = open_studio(Settings(patience_seconds=5, limits=Limits(queues_per_workflow_max=3)))
    studio.workflow("own", price=2, stages=[], inline=True)
    studio.workflow("other", price=0, stages=[], inline=True)
    brought = [stage(name, "draw", provider=name) for name in ("a", "b")]
    job = studio.ask("own", stages=brought)
    before = studio.snapshot()
    for stages in ([stage(name, "draw", provider=name) for name in ("c", "d")], [stage(f"kind-{n}") for n in range(3)]):
        refusal = studio.refused(studio.submission("own", stages=stages))
        assert (refusal.code, refusal.details["max"]) == ("too_many_queues", 3)
    assert studio.snapshot() == before
    studio.ask("own", stages=[*brought, stage("paint")])
    refusal = studio.refused(AddStage(tenant="acme", job_id=job, stage=stage("sing")))
    assert (refusal.code, refusal.details) == ("too_many_queues", {"queues": 3, "max": 3})
    studio.do(AddStage(tenant="acme", job_id=job, stage=stage("paint")))
    studio.ask("other", stages=[stage("sing")])
    studio.workflow("whole", price=0, stages=[stage(f"kind-{number}") for number in range(9)])
    assert studio.status(studio.ask("whole")) == "queued", "what an operator wrote is no stranger's"


def test_queues_take_turns_although_the_oldest_turns_are_forgotten(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "_SERVED_MAX", 2)
    names = [f"w{number}" for number in range(4)]
    for name in names:
        studio.workflow(name, price=0, stages=[stage()])
    for name in names[1:]:
        studio.ask(name)
    taken = [one.workflow for _ in names[1:] for one in studio.engine.execute(Claim(worker_id="w1", kinds=("draw",)))]
    assert taken == names[1:]
    for name in reversed(names):
        studio.ask(name)
        studio.ask(name)
    taken = [one.workflow for _ in range(8) for one in studio.engine.execute(Claim(worker_id="w1", kinds=("draw",)))]
    assert sorted(taken) == sorted([*names, *names]), "nobody is left out"
    assert set(taken[:2]) == {"w0", "w1"}, "those that were served longest ago, or never, come first"
    kept = [one._served for one in gc.get_objects() if isinstance(one, offers.Offers)]  # noqa: SLF001 - its memory
    assert {len(mine) for mine in kept if f"draw/{taken[-1]}" in mine} == {2}
