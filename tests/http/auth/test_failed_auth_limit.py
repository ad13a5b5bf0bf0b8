"""The count of failed authentications by IP address."""

import pytest

from callsheet.http.auth import failed_auth_limit
from callsheet.http.auth.failed_auth_limit import FailedAuthLimiter
from callsheet.http.server.problems import Problem

REFUSED = Problem(401, "invalid_key", "This key is unknown.")


def test_the_limit_is_per_address_and_ends_after_a_minute() -> None:
    now = [0.0]
    limiter = FailedAuthLimiter(2, lambda: now[0])
    for _ in range(2):
        limiter.record_failure("198.51.100.1", REFUSED)
    now[0] = 30.5
    with pytest.raises(Problem, match="Retry after 30 seconds") as limited:
        limiter.record_failure("198.51.100.1", REFUSED)
    assert (limited.value.status, limited.value.headers) == (429, {"retry-after": "30"})
    limiter.record_failure("198.51.100.2", REFUSED)
    now[0] = 60.0
    limiter.record_failure("198.51.100.1", REFUSED)


def test_many_addresses_take_a_bounded_amount_of_memory() -> None:
    limiter = FailedAuthLimiter(2)
    for number in range(3 * failed_auth_limit._TRACKED_MAX):  # noqa: SLF001
        limiter.record_failure(f"2001:db8::{number:x}", REFUSED)
    assert len(limiter._counts) <= failed_auth_limit._TRACKED_MAX  # noqa: SLF001
