"""Backoff between attempts."""

from itertools import islice

from callsheet.transport.backoff import backoff_delays, delay_after


def test_delays_double_up_to_the_maximum_and_are_drawn_from_their_upper_half() -> None:
    for failures, upper in [(0, 1.0), (1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (100_000, 5.0)]:
        delays = [delay_after(failures, 1.0, 5.0) for _ in range(100)]
        assert all(upper / 2 <= delay <= upper for delay in delays)
        assert len(set(delays)) > 1


def test_the_delays_of_one_call_grow_and_do_not_end() -> None:
    delays = list(islice(backoff_delays(1.0, 8.0), 50))
    assert delays[0] <= 1.0
    assert all(4.0 <= delay <= 8.0 for delay in delays[3:])
