"""How often a worker may beat: by the heartbeats, for each task that it may have in hand."""

import pytest

from callsheet.core.model.errors import RateLimited
from callsheet.dispatch.heartbeat_rate_limit import HeartbeatLimiter


class ClockedLimiter:
    """A pace with a clock of its own."""

    def __init__(self, per_second: float) -> None:
        self.now = 0.0
        self.heartbeat_limiter = HeartbeatLimiter(per_second, lambda: self.now)

    def wait(self, places: int, heartbeats: int, worker: str = "w") -> int:
        """Beat, and return how long to wait instead; 0 if it was heard."""
        try:
            self.heartbeat_limiter.acquire(worker, places, heartbeats)
        except RateLimited as refusal:
            return refusal.retry_after_seconds
        return 0


@pytest.mark.parametrize("heartbeats", [1, 2, 5])
def test_as_many_heartbeats_are_accepted_as_allowed_however_they_are_batched(heartbeats: int) -> None:
    paced = ClockedLimiter(10)
    heard = 0
    for _ in range(200):  # twenty seconds
        paced.now += 0.1
        for _ in range(9):
            heard += 0 if paced.wait(1, heartbeats) else heartbeats
    assert 200 <= heard <= 200 + 10 + heartbeats


def test_more_tasks_are_more_heartbeats_and_every_worker_has_its_own() -> None:
    paced = ClockedLimiter(2)
    assert paced.wait(100, 200) == 0
    assert paced.wait(100, 1) == 1
    assert paced.wait(1, 2, "other") == 0


@pytest.mark.parametrize(("places", "heartbeats"), [(1, 1), (1, 57), (7, 100), (1000, 1000), (3, 0)])
def test_a_worker_that_waits_for_retry_after_is_accepted_and_a_second_less_is_too_soon(
    places: int, heartbeats: int
) -> None:
    paced = ClockedLimiter(1)
    while not (wait := paced.wait(places, heartbeats)):
        pass
    for _ in range(wait - 1):
        paced.now += 1
        assert paced.wait(places, heartbeats) > 0
    paced.now += 1
    assert paced.wait(places, heartbeats) == 0


@pytest.mark.parametrize("per_second", [0, 0.1, 1, 20])
@pytest.mark.parametrize("places", [1, 3, 1000])
def test_a_worker_that_sends_one_heartbeat_for_each_lease_never_waits_longer_than_two_seconds(
    per_second: float, places: int
) -> None:
    """So no lease of three seconds or more is lost by it, whatever the settings say."""
    paced = ClockedLimiter(per_second)
    waits = set()
    for _ in range(500):
        paced.now += 0.07
        waits.add(wait := paced.wait(places, places))
        paced.now += wait
        assert not wait or not paced.wait(places, places)
    assert max(waits) <= 2
