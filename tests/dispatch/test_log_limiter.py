"""The log limiter keeps a worker's log lines within a rate and drops the rest, with bounded memory."""

from callsheet.dispatch import token_buckets
from callsheet.dispatch.log_rate_limit import LogLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


NOTICE = "Lines were dropped here: a worker may log 100 bytes per second (log_bytes_per_second_max)."


def test_lines_within_the_rate_are_kept_and_the_rest_is_dropped_with_one_notice() -> None:
    clock = Clock()
    limiter = LogLimiter(100, clock)
    assert limiter.limit_lines("w1", ["a" * 60]) == ("a" * 60,)
    assert limiter.limit_lines("w1", ["b" * 60, "c", "d"]) == ("b" * 60, NOTICE)
    assert limiter.limit_lines("w1", ["e"] * 5) == ()
    assert limiter.limit_lines("w2", ["f"]) == ("f",), "each worker has its own rate"
    clock.now += 1
    assert limiter.limit_lines("w1", ["g" * 50, "h" * 50]) == ("g" * 50, "h" * 50)
    assert limiter.limit_lines("w1", ["i"]) == ()


def test_a_long_line_is_paid_for_later() -> None:
    clock = Clock()
    limiter = LogLimiter(100, clock)
    assert limiter.limit_lines("w1", ["ü" * 200]) == ("ü" * 200,)
    clock.now += 2
    assert limiter.limit_lines("w1", ["a"]) == ()
    clock.now += 1.1
    assert limiter.limit_lines("w1", ["a"]) == ("a",)


def test_the_limiter_remembers_a_bounded_number_of_workers() -> None:
    limiter = LogLimiter(100, Clock())
    for number in range(3 * token_buckets._TRACKED_MAX):  # noqa: SLF001 - the bound
        limiter.limit_lines(f"w{number}", ["a"])
    assert len(limiter._buckets._buckets) <= token_buckets._TRACKED_MAX  # noqa: SLF001 - the memory that it uses
