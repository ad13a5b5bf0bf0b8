"""Workers: they claim, work, fall silent, die, and come back late with leases that are no longer theirs."""

from collections.abc import Callable
from functools import partial
from typing import Any

from callsheet.blobs import keys
from callsheet.core import commands as c
from callsheet.core.errors import Refusal
from tests.sim.catalog import KINDS, PROVIDER
from tests.sim.network import Heard, Request
from tests.sim.provider import FakeProvider, NoAnswer, Refused
from tests.sim.shelf import Shelf
from tests.sim.world import World


class Hold:
    """A lease in a worker's hands, and how far it has come with it."""

    def __init__(self, leased: c.Leased) -> None:
        self.lease = leased.lease
        self.kind = leased.kind
        self.tenant = leased.tenant
        self.report: c.Command | None = None
        """What it has said, and goes on saying until it is heard."""
        self.intended = False
        self.noted = False
        self.called = False
        self.ref: str | None = None


class Worker:
    """A worker process of the house, under one name; after a crash another one goes on under the same name."""

    says: str | None = None
    """The name under which it reports, where the edge knows it."""

    def __init__(self, world: World, name: str, provider: FakeProvider, shelf: Shelf) -> None:
        self._world = world
        self._random = world.random
        self.name = name
        self._provider = provider
        self._shelf = shelf
        self._kinds = world.random.choice((KINDS, KINDS, ("draw",), ("cut", "draw"), ("render",)))
        self._holds: list[Hold] = []
        self._zombies: list[Hold] = []
        self._past: list[c.Command] = []
        self._waiting = False

    @property
    def outside(self) -> bool:
        """Whether it has to be let in before it gets anything."""
        return False

    def act(self) -> Request | None:
        """Do one thing; while its answer is awaited, nothing else."""
        request = None if self._waiting else self._next()
        if request is None:
            return None
        self._waiting = True
        return Request(request.commands, partial(self._answered, request.heard))

    def _answered(self, heard: Heard, answers: list[Any] | None) -> None:
        self._waiting = False
        heard(answers)

    def _next(self) -> Request | None:
        fate = self._random.random()
        if fate < 0.03:
            self._world.say(f"  {self.name} dies")
            self._zombies.extend(self._holds)
            self._holds.clear()
        if fate < 0.12 and (self._zombies or self._past):
            return self._haunt()
        if self._holds and fate < 0.75:
            return self._work(self._random.choice(self._holds))
        return self.claim(self._random.choice((1, 1, 2, 3)))

    def claim(self, count: int, lease_seconds: int | None = None, *, every_kind: bool = False) -> Request:
        if not self._world.calm:
            lease_seconds = self._random.choice((None, None, None, 8, 40))
        kinds = KINDS if every_kind else self._kinds
        return Request([c.Claim(worker_id=self.name, kinds=kinds, count=count, lease_seconds=lease_seconds)],
                       self._claimed)  # fmt: skip

    def _claimed(self, answers: list[Any] | None) -> None:
        if answers and isinstance(answers[0], list):
            self._holds.extend(Hold(leased) for leased in answers[0])

    # -- working

    def _work(self, hold: Hold) -> Request | None:
        if hold.report is None and self._random.random() < 0.08:
            self._world.say(f"  {self.name} forgets {hold.lease.task_id}")
            self._holds.remove(hold)
            self._zombies.append(hold)
            return None
        if hold.report is None and self._random.random() < 0.25:
            self._put(hold, 1)
            progress = self._random.choice((None, 0, 30, 99))
            seconds = self._random.choice((None, None, 5, 120))
            beat = c.Heartbeat(lease=hold.lease, progress=progress, lease_seconds=seconds, worker_id=self.says)
            return Request([beat], lambda answers: self._beaten(hold, answers))
        if hold.kind == "render" and hold.report is None and (hold.called or self._random.random() < 0.85):
            return self._hand_over(hold)
        if hold.report is None:
            hold.report = self._ending(hold)
        return self._say(hold, hold.report)

    def _ending(self, hold: Hold) -> c.Command:
        fate = self._random.random() if not hold.noted else self._random.choice((0.1, 0.7, 0.7, 0.9))
        if fate < 0.6:
            delivered = self._random.choice((100, 100, 40))
            output = {"take": self._random.randrange(1_000)}
            made = self._made(hold)
            return c.Complete(lease=hold.lease, output=output, delivered=delivered, files=made, worker_id=self.says)
        if fate < 0.85:
            retryable = self._random.choice((True, True, False, None))
            return c.Fail(lease=hold.lease, message="out of memory", retryable=retryable, worker_id=self.says)
        return c.Requeue(lease=hold.lease, reason="going away", worker_id=self.says)

    def _made(self, hold: Hold) -> tuple[c.Made, ...]:
        """Put what the task made where the lease's epoch says; the rows come with the result, or never."""
        numbers = range(1, self._random.choice((0, 0, 1, 2)) + 1)
        for no in numbers:
            self._put(hold, no)
        return tuple(
            c.Made(no, f"take-{no}.png", "image/png", 1 + no, f"{self._random.getrandbits(64):064x}") for no in numbers
        )

    def _put(self, hold: Hold, no: int) -> None:
        lease = hold.lease
        self._shelf.put(keys.made(hold.tenant, lease.job_id, lease.task_id, lease.attempt, no))

    def _say(self, hold: Hold, command: c.Command, heard: Callable[[Any], None] | None = None) -> Request:
        def listen(answers: list[Any] | None) -> None:
            if answers is None or answers[0] is None:
                return
            if heard is not None and not isinstance(answers[0], Refusal):
                heard(answers[0])
                return
            self._past.append(command)
            if hold in self._holds:
                self._holds.remove(hold)

        return Request([command], listen)

    def _beaten(self, hold: Hold, answers: list[Any] | None) -> None:
        beat = answers[0] if answers else None
        gone = isinstance(beat, Refusal) or (isinstance(beat, c.Beat) and beat.cancel and beat.lease_seconds == 0)
        if gone and hold in self._holds:
            self._holds.remove(hold)
            self._zombies.append(hold)
        elif isinstance(beat, c.Beat) and beat.cancel and self._random.random() < 0.6:
            hold.report = hold.report or c.Fail(
                lease=hold.lease, code="canceled", message="stopped as asked", worker_id=self.says
            )

    # -- work at a provider

    def _hand_over(self, hold: Hold) -> Request:
        if hold.ref is not None:
            return self._say(hold, c.Hand(lease=hold.lease, ref=hold.ref, worker_id=self.says))
        intend = c.Intend(lease=hold.lease, provider=PROVIDER, worker_id=self.says)
        return self._say(hold, intend, lambda answer: self._call(hold, answer))

    def _call(self, hold: Hold, intended: c.Intended) -> None:
        hold.intended = True
        if hold not in self._holds or intended.status != "intended" or hold.called:
            return
        if self._world.mishap(0.1):
            self._world.say(f"  {self.name} dies before it calls")
            self._holds.remove(hold)
            return
        if self._world.mishap(0.1):
            self._go_away(hold)
            return
        hold.called = True
        try:
            hold.ref = self._provider.submit(intended.call_id, hold.lease.task_id, hold.lease.job_id)
        except NoAnswer:
            self._world.say(f"  {self.name} hears nothing from the provider and gives up")
            self._holds.remove(hold)
        except Refused:
            hold.report = c.Fail(
                lease=hold.lease, code="refused", message="no capacity", retryable=True, worker_id=self.says
            )
            hold.kind = "refused"
        else:
            if self._world.mishap(0.1):
                self._go_away(hold)
            elif self._world.mishap(0.1):
                self._world.say(f"  {self.name} dies after it called")
                self._holds.remove(hold)
                self._zombies.append(hold)

    def _go_away(self, hold: Hold) -> None:
        """Be told to stop, with a call that may have been made: give the task back, and no more."""
        hold.report = c.Requeue(lease=hold.lease, reason="going away", worker_id=self.says)
        hold.kind = "given back"

    # -- coming back late

    def _haunt(self) -> Request:
        """Say again what was said before, or say something with a lease that may long be another's."""
        if self._past and (not self._zombies or self._random.random() < 0.5):
            command = self._random.choice(self._past)
            if isinstance(command, c.Complete) and self._random.random() < 0.4:
                command = c.Complete(lease=command.lease, output={"take": "another"}, worker_id=self.says)
            return Request([command], lambda _answers: None)
        return self._as_a_ghost(self._random.choice(self._zombies))

    def _as_a_ghost(self, hold: Hold) -> Request:
        if hold.ref is not None:
            return Request([c.Hand(lease=hold.lease, ref=hold.ref, worker_id=self.says)], lambda _answers: None)
        ghosts: tuple[c.Command, ...] = (
            c.Complete(lease=hold.lease, output={"take": "zombie"}, worker_id=self.says),
            c.Heartbeat(lease=hold.lease, progress=77, worker_id=self.says),
            c.Fail(lease=hold.lease, message="zombie", retryable=True, worker_id=self.says),
            c.Requeue(lease=hold.lease, reason="zombie", worker_id=self.says),
        )
        if hold.called:
            ghosts = ghosts[1:2]
        return Request([self._random.choice(ghosts)], lambda _answers: None)

    # -- when the storm is over

    def finish(self) -> list[Request]:
        """Do all that is in hand, as a good worker does."""
        requests: list[Request | None] = []
        for hold in list(self._holds):
            if hold.kind == "render":
                requests.append(self._hand_over(hold))
            else:
                hold.report = hold.report or c.Complete(lease=hold.lease, output={"take": "calm"}, worker_id=self.says)
                requests.append(self._say(hold, hold.report))
        return [request for request in requests if request is not None]
