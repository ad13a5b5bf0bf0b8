"""The recorded commands and answers of a simulation, and the checks of each answer when it is given."""

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

_LIVE_LEASES = "SELECT id, token_hash, lease_expires_at FROM task WHERE token_hash IS NOT NULL"


class Op(NamedTuple):
    """A command and its answer; the answer is None if the server did not answer, so that its effect is unknown."""

    command: Any
    answer: Any
    at: int

    @property
    def refused(self) -> bool:
        return isinstance(self.answer, Refusal)

    @property
    def succeeded(self) -> bool:
        """Whether the server answered without an error."""
        return self.answer is not None and not isinstance(self.answer, Exception)


class BatchContext:
    """The state of the database before a batch."""

    def __init__(self, commands: Sequence[Command], commits: int, before: BatchSnapshot) -> None:
        self.commands = commands
        self.commits = commits
        self.before = before
        self.prior: PriorAttempt | None = None
        self.stale: list[bool] = []
        """Whether the lease of each command has ended."""
        self.expires_at: int | None = None
        self.only_cursors = all(isinstance(command, AcquireCursor | AdvanceCursor) for command in commands)
        """Only cursors can change."""
        self.interleaved = False
        """Another batch ran during this one."""


class PriorAttempt(NamedTuple):
    """The outcome of the attempt of a lease so far, and its worker."""

    outcome: str | None
    digest: str | None
    worker_id: str


