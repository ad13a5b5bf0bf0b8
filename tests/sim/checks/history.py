"""What was asked and what was answered, and what an answer must mean the moment it is given."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from callsheet.core.decisions.lease_check import hash_token
from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import (
    AcquireCursor,
    AdvanceCursor,
    Command,
    Complete,
    HandOff,
    Heartbeat,
    HeartbeatResult,
    Lease,
    LeasedTask,
    TaskState,
)
from callsheet.core.model.errors import LeaseLost, NotFound, Refusal
from callsheet.core.working_set import encode
from callsheet.engine.lane import Unavailable
from tests.sim.checks.batch_checks import BatchChecks, BatchSnapshot
from tests.sim.checks.inspector import Inspector
from tests.sim.checks.invariants import Invariants
from tests.sim.environment.simulation_context import World


class Op(NamedTuple):
    """A command and its answer; None if the server never said, so that only the database knows."""

    command: Any
    answer: Any
    at: int

    @property
    def refused(self) -> bool:
        return isinstance(self.answer, Refusal)

    @property
    def succeeded(self) -> bool:
        """Whether the server said that it did it."""
        return self.answer is not None and not isinstance(self.answer, Exception)


class BatchContext:
    """What the database was like before a batch."""

    def __init__(self, commits: int, prior: "PriorAttempt | None", before: BatchSnapshot, *, stale: bool) -> None:
        self.commits = commits
        self.before = before
        self.prior = prior
        self.stale = stale
        self.expires_at: int | None = None
        self.only_cursors = False
        """Nothing but places of readers can change."""
        self.interleaved = False
        """Somebody else's batch ran within this one."""


class PriorAttempt(NamedTuple):
    """How the attempt of a lease has ended so far, and whose it is."""

    outcome: str | None
    digest: str | None
    worker_id: str


