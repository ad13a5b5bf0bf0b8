"""Checks of commands about workers and files, by the rows before and after their batch."""

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
    """The row of a registered worker."""

    status: str
    token_hash: str | None
    draining_at: int | None
    offered: str
    assigned: str | None

    def may_claim(self, command: c.Claim) -> bool:
        """Return whether this worker may send this claim."""
        kinds = set(msgspec.json.decode(self.offered))
        if self.assigned is not None:
            kinds &= set(msgspec.json.decode(self.assigned))
        admitted = self.status == "approved" and self.draining_at is None
        return admitted and self.token_hash == command.token_hash and kinds >= set(command.kinds)


class BatchSnapshot(NamedTuple):
    """The rows before a batch that its commands are about."""

    workers: dict[str, WorkerSnapshot]
    held: dict[str, HeldTasks]
    needed_files: frozenset[str]


class BatchChecks:
    """Compares the rows before and after a batch that no other batch interrupted."""

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
        """Yield the failed checks of a batch."""
        for command, result in zip(commands, results, strict=True):
            if isinstance(command, c.Claim) and isinstance(result, list):
                yield from self._check_resume(result)
                yield from _check_session_is_newest(command, before)
            if isinstance(result, Exception):
                continue
            if isinstance(command, c.Register):
                running = command.held_task_ids[: command.concurrency]
                if left := sorted(key for key in self._held_tasks(command.worker_id) if key[0] not in running):
                    yield f"F21 {command.worker_id} registered again and still has the leases {left}"
        if len(commands) == 1:
            yield from self._check_single(commands[0], results[0], before)

    def _check_single(self, command: c.Command, result: Any, before: BatchSnapshot) -> Iterator[str]:
        if isinstance(command, c.Claim) and command.token_hash is not None and isinstance(result, list):
            yield from self._check_claim_allowed(command, result, before)
        name = _fleet_worker_of(command)
        if name is not None:
            yield from self._check_released_tasks(command, name, before.held[name])
        if isinstance(command, c.DeleteFiles) and not isinstance(result, Exception):
            deleted = {file.id for file in result.files} & before.needed_files
            if deleted:
                yield f"O7 files that an open job needs were deleted: {sorted(deleted)}"

    def _check_claim_allowed(
        self, command: c.Claim, leased: list[c.LeasedTask], before: BatchSnapshot
    ) -> Iterator[str]:
        """L6: only an approved worker gets leases. H6: a lease that the worker does not know is requeued."""
        snapshot = before.workers.get(command.worker_id)
        if snapshot is None or not snapshot.may_claim(command):
            yield f"L6 {command.worker_id} got {len(leased)} leases, but its row is {snapshot}"
        if command.held_task_ids is not None:
            known = {*command.held_task_ids, *(one.lease.task_id for one in leased)}
            if forgotten := [task for task, _ in sorted(self._held_tasks(command.worker_id)) if task not in known]:
                yield f"H6 {command.worker_id} does not know its leases {forgotten}, and they were not requeued"

    def _check_released_tasks(self, command: c.Command, name: str, before: HeldTasks) -> Iterator[str]:
        """H25: a requeue counts no attempt. R195, R209: a rotated token and a drain keep the leases."""
        released = before - self._held_tasks(name)
        if released and isinstance(command, c.RotateWorker | c.UpdateWorker):
            yield f"R195 {type(command).__name__} ended the leases {sorted(released)} of {name}"
        if isinstance(command, c.Register):
            running = command.held_task_ids[: command.concurrency]
            if ended := sorted(task for task, _ in released if task in running):
                yield f"R195 {name} registered again with its tasks, and the leases of {ended} ended"
        for task, no in sorted(released):
            row = self._inspector.rows("SELECT outcome, uncounted FROM attempt WHERE task_id = ? AND no = ?", task, no)
            if row[0] not in {(None, 0), ("requeued", 1), ("canceled", 1)}:
                yield f"H25 {type(command).__name__} ended {task}/{no} of {name} as {row[0]}"

    def _check_resume(self, leased: Sequence[c.LeasedTask]) -> Iterator[str]:
        """R309: an interrupted task is claimed with its earlier submission; a failed one starts again."""
        for one in leased:
            last = self._inspector.rows(_PREVIOUS_ATTEMPT, one.lease.task_id, one.lease.attempt - 1)
            interrupted = bool(last) and last[0][1] is not None and last[0][2] in {"lost", "requeued"}
            expected = c.PreviousSubmission(*last[0][:2]) if interrupted else None
            if one.resumed != expected:
                yield f"R309 {one.lease.task_id}/{one.lease.attempt} should resume {expected}, but got {one.resumed}"

    def _worker_snapshot(self, name: str) -> WorkerSnapshot | None:
        rows = self._inspector.rows(_WORKER_ROW, name)
        return WorkerSnapshot(*rows[0]) if rows else None

    def _held_tasks(self, name: str) -> HeldTasks:
        return frozenset(self._inspector.rows(_HELD_TASKS, name))


def _check_session_is_newest(command: c.Claim, before: BatchSnapshot) -> Iterator[str]:
    """F21: a session that was not the newest before the batch is refused in it."""
    snapshot = before.workers.get(command.worker_id)
    if command.token_hash is not None and (snapshot is None or snapshot.token_hash != command.token_hash):
        yield f"F21 {command.worker_id} got leases with the session of an earlier start"


def _fleet_worker_of(command: c.Command) -> str | None:
    """Return the registered worker of a command; reports on tasks are not included."""
    if isinstance(command, c.Claim):
        return None if command.token_hash is None else command.worker_id
    return None if hasattr(command, "lease") else getattr(command, "worker_id", None)
