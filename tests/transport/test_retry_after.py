"""The Retry-After header."""

import pytest

from callsheet.transport.retry_after import parse_retry_after

NOW = 1_792_000_000.0  # Wed, 14 Oct 2026 17:46:40 GMT


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0), ("5", 5.0), (" 5 ", 5.0), ("2.5", 2.5), ("86400", 60.0),
        ("Wed, 14 Oct 2026 17:46:50 GMT", 10.0), ("Wed, 14 Oct 2026 18:46:40 GMT", 60.0),
        ("Wed, 14 Oct 2026 16:46:40 GMT", 0.0),
    ],
)  # fmt: skip
def test_seconds_and_dates_are_parsed_and_bounded(header: str, seconds: float) -> None:
    assert parse_retry_after(header, now=lambda: NOW) == seconds


@pytest.mark.parametrize("header", [None, "", "soon", "-1", "1e9", "nan", "inf", "٣", "Wed, 99 Oct 2026 17:46:50 GMT"])
def test_without_a_valid_header_the_default_is_returned(header: str | None) -> None:
    assert parse_retry_after(header) == 0.0
    assert parse_retry_after(header, default_seconds=5.0) == 5.0
