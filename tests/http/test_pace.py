"""How often a worker may beat: by the beats, for each task that it may have in hand."""

import pytest

from callsheet.http.problem import Problem
from callsheet.http.strikes import Pace


class Paced:
    """A pace with a clock of its own."""

    def __init__(self, per_second: float) -> None:
        self.now = 0.0
        self.pace = Pace(per_second, lambda: self.now)

    def wait(self, places: int, beats: int, worker: str = "w") -> int:
        """Beat, and return how long to wait instead; 0 if it was heard."""
        try:
            self.pace.take(worker, places, beats)
        except Problem as problem:
            return int(problem.headers["retry-after"])
        return 0


@pytest.mark.parametrize("beats", [1, 2, 5])
def test_as_many_beats_are_heard_as_may_be_however_they_are_put_together(beats: int) -> None:
    paced = Paced(10)
    heard = 0
    for _ in range(200):  # twenty seconds
        paced.now += 0.1
        for _ in range(9):
            heard += 0 if paced.wait(1, beats) else beats
    assert 200 <= heard <= 200 + 10 + beats


def test_more_tasks_are_more_beats_and_every_worker_has_its_own() -> None:
    paced = Paced(2)
    assert paced.wait(100, 200) == 0
    assert paced.wait(100, 1) == 1
    assert paced.wait(1, 2, "other") == 0


@pytest.mark.parametrize(("places", "beats"), [(1, 1), (1, 57), (7, 100), (1000, 1000), (3, 0)])
def test_who_waits_as_it_is_told_is_heard_and_a_second_less_is_too_soon(places: int, beats: int) -> None:
    paced = Paced(1)
    while not (wait := paced.wait(places, beats)):
        pass
    for _ in range(wait - 1):
        paced.now += 1
        assert paced.wait(places, beats) > 0
    paced.now += 1
    assert paced.wait(places, beats) == 0


@pytest.mark.parametrize("per_second", [0, 0.1, 1, 20])
@pytest.mark.parametrize("places", [1, 3, 1000])
def test_a_worker_that_beats_once_for_each_lease_never_waits_longer_than_two_seconds(
    per_second: float, places: int
) -> None:
    """So no lease of three seconds or more is lost by it, whatever the settings say."""
    paced = Paced(per_second)
    waits = set()
    for _ in range(500):
        paced.now += 0.07
        waits.add(wait := paced.wait(places, places))
        paced.now += wait
        assert not wait or not paced.wait(places, places)
    assert max(waits) <= 2
