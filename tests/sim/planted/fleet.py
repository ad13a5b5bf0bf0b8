"""Bugs in the fleet: which worker gets work, and what happens to its leases."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.command_registry import COMMANDS
from callsheet.core.decisions import claim, fleet, lease, lease_check
from callsheet.core.decisions.lease import AttemptEnd
from callsheet.core.model import commands
from callsheet.core.model.commands import Claim
from callsheet.core.model.errors import Conflict, Denied, InvalidWorkerToken
from callsheet.core.model.rows import Attempt, Job, Task, Worker
from callsheet.core.working_set import WorkingSet
from tests.sim.planted.registry import bug, do_nothing, replace_decision

Rule = Literal["session", "approval", "draining", "kinds", "holds", "concurrency"]


def _free_slots_without(rule: Rule) -> Callable[[WorkingSet, Claim], int]:
    """Return `claim.free_slots` without one of its rules."""

    def free_slots(ws: WorkingSet, command: Claim) -> int:
        worker = ws.find(Worker, command.worker_id)
        if worker is None or (rule != "session" and worker.token_hash != command.token_hash):
            raise InvalidWorkerToken
        if rule != "approval" and worker.status == "pending":
            raise Denied("worker_not_approved", "")
        if rule != "draining" and worker.draining_at is not None:
            raise Conflict("worker_draining", "")
        if rule != "kinds" and not set(command.kinds) <= set(claim.allowed_kinds(worker)):
            raise Conflict("kind_not_assigned", "")
        held = ws.get_fact(facts.LEASED_TASK_IDS, worker.id)
        if rule != "holds" and command.held_task_ids is not None and not set(held) <= set(command.held_task_ids):
            claim.requeue_held_tasks(ws, worker.id, "lost", keep_task_ids=command.held_task_ids)
            held = tuple(key for key in held if ws.get(Task, key).token_hash is not None)
            ws.set_fact(facts.LEASED_TASK_IDS, worker.id, held)
        if rule == "concurrency":
            return command.count
        if len(held) >= worker.concurrency:
            raise Conflict("worker_full", "")
        return min(command.count, worker.concurrency - len(held))

    return free_slots


@bug
def a_claim_does_not_check_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _free_slots_without("session"))


@bug
def a_worker_claims_before_it_is_approved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _free_slots_without("approval"))


@bug
def a_draining_worker_claims(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _free_slots_without("draining"))


@bug
def a_worker_claims_kinds_that_it_is_not_assigned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _free_slots_without("kinds"))


@bug
def a_worker_claims_more_than_its_concurrency(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _free_slots_without("concurrency"))


@bug
def an_unknown_lease_is_not_requeued(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _free_slots_without("holds"))


@bug
def the_limit_of_workers_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet, "_take_worker_slot", do_nothing)


@bug
def a_lease_is_valid_for_any_worker(patch: pytest.MonkeyPatch) -> None:
    def find_lease(ws: WorkingSet, command: Any) -> tuple[Job, Task] | Attempt:
        return lease_check.find_lease(ws, replace(command, worker_id=None))

    patch.setattr(lease, "find_lease", find_lease)


@bug
def a_restart_keeps_the_old_leases(patch: pytest.MonkeyPatch) -> None:
    def requeue_held_tasks(ws: WorkingSet, worker_id: str, reason: str, keep_task_ids: Sequence[str] = ()) -> int:
        restarted = ws.get(Worker, worker_id).status in {"pending", "approved"}
        return 0 if restarted else claim.requeue_held_tasks(ws, worker_id, reason, keep_task_ids)

    patch.setattr(fleet, "requeue_held_tasks", requeue_held_tasks)


@bug
def a_requeue_counts_an_attempt(patch: pytest.MonkeyPatch) -> None:
    def requeue_task(
        ws: WorkingSet, job: Job, task: Task, _outcome: str, reason: str, actor: Any
    ) -> commands.TaskState:
        retry = task.attempts_counted < task.attempts_max
        return lease.end_attempt(ws, job, task, AttemptEnd("lost", "lost", reason, retry=retry), actor)

    patch.setattr(claim, "requeue_task", requeue_task)


@bug
def a_revoked_worker_keeps_its_tasks(patch: pytest.MonkeyPatch) -> None:
    def requeue_held_tasks(ws: WorkingSet, worker_id: str, reason: str, keep_task_ids: Sequence[str] = ()) -> int:
        revoked = ws.get(Worker, worker_id).status == "revoked"
        return 0 if revoked else claim.requeue_held_tasks(ws, worker_id, reason, keep_task_ids)

    patch.setattr(fleet, "requeue_held_tasks", requeue_held_tasks)


@bug
def leases_are_not_counted_within_a_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "_record_leases", do_nothing)


@bug
def leases_are_not_requeued_within_a_batch(patch: pytest.MonkeyPatch) -> None:
    def record_leases(ws: WorkingSet, worker_id: str, leased_tasks: list[commands.LeasedTask]) -> None:
        ws.set_fact(
            facts.LEASED_TASK_IDS,
            worker_id,
            (
                *ws.get_fact(facts.LEASED_TASK_IDS, worker_id),
                *(leased.lease.task_id for leased in leased_tasks),
            ),
        )

    patch.setattr(claim, "_record_leases", record_leases)


@bug
def a_rotated_token_ends_the_leases(patch: pytest.MonkeyPatch) -> None:
    real = COMMANDS[commands.RotateWorker].decide

    def rotate(ws: WorkingSet, command: commands.RotateWorker) -> commands.WorkerState:
        state: commands.WorkerState = real(ws, command)
        claim.requeue_held_tasks(ws, command.worker_id, "rotated")
        return state

    replace_decision(patch, commands.RotateWorker, rotate)


@bug
def a_worker_that_registers_again_loses_its_running_tasks(patch: pytest.MonkeyPatch) -> None:
    def register(ws: WorkingSet, command: commands.Register) -> commands.WorkerState:
        return fleet.register(ws, replace(command, held_task_ids=()))

    replace_decision(patch, commands.Register, register)


@bug
def a_heartbeat_revives_a_deregistered_worker(patch: pytest.MonkeyPatch) -> None:
    def record_heartbeats(ws: WorkingSet, command: commands.RecordHeartbeats) -> int:
        for key in command.workers:
            worker = ws.find(Worker, key)
            if worker is not None and worker.status == "offline":
                ws.put(replace(worker, status="approved", ended_at=None, last_seen_at=ws.now))
        return fleet.record_heartbeats(ws, command)

    replace_decision(patch, commands.RecordHeartbeats, record_heartbeats)


@bug
def a_retried_worker_command_is_applied_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet, "_already_applied", lambda _ws, _command: False)


@bug
def a_failed_attempt_is_resumed(patch: pytest.MonkeyPatch) -> None:
    def previous_submission(ws: WorkingSet, task_id: str, no: int) -> commands.PreviousSubmission | None:
        last = ws.find(Attempt, (task_id, no)) if no else None
        return commands.PreviousSubmission(last.provider, last.ref) if last and last.provider and last.ref else None

    patch.setattr(claim, "_previous_submission", previous_submission)
