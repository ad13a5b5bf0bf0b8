"""What a command about the fleet or about files must mean, seen from the rows just before it and just after it."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from callsheet.core.model import commands as c
from tests.sim.checks.inspector import Inspector

_HELD_TASKS = """SELECT t.id, t.attempts FROM task t
    WHERE t.worker_id = ? AND t.status = 'running' AND t.token_hash IS NOT NULL ORDER BY t.id"""
_NEEDED_FILES = """SELECT f.id FROM file f WHERE f.status <> 'deleted' AND EXISTS (
    SELECT 1 FROM job j WHERE j.finished_at IS NULL
    AND (j.id = f.job_id OR EXISTS (SELECT 1 FROM job_file u WHERE u.job_id = j.id AND u.file_id = f.id)))"""
_PREVIOUS_ATTEMPT = """SELECT a.provider, a.ref, a.outcome FROM attempt a WHERE a.task_id = ? AND a.no = ?"""
_WORKER_ROW = "SELECT status, token_hash, draining_at, offered, assigned FROM worker WHERE id = ?"
HeldTasks = frozenset[tuple[str, int]]


class WorkerSnapshot(NamedTuple):
    """A worker of the fleet as its row says."""

    status: str
    token_hash: str | None
    draining_at: int | None
    offered: str
    assigned: str | None

    def may_claim(self, command: c.Claim) -> bool:
        """Say whether this worker may claim so."""
        kinds = set(msgspec.json.decode(self.offered))
        if self.assigned is not None:
            kinds &= set(msgspec.json.decode(self.assigned))
        admitted = self.status == "approved" and self.draining_at is None
        return admitted and self.token_hash == command.session and kinds >= set(command.kinds)


class BatchSnapshot(NamedTuple):
    """What was true before a batch, of those whom it is about."""

    workers: dict[str, WorkerSnapshot]
    held: dict[str, HeldTasks]
    needed_files: frozenset[str]


class BatchChecks:
    """Looks at the rows before a batch and after it; between the two nobody else has written."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector

    def before(self, commands: Sequence[c.Command]) -> BatchSnapshot:
        names = dict.fromkeys(name for command in commands if (name := _fleet_worker_of(command)) is not None)
        deleting = any(isinstance(command, c.DeleteFiles) for command in commands)
        return BatchSnapshot(
            {name: snapshot for name in names if (snapshot := self._worker_snapshot(name)) is not None},
            {name: self._held_tasks(name) for name in names},
            frozenset(key for (key,) in self._inspector.rows(_NEEDED_FILES)) if deleting else frozenset(),
        )

    def after(self, commands: Sequence[c.Command], results: Sequence[Any], before: BatchSnapshot) -> Iterator[str]:
        """Yield what is wrong with the answers, whoever shared the batch."""
        for command, result in zip(commands, results, strict=True):
            if isinstance(command, c.Claim) and isinstance(result, list):
                yield from self._check_resume(result)
                yield from _check_session_is_newest(command, before)
            if isinstance(result, Exception):
                continue
            if isinstance(command, c.Register) and (left := self._held_tasks(command.worker_id)):
                yield f"F21 {command.worker_id} was started again and still holds {sorted(left)}"
        if len(commands) == 1:
            yield from self._check_single(commands[0], results[0], before)

    def _check_single(self, command: c.Command, result: Any, before: BatchSnapshot) -> Iterator[str]:
        if isinstance(command, c.Claim) and command.session is not None and isinstance(result, list):
            yield from self._check_claim_allowed(command, result, before)
        name = _fleet_worker_of(command)
        if name is not None:
            yield from self._check_released_tasks(command, name, before.held[name])
        if isinstance(command, c.DeleteFiles) and not isinstance(result, Exception):
            gone = {file.id for file in result.files} & before.needed_files
            if gone:
                yield f"O7 files that an open job needs were deleted: {sorted(gone)}"

    def _check_claim_allowed(
        self, command: c.Claim, leased: list[c.LeasedTask], before: BatchSnapshot
    ) -> Iterator[str]:
        """L6: nobody gets an answer whom the row does not let in; H6: what a worker does not know of is given back."""
        snapshot = before.workers.get(command.worker_id)
        if snapshot is None or not snapshot.may_claim(command):
            yield f"L6 {command.worker_id} was answered with {len(leased)} leases and stands as {snapshot}"
        if command.held_task_ids is not None:
            known = {*command.held_task_ids, *(one.lease.task_id for one in leased)}
            if forgotten := [task for task, _ in sorted(self._held_tasks(command.worker_id)) if task not in known]:
                yield f"H6 {command.worker_id} does not know that it holds {forgotten}, and still does"

    def _check_released_tasks(self, command: c.Command, name: str, before: HeldTasks) -> Iterator[str]:
        """H25: what was given back used up no try. R195, R209: a changed token and a drain keep the leases."""
        gone = before - self._held_tasks(name)
        if gone and isinstance(command, c.RotateWorker | c.UpdateWorker):
            yield f"R195 {type(command).__name__} took {sorted(gone)} from {name}"
        for task, no in sorted(gone):
            row = self._inspector.rows("SELECT outcome, uncounted FROM attempt WHERE task_id = ? AND no = ?", task, no)
            if row[0] not in {(None, 0), ("requeued", 1), ("canceled", 1)}:
                yield f"H25 {type(command).__name__} ended {task}/{no} of {name} as {row[0]}"

    def _check_resume(self, leased: Sequence[c.LeasedTask]) -> Iterator[str]:
        """R309: a task that was cut short says where its work lies; one that failed there begins anew."""
        for one in leased:
            last = self._inspector.rows(_PREVIOUS_ATTEMPT, one.lease.task_id, one.lease.attempt - 1)
            cut = bool(last) and last[0][1] is not None and last[0][2] in {"lost", "requeued"}
            expected = c.PreviousSubmission(*last[0][:2]) if cut else None
            if one.resumed != expected:
                yield f"R309 {one.lease.task_id}/{one.lease.attempt} was to resume {expected} and got {one.resumed}"

    def _worker_snapshot(self, name: str) -> WorkerSnapshot | None:
        rows = self._inspector.rows(_WORKER_ROW, name)
        return WorkerSnapshot(*rows[0]) if rows else None

    def _held_tasks(self, name: str) -> HeldTasks:
        return frozenset(self._inspector.rows(_HELD_TASKS, name))


def _check_session_is_newest(command: c.Claim, before: BatchSnapshot) -> Iterator[str]:
    """F21: a token that was not the newest before the batch is not good in it, whatever else the batch did."""
    snapshot = before.workers.get(command.worker_id)
    if command.session is not None and (snapshot is None or snapshot.token_hash != command.session):
        yield f"F21 {command.worker_id} was answered under a token of an earlier start"


def _fleet_worker_of(command: c.Command) -> str | None:
    """Return the worker that a command of or about the fleet names; a report on a task is none."""
    if isinstance(command, c.Claim):
        return None if command.session is None else command.worker_id
    return None if hasattr(command, "lease") else getattr(command, "worker_id", None)
