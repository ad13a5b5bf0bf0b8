"""Bugs to plant in limits, in rates and in keys of retries; with those of `planted_fleet` they are all of them."""

import pytest
from msgspec.structs import replace

from callsheet.core import life
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


@bug
def the_key_of_a_retry_counts_for_nothing(patch: pytest.MonkeyPatch) -> None:
    real = life._opened_before  # noqa: SLF001 - as it stands there
    patch.setattr(
        life, "_opened_before", lambda ws, job, command: real(ws, job, replace(command, idempotency_key=None))
    )
