"""The context of one simulation: random source, clock, ids, trace and failures."""

import hashlib
from random import Random
from typing import NamedTuple, Protocol

from callsheet.core.model.clock import MILLISECOND, SECOND
from callsheet.core.model.ids import uuid7

START = 1_900_000_000 * SECOND


class Clock:
    """Virtual time in microseconds. It can jump ahead and step back, as the clock of a database can."""

    def __init__(self) -> None:
        self._now = START

    def now(self) -> int:
        return self._now

    def move(self, seconds: float) -> None:
        self._now += int(seconds * SECOND)


class Trace:
    """One line per step; two runs of one seed have the same digest of all lines."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.lines: list[str] = []
        self._digest = hashlib.sha256()
        self._verbose = verbose

    def add(self, line: str) -> None:
        self._digest.update(line.encode())
        self._digest.update(b"\n")
        if self._verbose:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


class ServerClock(Protocol):
    """The clock of a server."""

    def now(self) -> int: ...

    def sync_clock(self) -> None: ...


class Focus(NamedTuple):
    """What the actors of one simulation do more often, so that rare situations occur in some of them."""

    workflows: tuple[str, ...] = ()
    """The workflows of most jobs; empty: all."""
    actions: tuple[str, ...] = ()
    """The actions of clients that are more frequent."""
    failures: bool = False
    """Whether more attempts fail than complete."""
    late_reports: bool = False
    """Whether workers often forget a task and report it later."""
    operator: bool = False
    """Whether the operator acts often."""


class World:
    """The state that all actors of one simulation share."""

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.clock = Clock()
        """The clock of the database."""
        self.server_clocks: list[ServerClock] = []
        self.trace = Trace(verbose=verbose)
        self.commits = 0
        self.faults_stopped = False
        """Whether the faults have stopped."""
        self.approval_required = False
        """Whether an operator must approve workers before they get work."""
        self.focus = Focus()
        self.failures: list[str] = []

    def now(self) -> int:
        """Return the engine's time, which all servers have reached."""
        return min(clock.now() for clock in self.server_clocks)

    def move_clock(self, seconds: float) -> None:
        """Move the clock of the database. A server reads it often, so it knows the time before the move."""
        for clock in self.server_clocks:
            clock.sync_clock()
            clock.now()
        self.clock.move(seconds)

    def wait_until(self, at: int) -> None:
        """Move the clock of the database until the engine's time is there."""
        while (now := self.now()) < at:
            self.clock.move((at - now) / SECOND)

    def new_id(self) -> str:
        return uuid7(self.clock.now() // MILLISECOND, self.random.getrandbits(74))

    def new_token(self) -> str:
        return f"token-{self.random.getrandbits(96):024x}"

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.random.random() < probability

    def fault_occurs(self, probability: float) -> bool:
        """Return whether a fault happens; none does after the faults have stopped."""
        return self.random.random() < probability and not self.faults_stopped

    def log(self, text: str) -> None:
        self.trace.add(f"{(self.clock.now() - START) / SECOND:>10.3f} {text}")

    def report_failure(self, what: str) -> None:
        """Record a failed check; the simulation ends after this step."""
        self.failures.append(what)
        self.log(f"FAILURE {what}")
