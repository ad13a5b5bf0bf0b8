"""The engine's time never goes back, and after a step back of the database's clock it continues from where it was."""

from contextlib import closing

import pytest

from callsheet.core.model.clock import SECOND
from callsheet.engine import Engine
from callsheet.engine.engine import database_for
from callsheet.settings import Settings
from callsheet.store.steady_clock import SteadyClock

HOUR, YEAR = 3_600 * SECOND, 365 * 86_400 * SECOND
START = 1_767_225_600 * SECOND


@pytest.fixture
def clock() -> SteadyClock:
    clock = SteadyClock()
    assert clock.read(START) == START
    return clock


def test_it_is_the_clock_of_the_database_while_that_runs_ahead(clock: SteadyClock) -> None:
    assert [clock.read(START + ahead) for ahead in (1, SECOND, YEAR)] == [START + 1, START + SECOND, START + YEAR]


def test_a_small_step_back_stops_the_time_until_the_database_has_caught_up(clock: SteadyClock) -> None:
    readings = (-5 * SECOND, -4 * SECOND, -1, 0, 1)
    assert [clock.read(START + reading) for reading in readings] == [START] * 4 + [START + 1]


@pytest.mark.parametrize("step", [6 * SECOND, HOUR, YEAR])
def test_a_large_step_back_does_not_stop_the_time(clock: SteadyClock, step: int) -> None:
    times = [clock.read(START - step + passed * SECOND) for passed in range(5)]
    assert times == [START + passed * SECOND * 9 // 10 for passed in range(5)]


def test_ahead_of_the_database_the_time_runs_a_tenth_slower_until_it_has_caught_up(clock: SteadyClock) -> None:
    minute = 60 * SECOND
    times = [clock.read(START - HOUR + passed * minute) for passed in range(660)]
    assert times[:590] == [START + passed * minute * 9 // 10 for passed in range(590)]
    assert times[600:] == [START - HOUR + passed * minute for passed in range(600, 660)]
    assert times == sorted(times)


def test_a_clock_that_was_wrong_for_a_while_leaves_no_trace(clock: SteadyClock) -> None:
    """A machine that starts with a dead battery is years behind until it has asked a time server."""
    assert clock.read(START - 50 * YEAR) == START
    clock.read(START - 50 * YEAR + 60 * SECOND)
    assert clock.read(START + 61 * SECOND) == START + 61 * SECOND


def test_it_goes_on_from_a_stored_time(clock: SteadyClock) -> None:
    clock.advance_to(START + HOUR)
    assert clock.read(START) == START + HOUR
    clock.advance_to(START)
    assert clock.read(START) == START + HOUR


@pytest.mark.parametrize("reading", [False, True], ids=["writing", "reading"])
def test_every_connection_of_a_database_has_the_time_of_the_engine(database_url: str, reading: bool) -> None:
    Engine.open(database_url).close()
    database = database_for(database_url, Settings())
    with closing(database.connect(reading=reading)) as connection:
        now = connection.now()
        database.clock.advance_to(now + YEAR)
        ((database_time,),) = connection.fetch("clock")
        assert connection.now() >= now + YEAR
        assert now <= database_time < now + HOUR, "a query returns the clock of the database itself"
        assert database.clock.read(database_time) >= now + YEAR
