"""What was asked and what was answered, and what an answer must mean the moment it is given."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from callsheet.core.clock import SECOND
from callsheet.core.commands import (
    Beat,
    Command,
    Complete,
    Hand,
    Heartbeat,
    Lease,
    Leased,
    MoveCursor,
    TakeCursor,
    TaskState,
)
from callsheet.core.errors import LeaseLost, Refusal, Unknown
from callsheet.core.holding import hashed
from callsheet.core.working import encode
from callsheet.engine.lane import Unavailable
from tests.sim.checks import Checks
from tests.sim.peek import Peek
from tests.sim.watch import Before, Watch
from tests.sim.world import World


class Op(NamedTuple):
    """A command and its answer; None if the server never said, so that only the database knows."""

    command: Any
    answer: Any
    at: int

    @property
    def refused(self) -> bool:
        return isinstance(self.answer, Refusal)

    @property
    def done(self) -> bool:
        """Whether the server said that it did it."""
        return self.answer is not None and not isinstance(self.answer, Exception)


class Frame:
    """What the database was like before a batch."""

    def __init__(self, commits: int, past: "Past | None", before: Before, *, stale: bool) -> None:
        self.commits = commits
        self.before = before
        self.past = past
        self.stale = stale
        self.expires_at: int | None = None
        self.quiet = False
        """Nothing but places of readers can change."""
        self.disturbed = False
        """Somebody else's batch ran within this one."""


class Past(NamedTuple):
    """How the attempt of a lease has ended so far, and whose it is."""

    outcome: str | None
    digest: str | None
    worker_id: str


