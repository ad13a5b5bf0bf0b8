"""A simulation that finds nothing proves nothing: every planted bug is found, and by no fault of its own."""

from functools import cache

import pytest

from tests.sim.life import live
from tests.sim.planted_fleet import BUGS, Bug

SEEDS_MAX = 60
MISTAKES = ("AttributeError", "ImportError", "NameError", "TypeError", "still misses")
"""What a plant gives rise to that no longer fits the code it is planted in."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_within_a_few_lives(bug: Bug, monkeypatch):
    seed, findings = _first_broken(bug, monkeypatch)
    assert findings, f"{SEEDS_MAX} lives did not notice that {bug.name.replace('_', ' ')}"
    assert not any(error in findings[0] for error in MISTAKES), "the plant itself does not work"
    assert _sound(seed), "the same life is sound without the bug"


def test_there_are_many_kinds_of_bugs():
    assert len(BUGS) >= 20


@cache
def _sound(seed: int) -> bool:
    return live(seed).broken == []


def _first_broken(bug: Bug, monkeypatch) -> tuple[int, list[str]]:
    with monkeypatch.context() as patch:
        bug.plant(patch)
        for seed in range(SEEDS_MAX):
            if findings := live(seed).broken:
                return seed, findings
    return SEEDS_MAX, []
