"""Bugs in reservations, settlements and top-ups."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.decisions import (
    cascade,
    job_actions,
    money,
    operator,
)
from callsheet.core.model import commands
from callsheet.core.model.rows import Job, Run, Wallet
from callsheet.core.model.state_machines import Actor
from callsheet.core.model.workflow_definition import RefundPolicy
from callsheet.core.working_set import WorkingSet
from tests.sim.planted.registry import bug, do_nothing, replace_decision


@bug
def a_run_is_settled_twice(patch: pytest.MonkeyPatch) -> None:
    def settle(ws: WorkingSet, job: Job, *rest: Any) -> money.Settlement:
        money.settle(ws, job, *rest)
        return money.settle(ws, job, *rest)

    patch.setattr(cascade, "settle", settle)


@bug
def completed_work_is_refunded(patch: pytest.MonkeyPatch) -> None:
    def settle(
        ws: WorkingSet, job: Job, run: Run, _ending: str, _refunds: RefundPolicy, delivered: int
    ) -> money.Settlement:
        return money.settle(ws, job, run, "failed", RefundPolicy(), delivered)

    patch.setattr(cascade, "settle", settle)


@bug
def a_retry_reserves_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "reserve", do_nothing)


@bug
def a_deleted_job_keeps_its_reservation(patch: pytest.MonkeyPatch) -> None:
    def delete(ws: WorkingSet, command: commands.Delete) -> commands.JobState:
        job = ws.find(Job, command.job_id)
        if job is None or job.finished_at is not None or job.tenant != command.tenant:
            return job_actions.delete(ws, command)
        ws.put(replace(job, status="canceled", finished_at=ws.now, deleted_at=ws.now, due_at=None))
        return commands.JobState(ws.stored_job(job))

    replace_decision(patch, commands.Delete, delete)


@bug
def the_key_of_a_top_up_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operator, "dedup_key_of", lambda command: f"{command.tenant}/{command.user}/{command.id}")


@bug
def a_paused_job_with_several_stages_gets_another_refund(patch: pytest.MonkeyPatch) -> None:
    real = money._consumed_part  # noqa: SLF001 - the place of the bug

    def consumed_part(job: Job, run: Run, final_status: str, refunds: RefundPolicy) -> int:
        unstarted = job.status == "paused" and job.stages_total > 1
        return real(replace(job, started_at=None) if unstarted else job, run, final_status, refunds)

    patch.setattr(money, "_consumed_part", consumed_part)


@bug
def an_admin_can_refund_a_run_twice(patch: pytest.MonkeyPatch) -> None:
    real = money.refund_consumed

    def refund_consumed(
        ws: WorkingSet, wallet: Wallet, job: Job, run: Run, dedup_key: str, reason: str, actor: Actor
    ) -> Wallet:
        return real(ws, wallet, job, run, f"{dedup_key}/{wallet.entries}", reason, actor)

    patch.setattr(job_actions, "refund_consumed", refund_consumed)
