"""Bugs to plant in the fleet and in the keeping of files; after those of `planted`."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from callsheet.blobs import object_keys
from callsheet.core import facts
from callsheet.core.decisions import claim, files, fleet, job_actions, lease, lease_check, submit
from callsheet.core.decisions.lease import AttemptEnd
from callsheet.core.model import commands
from callsheet.core.model.commands import Claim
from callsheet.core.model.errors import Conflict, InvalidWorkerToken, NotFound
from callsheet.core.model.rows import Attempt, File, Job, JobFile, Task, Worker
from callsheet.core.policy.orphan_files import AttemptFiles, ObjectAge, ObjectState, classify_output
from callsheet.core.registry import COMMANDS
from callsheet.core.working_set import WorkingSet
from callsheet.engine.loops import file_retention, orphan_files
from tests.sim.planted_bugs import BUGS, Bug, bug, do_nothing, replace_decision

__all__ = ["BUGS", "Bug"]

Rule = Literal["session", "approval", "draining", "kinds", "holds", "concurrency"]


def _places_without(rule: Rule) -> Callable[[WorkingSet, Claim], int]:
    """Return the check of a claim as it would be if somebody had forgotten one of its rules."""

    def free_slots(ws: WorkingSet, command: Claim) -> int:
        worker = ws.find(Worker, command.worker_id)
        if worker is None or (rule != "session" and worker.token_hash != command.session):
            raise InvalidWorkerToken
        if rule != "approval" and worker.status == "pending":
            raise Conflict("worker_not_approved", "")
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


# -- who gets work


@bug
def a_claim_does_not_look_at_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _places_without("session"))


@bug
def a_worker_takes_work_before_it_is_approved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _places_without("approval"))


@bug
def a_draining_worker_takes_work(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _places_without("draining"))


@bug
def a_worker_takes_kinds_that_it_is_not_assigned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _places_without("kinds"))


@bug
def a_worker_takes_more_than_it_can_do(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _places_without("concurrency"))


@bug
def a_forgotten_lease_is_not_requeued(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "free_slots", _places_without("holds"))


@bug
def the_cap_of_the_fleet_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet, "_take_worker_slot", do_nothing)


@bug
def a_lease_is_good_for_any_worker(patch: pytest.MonkeyPatch) -> None:
    def find_lease(ws: WorkingSet, command: Any) -> tuple[Job, Task] | Attempt:
        return lease_check.find_lease(ws, replace(command, worker_id=None))

    patch.setattr(lease, "find_lease", find_lease)


# -- coming and going


@bug
def a_restart_keeps_the_old_leases(patch: pytest.MonkeyPatch) -> None:
    def requeue_held_tasks(ws: WorkingSet, worker_id: str, reason: str) -> int:
        return 0 if "restarted" in reason else claim.requeue_held_tasks(ws, worker_id, reason)

    patch.setattr(fleet, "requeue_held_tasks", requeue_held_tasks)


@bug
def a_requeue_uses_up_an_attempt(patch: pytest.MonkeyPatch) -> None:
    def requeue_task(
        ws: WorkingSet, job: Job, task: Task, _outcome: str, reason: str, actor: Any
    ) -> commands.TaskState:
        retry = task.attempts_counted < task.attempts_max
        return lease.end_attempt(ws, job, task, AttemptEnd("lost", "lost", reason, retry=retry), actor)

    patch.setattr(claim, "requeue_task", requeue_task)


@bug
def a_revoked_worker_keeps_its_tasks(patch: pytest.MonkeyPatch) -> None:
    def requeue_held_tasks(ws: WorkingSet, worker_id: str, reason: str) -> int:
        return 0 if "revoked" in reason else claim.requeue_held_tasks(ws, worker_id, reason)

    patch.setattr(fleet, "requeue_held_tasks", requeue_held_tasks)


@bug
def leases_are_not_counted_within_a_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "_record_leases", do_nothing)


@bug
def leases_are_not_requeued_within_a_batch(patch: pytest.MonkeyPatch) -> None:
    def note(ws: WorkingSet, worker_id: str, taken: list[commands.LeasedTask]) -> None:
        ws.set_fact(
            facts.LEASED_TASK_IDS,
            worker_id,
            (*ws.get_fact(facts.LEASED_TASK_IDS, worker_id), *(leased.lease.task_id for leased in taken)),
        )

    patch.setattr(claim, "_record_leases", note)


@bug
def a_changed_token_takes_the_leases(patch: pytest.MonkeyPatch) -> None:
    real = COMMANDS[commands.RotateWorker].decide

    def rotate(ws: WorkingSet, command: commands.RotateWorker) -> commands.WorkerState:
        state: commands.WorkerState = real(ws, command)
        claim.requeue_held_tasks(ws, command.worker_id, "rotated")
        return state

    replace_decision(patch, commands.RotateWorker, rotate)


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
def a_retried_worker_command_is_done_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet, "_already_applied", lambda _ws, _command: False)


@bug
def a_failed_attempt_is_resumed(patch: pytest.MonkeyPatch) -> None:
    def resumed(ws: WorkingSet, task_id: str, no: int) -> commands.PreviousSubmission | None:
        last = ws.find(Attempt, (task_id, no)) if no else None
        return commands.PreviousSubmission(last.provider, last.ref) if last and last.provider and last.ref else None

    patch.setattr(claim, "_previous_submission", resumed)


# -- files


@bug
def a_needed_file_is_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "_needed_by", lambda _ws, _file: False)


@bug
def a_job_uses_anybodys_file(patch: pytest.MonkeyPatch) -> None:
    def link_files(ws: WorkingSet, job: Job, body: str) -> None:
        for key in files.find_references(msgspec.json.decode(body)):
            file = ws.find(File, key)
            if file is None or file.status != "ready":
                raise NotFound("file", key)
            if ws.find(JobFile, (job.id, key)) is None:
                ws.put(JobFile(job.id, key))
            ws.set_fact(facts.NEEDED_BY, key, "")

    patch.setattr(submit, "link_files", link_files)


@bug
def a_retry_does_not_check_its_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "relink_files", do_nothing)


@bug
def deleting_a_job_deletes_files_that_another_needs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_actions, "check_files_unused", do_nothing)


@bug
def blobs_are_deleted_before_their_rows(patch: pytest.MonkeyPatch) -> None:
    def run_once(self: Any, now: int) -> int:
        rows = self._engine.reads.fetch("due_files", now=now, after_at=0, after_id="", count=self._page)
        due = [row[1] for row in rows]
        self._blobs.delete(
            [object_keys.file_key(File(*row)) for row in self._engine.reads.fetch("files_by_id", ids=due)]
        )
        self._engine.execute(commands.DeleteFiles(file_ids=tuple(due)))
        return 0

    patch.setattr(file_retention.FileRetention, "run_once", run_once)


@bug
def orphans_of_a_running_attempt_are_deleted(patch: pytest.MonkeyPatch) -> None:
    def fate(tenant: str, job_id: str, no: int | None, made_by: AttemptFiles | None, age: ObjectAge) -> ObjectState:
        closed = made_by._replace(open=False) if made_by else None
        return classify_output(tenant, job_id, no, closed, age)

    patch.setattr(orphan_files, "classify_output", fate)


@bug
def orphans_are_never_deleted(patch: pytest.MonkeyPatch) -> None:
    def scan_page(_self: Any, _now: int, _after: str = "") -> orphan_files.OrphanPage:
        return orphan_files.OrphanPage([], orphan_files.StorageCounts(), None)

    patch.setattr(orphan_files.OrphanCollector, "scan_page", scan_page)


@bug
def open_uploads_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def ask(ws: WorkingSet, command: commands.CreateUpload) -> File:
        ws.set_fact(facts.PENDING_UPLOAD_COUNT, (command.tenant, command.user), 0)
        return files.create_upload(ws, command)

    replace_decision(patch, commands.CreateUpload, ask)


@bug
def a_result_counts_without_its_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "_store_files", do_nothing)
