"""What a life is made of besides its actors: one random source, one clock, ids, the trace, and what went wrong."""

import hashlib
from random import Random

from callsheet.core.model.clock import MILLISECOND, SECOND
from callsheet.core.model.ids import uuid7

START = 1_900_000_000 * SECOND


class Clock:
    """Virtual time in microseconds. It may jump ahead, and it may step back as a database's clock does."""

    def __init__(self) -> None:
        self._now = START
        self.set_back_seconds = 0.0
        """How far it was set back in all: what was promised before that lasts so much longer."""

    def now(self) -> int:
        return self._now

    def move(self, seconds: float) -> None:
        self._now += int(seconds * SECOND)
        self.set_back_seconds -= min(seconds, 0)


class Trace:
    """Every step as a line; the lines' digest is what two lives of one seed have in common."""

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


class World:
    """The ground under a life."""

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.clock = Clock()
        self.trace = Trace(verbose=verbose)
        self.commits = 0
        self.faults_stopped = False
        """Whether the faults have stopped."""
        self.approval_required = False
        """Whether an operator must approve workers before they get work."""
        self.failures: list[str] = []

    def new_id(self) -> str:
        return uuid7(self.clock.now() // MILLISECOND, self.random.getrandbits(74))

    def new_token(self) -> str:
        return f"token-{self.random.getrandbits(96):024x}"

    def chance(self, probability: float) -> bool:
        """Say yes now and then; never once the faults have stopped."""
        return self.random.random() < probability

    def fault_occurs(self, probability: float) -> bool:
        """Say whether a fault happens; none does once they have stopped."""
        return self.random.random() < probability and not self.faults_stopped

    def log(self, text: str) -> None:
        self.trace.add(f"{(self.clock.now() - START) / SECOND:>10.3f} {text}")

    def report_failure(self, what: str) -> None:
        """Note a broken promise; the life ends with this step."""
        self.failures.append(what)
        self.log(f"BROKEN {what}")
