"""Bugs to plant in what holds work back, limits and rates; with those of `planted_fleet` they are all of them."""

import pytest

from callsheet.core.limiting import limits_of, rates_of
from callsheet.engine import offers
from tests.sim.planted import bug
from tests.sim.planted_fleet import BUGS, Bug

__all__ = ["BUGS", "Bug"]


@bug
def running_limits_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offers, "limits_of", rates_of)


@bug
def rates_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(offers, "limits_of", lambda q, limits: [one for one in limits_of(q, limits) if not one.seconds])


@bug
def a_rate_counts_only_what_still_runs(patch: pytest.MonkeyPatch) -> None:
    real = offers.counting
    patch.setattr(offers, "counting", lambda limit, queues, now: real(limit._replace(seconds=0), queues, now))
