"""Numbers with their noun and verb, in singular or plural."""

import pytest

from callsheet.core.model.errors import InsufficientCredits
from callsheet.core.model.plural import pluralize


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (-1, "-1 tasks"), (1_000_000, "1000000 tasks"), (1.0, "1 task"),
     (0.5, "0.5 tasks"), (90.0, "90 tasks")],
)  # fmt: skip
def test_the_noun_agrees_with_its_number(number: float, expected: str) -> None:
    assert pluralize(number, "task") == expected


@pytest.mark.parametrize(
    ("verb", "singular", "plural"),
    [("is", "is", "are"), ("has", "has", "have"), ("was", "was", "were"), ("waits", "waits", "wait")],
)
def test_the_verb_agrees_with_its_number(verb: str, singular: str, plural: str) -> None:
    assert (pluralize(1, "worker", verb=verb), pluralize(2, "worker", verb=verb)) == (
        f"1 worker {singular}",
        f"2 workers {plural}",
    )


def test_a_price_of_one_credit_is_singular() -> None:
    assert str(InsufficientCredits(1, 0)).startswith("The job costs 1 credit and the balance is 0")