class History:
    """The recorded operations of one life."""

    def __init__(self, world: World, inspector: Inspector, invariants: Invariants) -> None:
        self.ops: list[Op] = []
        self._world = world
        self._inspector = inspector
        self._invariants = invariants
        self._batch_checks = BatchChecks(inspector)
        self._contexts: list[BatchContext] = []
        self._leased_attempts: set[tuple[str, int]] = set()

    def on_commit(self) -> None:
        if self._contexts[-1].only_cursors:
            return
        for finding in self._invariants.after_commit():
            self._world.report_failure(finding)

    def record_sent(self, server: str, commands: Sequence[Command]) -> None:
        for context in self._contexts:
            context.interleaved = True
        lease: Lease | None = getattr(commands[0], "lease", None) if len(commands) == 1 else None
        prior = self._prior_attempt(lease) if lease else None
        stale = lease is not None and self._is_stale(commands[0], lease, prior)
        context = BatchContext(self._world.commits, prior, self._batch_checks.before(commands), stale=stale)
        context.expires_at = self._expires_at(lease) if lease else None
        context.only_cursors = all(isinstance(command, AcquireCursor | AdvanceCursor) for command in commands)
        self._contexts.append(context)
        for command in commands:
            self._world.log(f"{server} {'stale ' if stale else ''}{_format_command(command)}")

    def record_unanswered(self, commands: Sequence[Command]) -> None:
        self._contexts.pop()
        self.ops.extend(Op(command, None, self._world.clock.now()) for command in commands)

    def record_answered(self, commands: Sequence[Command], results: Sequence[Any]) -> None:
        context = self._contexts.pop()
        now = self._world.clock.now()
        for command, result in zip(commands, results, strict=True):
            self._world.log(f"  -> {_format_result(result)}")
            unavailable = isinstance(result, Unavailable)
            if isinstance(result, Exception) and not isinstance(result, Refusal | Unavailable):
                self._world.report_failure(f"the engine broke on {_format_command(command)}: {result!r}")
            self.ops.append(Op(command, None if unavailable else result, now))
            if isinstance(result, list) and not context.interleaved:
                self._check_leases(result)
        if context.interleaved:
            return
        for finding in self._batch_checks.after(commands, results, context.before):
            self._world.report_failure(finding)
        if len(commands) == 1:
            self._check_single(commands[0], results[0], context)

    # -- what an answer must mean

    def _check_single(self, command: Command, result: Any, context: BatchContext) -> None:
        """Judge a command that had its batch for itself."""
        wrote = self._world.commits != context.commits
        if isinstance(result, Refusal) and wrote:
            self._world.report_failure(
                f"R24 {_format_command(command)} was refused ({result.code}) and changed something"
            )
        if context.stale:
            if wrote:
                self._world.report_failure(f"H7 {_format_command(command)} changed something with a lease that is over")
            if not (isinstance(result, Exception) or _is_no_op(result)):
                self._world.report_failure(f"H7 {_format_command(command)} with a lease that is over got {result}")
        if isinstance(command, Heartbeat) and isinstance(result, HeartbeatResult) and not context.stale:
            self._check_heartbeat(command, context)
        if isinstance(command, Complete) and (prior := context.prior) and prior.outcome == "completed":
            same = prior.digest == digest_of(command)
            correct = isinstance(result, TaskState) and result.replay if same else isinstance(result, LeaseLost)
            if command.worker_id not in {None, prior.worker_id}:
                correct = isinstance(result, NotFound)
            if not correct and not isinstance(result, Unavailable):
                self._world.report_failure(f"H8 {_format_command(command)}, completed before ({same=}), got {result}")

    def _check_heartbeat(self, command: Heartbeat, context: BatchContext) -> None:
        """Judge a heartbeat: it prolongs the lease from now, and never takes anything off it."""
        seconds = command.lease_seconds or self._inspector.one(
            "SELECT lease_seconds FROM task WHERE id = ?", command.lease.task_id
        )
        before, after = context.expires_at or 0, self._expires_at(command.lease) or 0
        latest = self._world.clock.now() + int((seconds + self._world.clock.set_back_seconds) * SECOND)
        if not before <= after <= max(before, latest):
            self._world.report_failure(
                f"L4 a heartbeat for {seconds} s took the end of a lease from {before} to {after}"
            )

    def _expires_at(self, lease: Lease) -> int | None:
        found: int | None = self._inspector.one("SELECT lease_expires_at FROM task WHERE id = ?", lease.task_id)
        return found

    def _check_leases(self, leased: Sequence[Any]) -> None:
        for one in leased:
            if not isinstance(one, LeasedTask):
                continue
            key = (one.lease.task_id, one.lease.attempt)
            if key in self._leased_attempts:
                self._world.report_failure(f"L1 {key} was leased twice")
            self._leased_attempts.add(key)
            row = self._inspector.rows(
                "SELECT t.lease_expires_at FROM task t JOIN attempt a ON a.task_id = t.id AND a.no = t.attempts"
                " WHERE t.id = ? AND a.no = ?", *key,
            )  # fmt: skip
            if not row:
                self._world.report_failure(f"L3 {key} was leased and is not there")
            elif row[0][0] is not None:
                seconds = (row[0][0] - self._world.clock.now()) / SECOND
                if seconds < one.lease_seconds - 2:
                    self._world.report_failure(
                        f"L4 {key} lasts {seconds} s and the worker was told {one.lease_seconds}"
                    )

    def _prior_attempt(self, lease: Lease) -> PriorAttempt | None:
        rows = self._inspector.rows(
            "SELECT outcome, digest, worker_id FROM attempt WHERE task_id = ? AND no = ? AND token_hash = ?",
            lease.task_id, lease.attempt, hash_token(lease.token),
        )  # fmt: skip
        return PriorAttempt(*rows[0]) if rows else None

    def _is_stale(self, command: Any, lease: Lease, prior: PriorAttempt | None) -> bool:
        if prior is None or prior.outcome is not None or command.worker_id not in {None, prior.worker_id}:
            return True
        live = self._inspector.one("SELECT token_hash FROM task WHERE id = ?", lease.task_id)
        return not isinstance(command, HandOff) and live != hash_token(lease.token)


def digest_of(command: Complete) -> str:
    """Return the digest under which a result is kept, with the files that it names."""
    files_text = "".join(f"\n{file.no} {file.sha256} {file.name}" for file in command.files)
    return hashlib.sha256((encode(command.output) + files_text).encode()).hexdigest()


def _is_no_op(result: Any) -> bool:
    if isinstance(result, HeartbeatResult):
        return result.cancel
    return isinstance(result, TaskState) and (result.replay or result.skipped is not None)


def _format_command(command: Command) -> str:
    fields = (
        (name, getattr(command, name)) for name in command.__struct_fields__ if name not in {"tokens", "definition"}
    )
    return f"{type(command).__name__}({', '.join(f'{n}={v}' for n, v in fields if v not in (None, ''))})"


def _format_result(result: Any) -> str:
    if isinstance(result, Refusal):
        return f"refused: {result.code}"
    return repr(result)
