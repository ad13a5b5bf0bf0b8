"""One is one, and not ones."""

import pytest

from callsheet.core.model.errors import InsufficientCredits
from callsheet.core.model.plural import pluralize


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (-1, "-1 tasks"), (1_000_000, "1000000 tasks"), (1.0, "1 task"),
     (0.5, "0.5 tasks"), (90.0, "90 tasks")],
)  # fmt: skip
def test_a_number_has_its_noun(number: float, said: str) -> None:
    assert pluralize(number, "task") == said


@pytest.mark.parametrize(
    ("verb", "one", "two"),
    [("is", "is", "are"), ("has", "has", "have"), ("was", "was", "were"), ("waits", "waits", "wait")],
)
def test_and_its_verb(verb: str, one: str, two: str) -> None:
    assert (pluralize(1, "worker", verb=verb), pluralize(2, "worker", verb=verb)) == (
        f"1 worker {one}",
        f"2 workers {two}",
    )


def test_what_costs_one_credit_says_so() -> None:
    assert str(InsufficientCredits(1, 0)).startswith("The job costs 1 credit and the balance is 0")