class History:
    """The recorded operations of one simulation."""

    def __init__(self, world: World, inspector: Inspector, invariants: Invariants) -> None:
        self.ops: list[Op] = []
        self._world = world
        self._inspector = inspector
        self._invariants = invariants
        self._batch_checks = BatchChecks(inspector)
        self._contexts: list[BatchContext] = []
        self._leased_attempts: set[tuple[str, int]] = set()
        self._expiries: dict[str, tuple[str, int]] = {}
        """The token and the expiry of the lease of each task."""

    def on_commit(self) -> None:
        if self._contexts[-1].only_cursors:
            return
        self._check_extensions(self._contexts[-1].commands)
        for finding in self._invariants.after_commit():
            self._world.report_failure(finding)

    def record_sent(self, server: str, commands: Sequence[Command], now: int) -> None:
        """Record commands before they run, at the engine's time of the server."""
        self._invariants.policy.record_sent(commands)
        for context in self._contexts:
            context.interleaved = True
        context = BatchContext(commands, self._world.commits, self._batch_checks.before(commands))
        self._contexts.append(context)
        for command in commands:
            lease: Lease | None = getattr(command, "lease", None)
            context.prior = self._prior_attempt(lease) if lease else None
            context.expires_at = self._expires_at(lease) if lease else None
            stale = lease is not None and self._is_stale(command, lease, context, now)
            context.stale.append(stale)
            self._world.log(f"{server} {'stale ' if stale else ''}{_format_command(command)}")

    def record_unanswered(self, commands: Sequence[Command]) -> None:
        self._contexts.pop()
        self.ops.extend(Op(command, None, self._world.clock.now()) for command in commands)

    def record_answered(self, commands: Sequence[Command], results: Sequence[Any], now: int) -> None:
        """Record the answers at the engine's time of the server."""
        context = self._contexts.pop()
        for command, result in zip(commands, results, strict=True):
            self._world.log(f"  -> {_format_result(result)}")
            unavailable = isinstance(result, Unavailable)
            if isinstance(result, Exception) and not isinstance(result, Refusal | Unavailable):
                self._world.report_failure(f"the engine failed at {_format_command(command)}: {result!r}")
            self.ops.append(Op(command, None if unavailable else result, now))
            if isinstance(result, list) and not context.interleaved:
                self._check_leases(result, now)
        if context.interleaved:
            return
        for command, result, stale in zip(commands, results, context.stale, strict=True):
            if stale and not (isinstance(result, Exception) or _is_no_op(result)):
                self._world.report_failure(f"H7 {_format_command(command)} with an old lease got {result}")
        for finding in self._batch_checks.after(commands, results, context.before):
            self._world.report_failure(finding)
        if len(commands) == 1:
            self._check_single(commands[0], results[0], context, now)

    # -- checks of answers

    def _check_single(self, command: Command, result: Any, context: BatchContext, now: int) -> None:
        """Check a command that was alone in its batch."""
        wrote = self._world.commits != context.commits
        if isinstance(result, Refusal) and wrote:
            self._world.report_failure(
                f"R24 {_format_command(command)} was refused ({result.code}) and changed something"
            )
        stale = context.stale[0]
        if stale and wrote:
            self._world.report_failure(f"H7 {_format_command(command)} changed something with an old lease")
        if isinstance(command, Heartbeat) and isinstance(result, HeartbeatResult) and not stale:
            self._check_heartbeat(command, context, now)
        if isinstance(command, Complete) and (prior := context.prior) and prior.outcome == "completed":
            same = prior.digest == digest_of(command)
            correct = isinstance(result, TaskState) and result.replay if same else isinstance(result, LeaseLost)
            if command.worker_id not in {None, prior.worker_id}:
                correct = isinstance(result, NotFound)
            if not correct and not isinstance(result, Unavailable):
                self._world.report_failure(f"H8 {_format_command(command)}, completed before ({same=}), got {result}")

    def _check_heartbeat(self, command: Heartbeat, context: BatchContext, now: int) -> None:
        """Check that a heartbeat extends the lease from now on, and never shortens it."""
        seconds = command.lease_seconds or self._inspector.one(
            "SELECT lease_seconds FROM task WHERE id = ?", command.lease.task_id
        )
        before, after = context.expires_at or 0, self._expires_at(command.lease) or 0
        latest = now + seconds * SECOND
        if not before <= after <= max(before, latest):
            self._world.report_failure(
                f"L4 a heartbeat for {seconds} s moved the expiry of a lease from {before} to {after}"
            )

    def _check_extensions(self, commands: Sequence[Command]) -> None:
        """L4: the expiry of a lease moves only by a heartbeat with its own token."""
        before, self._expiries = self._expiries, {
            task: (token, at) for task, token, at in self._inspector.rows(_LIVE_LEASES)
        }  # fmt: skip
        for task, (token, at) in self._expiries.items():
            if task in before and before[task][0] == token and before[task][1] != at:
                leases = (command.lease for command in commands if isinstance(command, Heartbeat))
                if (task, token) not in {(lease.task_id, hash_token(lease.token)) for lease in leases}:
                    self._world.report_failure(f"L4 the lease of {task} was moved to {at} without its token")

    def _expires_at(self, lease: Lease) -> int | None:
        found: int | None = self._inspector.one("SELECT lease_expires_at FROM task WHERE id = ?", lease.task_id)
        return found

    def _check_leases(self, leased: Sequence[Any], now: int) -> None:
        for one in leased:
            if not isinstance(one, LeasedTask):
                continue
            key = (one.lease.task_id, one.lease.attempt)
            if key in self._leased_attempts:
                self._world.report_failure(f"L1 {key} was leased twice")
            self._leased_attempts.add(key)
            row = self._inspector.rows(
                "SELECT CASE WHEN t.attempts = a.no THEN t.lease_expires_at END FROM attempt a"
                " JOIN task t ON t.id = a.task_id WHERE a.task_id = ? AND a.no = ?", *key,
            )  # fmt: skip
            if not row:
                self._world.report_failure(f"L3 {key} was leased and is not stored")
            elif row[0][0] is not None:
                seconds = (row[0][0] - now) / SECOND
                if seconds < one.lease_seconds - 2:
                    self._world.report_failure(f"L4 {key} lasts {seconds} s and the answer said {one.lease_seconds}")

    def _prior_attempt(self, lease: Lease) -> PriorAttempt | None:
        rows = self._inspector.rows(
            "SELECT outcome, digest, worker_id FROM attempt WHERE task_id = ? AND no = ? AND token_hash = ?",
            lease.task_id, lease.attempt, hash_token(lease.token),
        )  # fmt: skip
        return PriorAttempt(*rows[0]) if rows else None

    def _is_stale(self, command: Any, lease: Lease, context: BatchContext, now: int) -> bool:
        prior = context.prior
        if prior is None or prior.outcome is not None or command.worker_id not in {None, prior.worker_id}:
            return True
        live = self._inspector.one("SELECT token_hash FROM task WHERE id = ?", lease.task_id)
        if isinstance(command, HandOff):  # a late reference of a recorded call is kept
            return False
        return live != hash_token(lease.token) or (context.expires_at or 0) <= now


def digest_of(command: Complete) -> str:
    """Return the stored digest of an output and its files."""
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