class History:
    """The recorded operations of one life."""

    def __init__(self, world: World, peek: Peek, checks: Checks) -> None:
        self.ops: list[Op] = []
        self._world = world
        self._peek = peek
        self._checks = checks
        self._watch = Watch(peek)
        self._frames: list[Frame] = []
        self._granted: set[tuple[str, int]] = set()

    def committed(self) -> None:
        if self._frames[-1].quiet:
            return
        for finding in self._checks.after_commit():
            self._world.blame(finding)

    def sent(self, server: str, commands: Sequence[Command]) -> None:
        for frame in self._frames:
            frame.disturbed = True
        lease: Lease | None = getattr(commands[0], "lease", None) if len(commands) == 1 else None
        past = self._past(lease) if lease else None
        stale = lease is not None and self._stale(commands[0], lease, past)
        frame = Frame(self._world.commits, past, self._watch.before(commands), stale=stale)
        frame.expires_at = self._expires_at(lease) if lease else None
        frame.quiet = all(isinstance(command, TakeCursor | MoveCursor) for command in commands)
        self._frames.append(frame)
        for command in commands:
            self._world.say(f"{server} {'stale ' if stale else ''}{_short(command)}")

    def unanswered(self, commands: Sequence[Command]) -> None:
        self._frames.pop()
        self.ops.extend(Op(command, None, self._world.clock.now()) for command in commands)

    def answered(self, commands: Sequence[Command], results: Sequence[Any]) -> None:
        frame = self._frames.pop()
        now = self._world.clock.now()
        for command, result in zip(commands, results, strict=True):
            self._world.say(f"  -> {_short_result(result)}")
            unsure = isinstance(result, Unavailable)
            if isinstance(result, Exception) and not isinstance(result, Refusal | Unavailable):
                self._world.blame(f"the engine broke on {_short(command)}: {result!r}")
            self.ops.append(Op(command, None if unsure else result, now))
            if isinstance(result, list) and not frame.disturbed:
                self._leases(result)
        if frame.disturbed:
            return
        for finding in self._watch.after(commands, results, frame.before):
            self._world.blame(finding)
        if len(commands) == 1:
            self._alone(commands[0], results[0], frame)

    # -- what an answer must mean

    def _alone(self, command: Command, result: Any, frame: Frame) -> None:
        """Judge a command that had its batch for itself."""
        wrote = self._world.commits != frame.commits
        if isinstance(result, Refusal) and wrote:
            self._world.blame(f"R24 {_short(command)} was refused ({result.code}) and changed something")
        if frame.stale:
            if wrote:
                self._world.blame(f"H7 {_short(command)} changed something with a lease that is over")
            if not (isinstance(result, Exception) or _is_no_op(result)):
                self._world.blame(f"H7 {_short(command)} with a lease that is over got {result}")
        if isinstance(command, Heartbeat) and isinstance(result, Beat) and not frame.stale:
            self._beaten(command, frame)
        if isinstance(command, Complete) and (past := frame.past) and past.outcome == "completed":
            same = past.digest == digest_of(command)
            fine = isinstance(result, TaskState) and result.replay if same else isinstance(result, LeaseLost)
            if command.worker_id not in {None, past.worker_id}:
                fine = isinstance(result, Unknown)
            if not fine and not isinstance(result, Unavailable):
                self._world.blame(f"H8 {_short(command)}, completed before ({same=}), got {result}")

    def _beaten(self, command: Heartbeat, frame: Frame) -> None:
        """Judge a heartbeat: it prolongs the lease from now, and never takes anything off it."""
        lasting = command.lease_seconds or self._peek.one(
            "SELECT lease_seconds FROM task WHERE id = ?", command.lease.task_id
        )
        before, after = frame.expires_at or 0, self._expires_at(command.lease) or 0
        latest = self._world.clock.now() + int((lasting + self._world.clock.back_seconds) * SECOND)
        if not before <= after <= max(before, latest):
            self._world.blame(f"L4 a heartbeat for {lasting} s took the end of a lease from {before} to {after}")

    def _expires_at(self, lease: Lease) -> int | None:
        found: int | None = self._peek.one("SELECT lease_expires_at FROM task WHERE id = ?", lease.task_id)
        return found

    def _leases(self, leased: Sequence[Any]) -> None:
        for one in leased:
            if not isinstance(one, Leased):
                continue
            key = (one.lease.task_id, one.lease.attempt)
            if key in self._granted:
                self._world.blame(f"L1 {key} was leased twice")
            self._granted.add(key)
            row = self._peek.rows(
                "SELECT t.lease_expires_at FROM task t JOIN attempt a ON a.task_id = t.id AND a.no = t.attempts"
                " WHERE t.id = ? AND a.no = ?", *key,
            )  # fmt: skip
            if not row:
                self._world.blame(f"L3 {key} was leased and is not there")
            elif row[0][0] is not None:
                lasting = (row[0][0] - self._world.clock.now()) / SECOND
                if lasting < one.lease_seconds - 2:
                    self._world.blame(f"L4 {key} lasts {lasting} s and the worker was told {one.lease_seconds}")

    def _past(self, lease: Lease) -> Past | None:
        rows = self._peek.rows(
            "SELECT outcome, digest, worker_id FROM attempt WHERE task_id = ? AND no = ? AND token_hash = ?",
            lease.task_id, lease.attempt, hashed(lease.token),
        )  # fmt: skip
        return Past(*rows[0]) if rows else None

    def _stale(self, command: Any, lease: Lease, past: Past | None) -> bool:
        if past is None or past.outcome is not None or command.worker_id not in {None, past.worker_id}:
            return True
        live = self._peek.one("SELECT token_hash FROM task WHERE id = ?", lease.task_id)
        return not isinstance(command, Hand) and live != hashed(lease.token)


def digest_of(command: Complete) -> str:
    """Return the digest under which a result is kept, with the files that it names."""
    made = "".join(f"\n{file.no} {file.sha256} {file.name}" for file in command.files)
    return hashlib.sha256((encode(command.output) + made).encode()).hexdigest()


def _is_no_op(result: Any) -> bool:
    if isinstance(result, Beat):
        return result.cancel
    return isinstance(result, TaskState) and (result.replay or result.skipped is not None)


def _short(command: Command) -> str:
    fields = ((name, getattr(command, name)) for name in command.__struct_fields__ if name not in {"tokens", "recipe"})
    return f"{type(command).__name__}({', '.join(f'{n}={v}' for n, v in fields if v not in (None, ''))})"


def _short_result(result: Any) -> str:
    if isinstance(result, Refusal):
        return f"refused: {result.code}"
    return repr(result)
