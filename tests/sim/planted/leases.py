"""Bugs in leases, heartbeats and attempts."""

from typing import Any

import pytest
from msgspec.structs import replace

from callsheet.core.decisions import (
    claim,
    job_actions,
    lease,
    lease_check,
    provider_calls,
)
from callsheet.core.decisions.lease import AttemptEnd
from callsheet.core.model import commands
from callsheet.core.model.clock import SECOND
from callsheet.core.model.errors import LeaseLost
from callsheet.core.model.rows import Attempt, Job, Task
from callsheet.core.working_set import WorkingSet
from tests.sim.planted.registry import bug, do_nothing, replace_decision


@bug
def any_token_is_accepted_for_a_lease(patch: pytest.MonkeyPatch) -> None:
    def get_task(ws: WorkingSet, command: lease_check.LeaseCommand) -> tuple[Job, Task]:
        task = ws.get(Task, command.lease.task_id)
        if task.token_hash is None:
            raise LeaseLost
        return ws.get(Job, task.job_id), task

    patch.setattr(lease, "get_leased_task", get_task)
    patch.setattr(lease, "find_lease", get_task)
    patch.setattr(provider_calls, "get_leased_task", get_task)


@bug
def a_heartbeat_can_shorten_a_lease(patch: pytest.MonkeyPatch) -> None:
    def heartbeat(ws: WorkingSet, command: commands.Heartbeat) -> commands.HeartbeatResult:
        result = lease.heartbeat(ws, command)
        if result.lease_seconds:
            task = ws.get(Task, command.lease.task_id)
            at = ws.now + (command.lease_seconds or task.lease_seconds) * SECOND
            ws.put(replace(task, lease_expires_at=at, due_at=at))
        return result

    replace_decision(patch, commands.Heartbeat, heartbeat)


@bug
def a_heartbeat_adds_to_the_remaining_lease(patch: pytest.MonkeyPatch) -> None:
    def heartbeat(ws: WorkingSet, command: commands.Heartbeat) -> commands.HeartbeatResult:
        before = ws.find(Task, command.lease.task_id)
        result = lease.heartbeat(ws, command)
        if result.lease_seconds and before is not None:
            at = (before.lease_expires_at or 0) + (command.lease_seconds or before.lease_seconds) * SECOND
            ws.put(replace(ws.get(Task, before.id), lease_expires_at=at, due_at=at))
        return result

    replace_decision(patch, commands.Heartbeat, heartbeat)


@bug
def a_task_is_requeued_without_limit(patch: pytest.MonkeyPatch) -> None:
    def requeue_task(
        ws: WorkingSet, job: Job, task: Task, outcome: str, reason: str, actor: Any, _cause: str | None = None
    ) -> commands.TaskState:
        return lease.end_attempt(ws, job, task, AttemptEnd(outcome, outcome, reason, retry=True, uncounted=True), actor)

    for module in (claim, lease, provider_calls):
        patch.setattr(module, "requeue_task", requeue_task)


@bug
def a_lost_lease_is_not_counted_as_an_attempt(patch: pytest.MonkeyPatch) -> None:
    def expire_lease(ws: WorkingSet, job: Job, task: Task) -> None:
        lease.requeue_task(ws, job, task, "lost", "The worker is lost.", "system")

    patch.setattr(job_actions, "expire_lease", expire_lease)


@bug
def a_lost_lease_is_never_processed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "expire_lease", do_nothing)


@bug
def any_repeated_output_is_accepted(patch: pytest.MonkeyPatch) -> None:
    def repeated(ws: WorkingSet, held: commands.Lease, attempt: Attempt, *_: Any) -> commands.TaskState:
        job, task = ws.get(Job, held.job_id), ws.get(Task, attempt.task_id)
        return commands.TaskState(job.id, task.id, task.status, job.status, replay=True)

    patch.setattr(lease, "_answer_repeated_report", repeated)


@bug
def a_superseded_lease_is_extended(patch: pytest.MonkeyPatch) -> None:
    def heartbeat(ws: WorkingSet, command: commands.Heartbeat) -> commands.HeartbeatResult:
        task = ws.find(Task, command.lease.task_id)
        if task is None or task.token_hash is None or command.lease.attempt >= task.attempts:
            return lease.heartbeat(ws, command)
        attempt = lease_check.find_attempt(ws, command)
        if attempt is None:
            return lease.heartbeat(ws, command)
        at = max(task.lease_expires_at or 0, ws.now + task.lease_seconds * SECOND)
        ws.put(replace(task, lease_expires_at=at, due_at=at))
        return commands.HeartbeatResult(float(task.lease_seconds), cancel=False)

    replace_decision(patch, commands.Heartbeat, heartbeat)


@bug
def an_expired_lease_is_valid_until_it_is_swept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease_check, "has_expired", lambda _task, _now: False)
