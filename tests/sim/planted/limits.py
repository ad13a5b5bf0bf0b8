"""Bugs in running limits, rate limits and idempotency keys of retries."""

import pytest
from msgspec.structs import replace

from callsheet.core.decisions import job_actions
from callsheet.core.policy.task_start_limits import limits_of, rates_of
from callsheet.engine import candidates
from callsheet.engine.limit_use import UseCount
from tests.sim.planted.registry import bug


@bug
def running_limits_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(candidates, "limits_of", rates_of)


@bug
def rates_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(candidates, "limits_of", lambda q, limits: [one for one in limits_of(q, limits) if not one.seconds])


@bug
def a_rate_counts_only_running_tasks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UseCount, "_since", lambda *_: None)


@bug
def the_key_of_a_retry_is_ignored(patch: pytest.MonkeyPatch) -> None:
    real = job_actions._find_previous_retry  # noqa: SLF001 - the place of the bug
    patch.setattr(
        job_actions,
        "_find_previous_retry",
        lambda ws, job, command: real(ws, job, replace(command, idempotency_key=None)),
    )
