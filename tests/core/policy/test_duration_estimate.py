"""Duration estimates: percentiles by nearest rank; progress that never decreases and never reaches 100."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callsheet.core.policy.explanation.duration_estimate import SAMPLES_MIN, PastDurations, percentile

DURATIONS = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)
TEN = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


@pytest.mark.parametrize(
    ("numbers", "percent", "expected"),
    [
        ([7], 50, 7), ([7], 90, 7), ([1, 2], 50, 1), ([1, 2], 90, 2), ([1, 2, 3], 50, 2), (TEN, 50, 50), (TEN, 90, 90),
        (TEN, 100, 100), (TEN, 0, 10),
    ],
)  # fmt: skip
def test_a_percentile_is_the_nearest_rank(numbers: list[int], percent: int, expected: int) -> None:
    assert percentile(numbers, percent) == expected


@given(DURATIONS)
def test_a_percentile_is_a_recorded_duration_that_covers_its_share(durations: list[int]) -> None:
    past = PastDurations(durations)
    for duration, percent in ((past.p50, 50), (past.p90, 90)):
        assert duration in durations
        assert 100 * sum(one <= duration for one in durations) >= percent * len(durations)
    assert past.p50 <= past.p90


@given(DURATIONS, st.lists(st.integers(-5, 2 * 10**12), min_size=2))
def test_estimated_progress_never_decreases_and_never_reaches_100_percent(
    durations: list[int], moments: list[int]
) -> None:
    past = PastDurations(durations)
    estimates = [past.percent(elapsed) for elapsed in sorted(moments)]
    assert estimates == sorted(estimates)
    assert all(0 <= percent <= 99 for percent in estimates)


def test_estimated_progress_is_90_percent_at_the_p50_and_99_percent_at_the_p90() -> None:
    # R267
    past = PastDurations(TEN)
    assert [past.percent(elapsed) for elapsed in (0, 25, 50, 70, 90, 10**9)] == [0, 45, 90, 94, 99, 99]


@given(DURATIONS, st.integers(0, 10**12))
def test_the_remaining_time_is_estimated_from_the_jobs_that_took_longer(durations: list[int], elapsed: int) -> None:
    remaining = PastDurations(durations).remaining(elapsed)
    longer = [one for one in durations if one > elapsed]
    if not longer:
        assert remaining is None
        return
    assert remaining is not None
    p50, p90 = remaining
    assert 0 < p50 <= p90
    assert {p50 + elapsed, p90 + elapsed} <= set(longer)


def test_the_remaining_time_is_measured_from_now() -> None:
    past = PastDurations(TEN)
    assert past.remaining(0) == (50, 90)
    assert past.remaining(50) == (30, 50)
    assert past.remaining(99) == (1, 1)
    assert past.remaining(100) is None


def test_the_wait_is_the_median_duration_times_the_tasks_ahead_by_place() -> None:
    past = PastDurations(TEN)
    assert [past.estimate_wait(before, places) for before, places in ((0, 1), (1, 1), (3, 1), (4, 2), (1, 10))] == [
        0, 50, 150, 100, 5,
    ]  # fmt: skip


def test_an_estimate_needs_a_minimum_number_of_samples() -> None:
    assert not PastDurations([]).has_enough_samples
    assert not PastDurations([1] * (SAMPLES_MIN - 1)).has_enough_samples
    assert PastDurations([1] * SAMPLES_MIN).has_enough_samples


def test_zero_and_negative_durations_are_accepted() -> None:
    past = PastDurations([0] * 5 + [-3])
    assert (past.p50, past.p90, past.percent(0), past.remaining(0)) == (0, 0, 99, None)
