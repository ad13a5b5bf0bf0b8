"""The rate limit of heartbeats: per worker, in proportion to its concurrency."""

import pytest

from callsheet.core.model.errors import RateLimited
from callsheet.dispatch.heartbeat_rate_limit import HeartbeatLimiter


class ClockedLimiter:
    """A heartbeat limiter with a controlled clock."""

    def __init__(self, per_second: float) -> None:
        self.now = 0.0
        self.heartbeat_limiter = HeartbeatLimiter(per_second, lambda: self.now)

    def wait(self, concurrency: int, heartbeats: int, worker: str = "w") -> int:
        """Send heartbeats and return the seconds to wait, or 0 if they were accepted."""
        try:
            self.heartbeat_limiter.acquire(worker, concurrency, heartbeats)
        except RateLimited as refusal:
            return refusal.retry_after_seconds
        return 0


@pytest.mark.parametrize("heartbeats", [1, 2, 5])
def test_the_rate_counts_heartbeats_and_not_requests(heartbeats: int) -> None:
    limiter = ClockedLimiter(10)
    accepted = 0
    for _ in range(200):  # twenty seconds
        limiter.now += 0.1
        for _ in range(9):
            accepted += 0 if limiter.wait(1, heartbeats) else heartbeats
    assert 200 <= accepted <= 200 + 10 + heartbeats


def test_the_limit_grows_with_the_concurrency_and_each_worker_has_its_own() -> None:
    limiter = ClockedLimiter(2)
    assert limiter.wait(100, 200) == 0
    assert limiter.wait(100, 1) == 1
    assert limiter.wait(1, 2, "other") == 0


@pytest.mark.parametrize(("concurrency", "heartbeats"), [(1, 1), (1, 57), (7, 100), (1000, 1000), (3, 0)])
def test_a_request_is_accepted_exactly_after_retry_after(concurrency: int, heartbeats: int) -> None:
    limiter = ClockedLimiter(1)
    while not (wait := limiter.wait(concurrency, heartbeats)):
        pass
    for _ in range(wait - 1):
        limiter.now += 1
        assert limiter.wait(concurrency, heartbeats) > 0
    limiter.now += 1
    assert limiter.wait(concurrency, heartbeats) == 0


@pytest.mark.parametrize("per_second", [0, 0.1, 1, 20])
@pytest.mark.parametrize("concurrency", [1, 3, 1000])
def test_a_worker_that_sends_one_heartbeat_per_lease_waits_at_most_two_seconds(
    per_second: float, concurrency: int
) -> None:
    """So the limit never makes a worker lose a lease of three seconds or more."""
    limiter = ClockedLimiter(per_second)
    waits = set()
    for _ in range(500):
        limiter.now += 0.07
        waits.add(wait := limiter.wait(concurrency, concurrency))
        limiter.now += wait
        assert not wait or not limiter.wait(concurrency, concurrency)
    assert max(waits) <= 2
