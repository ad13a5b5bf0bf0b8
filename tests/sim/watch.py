"""What a command about the fleet or about files must mean, seen from the rows just before it and just after it."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from callsheet.core import commands as c
from tests.sim.peek import Peek

_HELD = """SELECT t.id, t.attempts FROM task t
    WHERE t.worker_id = ? AND t.status = 'running' AND t.token_hash IS NOT NULL ORDER BY t.id"""
_NEEDED = """SELECT f.id FROM file f WHERE f.status <> 'dropped' AND EXISTS (
    SELECT 1 FROM job j WHERE j.finished_at IS NULL
    AND (j.id = f.job_id OR EXISTS (SELECT 1 FROM use u WHERE u.job_id = j.id AND u.file_id = f.id)))"""
_LAST = """SELECT a.provider, a.ref, a.outcome FROM attempt a WHERE a.task_id = ? AND a.no = ?"""
_STANDING = "SELECT status, token_hash, draining_at, offered, assigned FROM worker WHERE id = ?"
Held = frozenset[tuple[str, int]]


class Standing(NamedTuple):
    """A worker of the fleet as its row says."""

    status: str
    token_hash: str | None
    draining_at: int | None
    offered: str
    assigned: str | None

    def may(self, command: c.Claim) -> bool:
        """Say whether this worker may claim so."""
        kinds = set(msgspec.json.decode(self.offered))
        if self.assigned is not None:
            kinds &= set(msgspec.json.decode(self.assigned))
        let_in = self.status == "approved" and self.draining_at is None
        return let_in and self.token_hash == command.session and kinds >= set(command.kinds)


class Before(NamedTuple):
    """What was true before a batch, of those whom it is about."""

    workers: dict[str, Standing]
    held: dict[str, Held]
    needed: frozenset[str]


class Watch:
    """Looks at the rows before a batch and after it; between the two nobody else has written."""

    def __init__(self, peek: Peek) -> None:
        self._peek = peek

    def before(self, commands: Sequence[c.Command]) -> Before:
        names = dict.fromkeys(name for command in commands if (name := _fleet_name(command)) is not None)
        dropping = any(isinstance(command, c.DropFiles) for command in commands)
        return Before(
            {name: standing for name in names if (standing := self._standing(name)) is not None},
            {name: self._held(name) for name in names},
            frozenset(key for (key,) in self._peek.rows(_NEEDED)) if dropping else frozenset(),
        )

    def after(self, commands: Sequence[c.Command], results: Sequence[Any], before: Before) -> Iterator[str]:
        """Yield what is wrong with the answers, whoever shared the batch."""
        for command, result in zip(commands, results, strict=True):
            if isinstance(command, c.Claim) and isinstance(result, list):
                yield from self._leased(result)
                yield from _newest_start(command, before)
            if isinstance(result, Exception):
                continue
            if isinstance(command, c.Register) and (left := self._held(command.worker_id)):
                yield f"F21 {command.worker_id} was started again and still holds {sorted(left)}"
        if len(commands) == 1:
            yield from self._alone(commands[0], results[0], before)

    def _alone(self, command: c.Command, result: Any, before: Before) -> Iterator[str]:
        if isinstance(command, c.Claim) and command.session is not None and isinstance(result, list):
            yield from self._admitted(command, result, before)
        name = _fleet_name(command)
        if name is not None:
            yield from self._moved(command, name, before.held[name])
        if isinstance(command, c.DropFiles) and not isinstance(result, Exception):
            gone = {file.id for file in result.files} & before.needed
            if gone:
                yield f"O7 files that an open job needs were dropped: {sorted(gone)}"

    def _admitted(self, command: c.Claim, leased: list[c.Leased], before: Before) -> Iterator[str]:
        """L6: nobody gets an answer whom the row does not let in; H6: what a worker does not know of is given back."""
        standing = before.workers.get(command.worker_id)
        if standing is None or not standing.may(command):
            yield f"L6 {command.worker_id} was answered with {len(leased)} leases and stands as {standing}"
        if command.holds is not None:
            known = {*command.holds, *(one.lease.task_id for one in leased)}
            if astray := [task for task, _ in sorted(self._held(command.worker_id)) if task not in known]:
                yield f"H6 {command.worker_id} does not know that it holds {astray}, and still does"

    def _moved(self, command: c.Command, name: str, before: Held) -> Iterator[str]:
        """H25: what was given back used up no try. R195, R209: a changed token and a drain keep the leases."""
        gone = before - self._held(name)
        if gone and isinstance(command, c.RotateWorker | c.SetWorker):
            yield f"R195 {type(command).__name__} took {sorted(gone)} from {name}"
        for task, no in sorted(gone):
            row = self._peek.rows("SELECT outcome, forgiven FROM attempt WHERE task_id = ? AND no = ?", task, no)
            if row[0] not in {(None, 0), ("requeued", 1), ("canceled", 1)}:
                yield f"H25 {type(command).__name__} ended {task}/{no} of {name} as {row[0]}"

    def _leased(self, leased: Sequence[c.Leased]) -> Iterator[str]:
        """R309: a task that was cut short says where its work lies; one that failed there begins anew."""
        for one in leased:
            last = self._peek.rows(_LAST, one.lease.task_id, one.lease.attempt - 1)
            cut = bool(last) and last[0][1] is not None and last[0][2] in {"lost", "requeued"}
            expected = c.Resumed(*last[0][:2]) if cut else None
            if one.resumed != expected:
                yield f"R309 {one.lease.task_id}/{one.lease.attempt} was to resume {expected} and got {one.resumed}"

    def _standing(self, name: str) -> Standing | None:
        rows = self._peek.rows(_STANDING, name)
        return Standing(*rows[0]) if rows else None

    def _held(self, name: str) -> Held:
        return frozenset(self._peek.rows(_HELD, name))


def _newest_start(command: c.Claim, before: Before) -> Iterator[str]:
    """F21: a token that was not the newest before the batch is not good in it, whatever else the batch did."""
    standing = before.workers.get(command.worker_id)
    if command.session is not None and (standing is None or standing.token_hash != command.session):
        yield f"F21 {command.worker_id} was answered under a token of an earlier start"


def _fleet_name(command: c.Command) -> str | None:
    """Return the worker that a command of or about the fleet names; a report on a task is none."""
    if isinstance(command, c.Claim):
        return None if command.session is None else command.worker_id
    return None if hasattr(command, "lease") else getattr(command, "worker_id", None)
