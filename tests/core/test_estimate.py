"""Guesses from past durations: by nearest rank, never going back, never at 100 before the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callsheet.core.policy.duration_estimate import SAMPLES_MIN, PastDurations, percentile

DURATIONS = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)
TEN = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


@pytest.mark.parametrize(
    ("numbers", "percent", "expected"),
    [
        ([7], 50, 7), ([7], 90, 7), ([1, 2], 50, 1), ([1, 2], 90, 2), ([1, 2, 3], 50, 2), (TEN, 50, 50), (TEN, 90, 90),
        (TEN, 100, 100), (TEN, 0, 10),
    ],
)  # fmt: skip
def test_a_quantile_is_by_nearest_rank(numbers: list[int], percent: int, expected: int) -> None:
    assert percentile(numbers, percent) == expected


@given(DURATIONS)
def test_a_quantile_is_a_duration_that_happened_and_enough_are_no_longer(durations: list[int]) -> None:
    past = PastDurations(durations)
    for quantile, percent in ((past.p50, 50), (past.p90, 90)):
        assert quantile in durations
        assert 100 * sum(one <= quantile for one in durations) >= percent * len(durations)
    assert past.p50 <= past.p90


@given(DURATIONS, st.lists(st.integers(-5, 2 * 10**12), min_size=2))
def test_the_percent_never_goes_back_and_never_reaches_100(durations: list[int], moments: list[int]) -> None:
    past = PastDurations(durations)
    told = [past.percent(elapsed) for elapsed in sorted(moments)]
    assert told == sorted(told)
    assert all(0 <= percent <= 99 for percent in told)


def test_the_percent_begins_at_0_and_is_90_when_half_were_done_and_99_when_most_were() -> None:
    # R267
    past = PastDurations(TEN)
    assert [past.percent(elapsed) for elapsed in (0, 25, 50, 70, 90, 10**9)] == [0, 45, 90, 94, 99, 99]


@given(DURATIONS, st.integers(0, 10**12))
def test_what_remains_comes_from_those_that_took_longer(durations: list[int], elapsed: int) -> None:
    rest = PastDurations(durations).remaining(elapsed)
    longer = [one for one in durations if one > elapsed]
    if not longer:
        assert rest is None
        return
    assert rest is not None
    assert 0 < rest[0] <= rest[1]
    assert {rest[0] + elapsed, rest[1] + elapsed} <= set(longer)


def test_what_remains_is_counted_from_now() -> None:
    past = PastDurations(TEN)
    assert past.remaining(0) == (50, 90)
    assert past.remaining(50) == (30, 50)
    assert past.remaining(99) == (1, 1)
    assert past.remaining(100) is None


def test_the_start_is_so_many_turns_away() -> None:
    past = PastDurations(TEN)
    assert [past.estimate_wait(before, places) for before, places in ((0, 1), (1, 1), (3, 1), (4, 2), (1, 10))] == [
        0, 50, 150, 100, 5,
    ]  # fmt: skip


def test_a_few_durations_are_no_basis() -> None:
    assert not PastDurations([]).has_enough_samples
    assert not PastDurations([1] * (SAMPLES_MIN - 1)).has_enough_samples
    assert PastDurations([1] * SAMPLES_MIN).has_enough_samples


def test_durations_without_length_do_no_harm() -> None:
    past = PastDurations([0] * 5 + [-3])
    assert (past.p50, past.p90, past.percent(0), past.remaining(0)) == (0, 0, 99, None)
