"""Bugs in running limits, rate limits, the order of claims, and idempotency keys of retries."""

import pytest
from msgspec.structs import replace

from callsheet.core.decisions import cascade, job_actions, submit, update_and_append
from callsheet.core.model.rows import Task
from callsheet.core.policy import fair_order
from callsheet.core.policy.task_start_limits import limits_of, rates_of
from callsheet.core.working_set import WorkingSet
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
def users_of_a_tenant_do_not_take_turns(patch: pytest.MonkeyPatch) -> None:
    def queue_task(ws: WorkingSet, task: Task) -> Task:
        queued = fair_order.queue_task(ws, task)
        return replace(queued, user_rank=queued.rank)

    for module in (cascade, submit, update_and_append):
        patch.setattr(module, "queue_task", queue_task)


@bug
def the_key_of_a_retry_is_ignored(patch: pytest.MonkeyPatch) -> None:
    real = job_actions._find_previous_retry  # noqa: SLF001 - the place of the bug
    patch.setattr(
        job_actions,
        "_find_previous_retry",
        lambda ws, job, command: real(ws, job, replace(command, idempotency_key=None)),
    )
