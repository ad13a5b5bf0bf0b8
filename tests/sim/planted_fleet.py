"""Bugs to plant in the fleet and in the keeping of files; after those of `planted`."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from callsheet.blobs import keys
from callsheet.core import claim, commands, files, fleet, holding, lease, life, submit
from callsheet.core.commands import Claim
from callsheet.core.decide import DECISIONS
from callsheet.core.errors import Conflict, NotAdmitted, Unknown
from callsheet.core.lease import Ending
from callsheet.core.orphans import Age, Fate, Try, fate_of_output
from callsheet.core.rows import Attempt, File, Job, Task, Use, Worker
from callsheet.core.working import WorkingSet
from callsheet.engine import filekeeping
from tests.sim.planted import BUGS, Bug, bug, decide_by, nothing

__all__ = ["BUGS", "Bug"]

Rule = Literal["session", "approval", "draining", "kinds", "holds", "concurrency"]


def _places_without(rule: Rule) -> Callable[[WorkingSet, Claim], int]:
    """Return the check of a claim as it would be if somebody had forgotten one of its rules."""

    def places(ws: WorkingSet, command: Claim) -> int:
        worker = ws.find(Worker, command.worker_id)
        if worker is None or (rule != "session" and worker.token_hash != command.session):
            raise NotAdmitted
        if rule != "approval" and worker.status == "pending":
            raise Conflict("worker_not_approved", "")
        if rule != "draining" and worker.draining_at is not None:
            raise Conflict("worker_draining", "")
        if rule != "kinds" and not set(command.kinds) <= set(claim.kinds_of(worker)):
            raise Conflict("kind_not_assigned", "")
        held: tuple[str, ...] = ws.fact("holds", worker.id)
        if rule != "holds" and command.holds is not None and not set(held) <= set(command.holds):
            claim.release(ws, worker.id, "lost", known=command.holds)
            held = tuple(key for key in held if ws.get(Task, key).token_hash is not None)
            ws.set_fact("holds", worker.id, held)
        if rule == "concurrency":
            return command.count
        if len(held) >= worker.concurrency:
            raise Conflict("worker_full", "")
        return min(command.count, worker.concurrency - len(held))

    return places


# -- who gets work


@bug
def a_claim_does_not_look_at_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "places", _places_without("session"))


@bug
def a_worker_takes_work_before_it_is_approved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "places", _places_without("approval"))


@bug
def a_draining_worker_takes_work(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "places", _places_without("draining"))


@bug
def a_worker_takes_kinds_that_it_is_not_assigned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "places", _places_without("kinds"))


@bug
def a_worker_takes_more_than_it_can_do(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "places", _places_without("concurrency"))


@bug
def what_went_astray_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "places", _places_without("holds"))


@bug
def the_cap_of_the_fleet_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet, "_take_place", nothing)


@bug
def a_lease_is_good_for_any_worker(patch: pytest.MonkeyPatch) -> None:
    def held_or_past(ws: WorkingSet, command: Any) -> tuple[Job, Task] | Attempt:
        return holding.held_or_past(ws, replace(command, worker_id=None))

    patch.setattr(lease, "held_or_past", held_or_past)


# -- coming and going


@bug
def a_restart_leaves_what_was_held(patch: pytest.MonkeyPatch) -> None:
    def release(ws: WorkingSet, worker_id: str, reason: str) -> int:
        return 0 if "started again" in reason else claim.release(ws, worker_id, reason)

    patch.setattr(fleet, "release", release)


@bug
def what_is_given_back_uses_up_a_try(patch: pytest.MonkeyPatch) -> None:
    def give_back(ws: WorkingSet, job: Job, task: Task, _outcome: str, reason: str, actor: Any) -> commands.TaskState:
        again = task.attempts_charged < task.tries_max
        return lease.end_try(ws, job, task, Ending("lost", "lost", reason, again=again), actor)

    patch.setattr(claim, "give_back", give_back)


@bug
def a_revoked_worker_keeps_its_tasks(patch: pytest.MonkeyPatch) -> None:
    def release(ws: WorkingSet, worker_id: str, reason: str) -> int:
        return 0 if "revoked" in reason else claim.release(ws, worker_id, reason)

    patch.setattr(fleet, "release", release)


@bug
def what_a_batch_leased_is_not_counted_in_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "_note", nothing)


@bug
def what_a_batch_leased_is_not_given_back_in_it(patch: pytest.MonkeyPatch) -> None:
    def note(ws: WorkingSet, worker_id: str, taken: list[commands.Leased]) -> None:
        ws.set_fact("holds", worker_id, (*ws.fact("holds", worker_id), *(leased.lease.task_id for leased in taken)))

    patch.setattr(claim, "_note", note)


@bug
def a_changed_token_takes_the_leases(patch: pytest.MonkeyPatch) -> None:
    real = DECISIONS[commands.RotateWorker].decide

    def rotate(ws: WorkingSet, command: commands.RotateWorker) -> commands.WorkerState:
        state: commands.WorkerState = real(ws, command)
        claim.release(ws, command.worker_id, "rotated")
        return state

    decide_by(patch, commands.RotateWorker, rotate)


@bug
def a_contact_revives_a_worker_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    def seen(ws: WorkingSet, command: commands.Seen) -> int:
        for key in command.workers:
            worker = ws.find(Worker, key)
            if worker is not None and worker.status == "gone":
                ws.put(replace(worker, status="approved", ended_at=None, seen_at=ws.now))
        return fleet.seen(ws, command)

    decide_by(patch, commands.Seen, seen)


@bug
def a_command_about_a_worker_is_done_again_when_it_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fleet, "_done_before", lambda _ws, _command: False)


@bug
def a_failed_try_is_resumed(patch: pytest.MonkeyPatch) -> None:
    def resumed(ws: WorkingSet, task_id: str, no: int) -> commands.Resumed | None:
        last = ws.find(Attempt, (task_id, no)) if no else None
        return commands.Resumed(last.provider, last.ref) if last and last.provider and last.ref else None

    patch.setattr(claim, "_resumed", resumed)


# -- files


@bug
def a_file_that_is_needed_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "_needed", lambda _ws, _file: False)


@bug
def a_job_uses_anybodys_file(patch: pytest.MonkeyPatch) -> None:
    def use(ws: WorkingSet, job: Job, body: str) -> None:
        for key in files.references(msgspec.json.decode(body)):
            file = ws.find(File, key)
            if file is None or file.status != "ready":
                raise Unknown("file", key)
            if ws.find(Use, (job.id, key)) is None:
                ws.put(Use(job.id, key))
            ws.set_fact("needed", key, value=True)

    patch.setattr(submit, "use", use)


@bug
def a_retry_does_not_miss_its_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life, "use_again", nothing)


@bug
def a_job_takes_along_files_that_another_needs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life, "check_lent", nothing)


@bug
def bytes_go_before_their_rows(patch: pytest.MonkeyPatch) -> None:
    def run_once(self: Any, now: int) -> int:
        rows = self._engine.read.fetch("due_files", now=now, after_at=0, after_id="", count=self._page)
        due = [row[1] for row in rows]
        self._blobs.delete([keys.of(File(*row)) for row in self._engine.read.fetch("files_read", ids=due)])
        self._engine.execute(commands.DropFiles(file_ids=tuple(due)))
        return 0

    patch.setattr(filekeeping.Keeper, "run_once", run_once)


@bug
def orphans_are_taken_from_under_a_worker(patch: pytest.MonkeyPatch) -> None:
    def fate(tenant: str, job_id: str, no: int | None, made_by: Try | None, age: Age) -> Fate:
        closed = made_by._replace(open=False) if made_by else None
        return fate_of_output(tenant, job_id, no, closed, age)

    patch.setattr(filekeeping, "fate_of_output", fate)


@bug
def orphans_are_left_lying(patch: pytest.MonkeyPatch) -> None:
    def look(_self: Any, _now: int, _after: str = "") -> filekeeping.Looked:
        return filekeeping.Looked([], filekeeping.Tally(), None)

    patch.setattr(filekeeping.Orphans, "look", look)


@bug
def announced_files_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def ask(ws: WorkingSet, command: commands.AskUpload) -> File:
        ws.set_fact("awaited", (command.tenant, command.user), 0)
        return files.ask_upload(ws, command)

    decide_by(patch, commands.AskUpload, ask)


@bug
def a_result_counts_without_its_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "_keep_files", nothing)
