"""Workers of the fleet: they register for every start, lose answers, come back under their name, and have twins."""

from typing import Any

from msgspec.structs import replace

from callsheet.core import commands as c
from callsheet.core.errors import NotAdmitted, Refusal
from tests.sim.catalog import KINDS
from tests.sim.network import Request, nobody
from tests.sim.provider import FakeProvider
from tests.sim.server import Admitted
from tests.sim.shelf import Shelf
from tests.sim.workers import Hold, Worker
from tests.sim.world import World

MACHINE = "comfyui"


class Board:
    """What a thief may get hold of: the leases that workers of the fleet were given lately."""

    def __init__(self) -> None:
        self.holds: list[tuple[str, Hold]] = []

    def pin(self, owner: str, hold: Hold) -> None:
        self.holds = [*self.holds[-5:], (owner, hold)]


class FleetWorker(Worker):
    """A machine of the fleet. It may have a twin: another process that goes by the same name."""

    def __init__(self, world: World, name: str, provider: FakeProvider, shelf: Shelf, board: Board) -> None:
        super().__init__(world, name, provider, shelf)
        self.says = name
        self.session: str | None = None
        self._sessions: list[str] = []
        """Those of its earlier starts."""
        self._board = board
        self._concurrency = world.random.choice((1, 2, 2, 4))
        self._silent = 0

    @property
    def outside(self) -> bool:
        return self.session is None

    def _next(self) -> Request | None:
        if self._silent:
            self._silent -= 1
            return None
        fate = self._random.random()
        if fate < 0.04:
            self._start_again()
        if fate < 0.14 and (haunting := self._haunting()):
            return haunting
        if self.session is None:
            return self._register(self._kinds, self._concurrency)
        if fate < 0.155:
            return self._goodbye(self.session)
        if fate < 0.165:
            self._world.say(f"  {self.name} falls silent")
            self._silent = self._random.choice((3, 9))
            return None
        if self._holds and fate < 0.75:
            hold = self._random.choice(self._holds)
            local = hold.kind in {"draw", "cut"} and hold.report is None
            return self._note_ref(hold) if local and self._random.random() < 0.25 else self._work(hold)
        return self.claim(self._random.choice((1, 1, 2, 3)))

    def _start_again(self) -> None:
        """Lose everything but the name; what the old process still says comes late, as a ghost."""
        self._world.say(f"  {self.name} starts again")
        self._zombies.extend(self._holds)
        self._holds.clear()
        self._leave()

    def _leave(self) -> None:
        if self.session is not None:
            self._sessions.append(self.session)
        self.session = None

    # -- coming and going

    def _register(self, kinds: tuple[str, ...], concurrency: int) -> Request:
        approved = not self._world.approval
        come = c.Register(
            worker_id=self.name, kinds=kinds, token_hash="", concurrency=concurrency, approved=approved, by="fleet"
        )
        return Request([come], self._admitted)

    def _admitted(self, answers: list[Any] | None) -> None:
        """Take the token; what this process thought to hold was given back with its start."""
        answer = answers[0] if answers else None
        if isinstance(answer, Admitted):
            self.session = answer.session
            self._zombies.extend(self._holds)
            self._holds.clear()

    def _goodbye(self, session: str) -> Request:
        def heard(answers: list[Any] | None) -> None:
            if answers and answers[0] is not None:
                self._start_again()

        return Request([c.Deregister(worker_id=self.name, session=session, reason="shutdown", by=self.name)], heard)

    def rotated(self, session: str) -> None:
        """Get another token from the operator; now and then nobody tells."""
        if self.session is not None and not self._world.mishap(0.3):
            self._sessions.append(self.session)
            self.session = session

    # -- working

    def claim(self, count: int, lease_seconds: int | None = None, *, every_kind: bool = False) -> Request:
        if self.session is None:
            return self._register(KINDS if every_kind else self._kinds, count if every_kind else self._concurrency)
        if not self._world.calm:
            lease_seconds = self._random.choice((None, None, None, 8, 40))
        return self._claim(self.session, count, lease_seconds, KINDS if every_kind else self._kinds)

    def _claim(self, session: str, count: int, lease_seconds: int | None, kinds: tuple[str, ...]) -> Request:
        told = self._world.calm or self._random.random() < 0.8
        holds = tuple(hold.lease.task_id for hold in self._holds) if told else None
        claim = c.Claim(
            worker_id=self.name, kinds=kinds, count=count, lease_seconds=lease_seconds, session=session, holds=holds
        )
        return Request([claim], self._claimed)

    def _claimed(self, answers: list[Any] | None) -> None:
        if answers and isinstance(answers[0], NotAdmitted):
            self._start_again()
        super()._claimed(answers)
        if answers and isinstance(answers[0], list):
            for hold in self._holds[-len(answers[0]) :] if answers[0] else ():
                self._board.pin(self.name, hold)

    def _note_ref(self, hold: Hold) -> Request:
        ref = f"prompt-{self._random.randrange(3)}"
        told = c.Submitting(lease=hold.lease, provider=MACHINE, ref=ref, worker_id=self.says)
        return Request([told], lambda answers: self._noted(hold, answers))

    def _noted(self, hold: Hold, answers: list[Any] | None) -> None:
        hold.noted = True
        if answers and isinstance(answers[0], Refusal) and hold in self._holds:
            self._holds.remove(hold)
            self._zombies.append(hold)

    # -- coming back late

    def _haunting(self) -> Request | None:
        """Do what one should not: work on under an old token, report on another's task, repeat oneself."""
        fate = self._random.random()
        if fate < 0.4 and self._sessions:
            session = self._random.choice(self._sessions[-3:])
            if self._random.random() < 0.2:
                return Request(
                    [c.Deregister(worker_id=self.name, session=session, reason="late", by=self.name)], nobody
                )
            claim = self._claim(session, 1, None, self._kinds).commands
            return Request([replace(command, holds=()) for command in claim], nobody)
        others = [hold for owner, hold in self._board.holds if owner != self.name and not hold.called]
        if fate < 0.7 and others:
            return self._as_a_ghost(self._random.choice(others))
        return self._haunt() if self._zombies or self._past else None

    # -- when the storm is over

    def wake(self) -> None:
        """Start again in the calm, as a good worker of every kind."""
        self._waiting = False
        self._start_again()
