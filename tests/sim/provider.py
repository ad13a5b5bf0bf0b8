"""Somebody else's machines: they accept work and lose the answer, call back twice, late, wrongly, or never."""

from typing import Any

from callsheet.core.commands import Callback, Command, Outcome
from tests.sim.catalog import PROVIDER
from tests.sim.peek import Peek
from tests.sim.world import World


class NoAnswer(Exception):  # noqa: N818 - says what happened
    """The provider did not answer; whether it accepted is not known."""


class Refused(Exception):  # noqa: N818 - says what happened
    """The provider refused the work for sure."""


class Record:
    """Work that the provider has accepted."""

    def __init__(self, call_id: str, ref: str, task_id: str, run: int, outcome: Outcome, done_at: int) -> None:
        self.call_id = call_id
        self.ref = ref
        self.task_id = task_id
        self.run = run
        self.outcome = outcome
        self.done_at = done_at
        self.told_failed = False


class FakeProvider:
    """A provider with a bill: work is submitted once per call, and never again while its answer is unknown."""

    def __init__(self, world: World, peek: Peek) -> None:
        self._world = world
        self._peek = peek
        self._records: dict[str, Record] = {}
        self._by_ref: dict[str, Record] = {}
        self._post: list[Callback] = []
        self._webhooks = 0
        self._looks_up = world.chance(0.8)

    # -- as the worker sees it

    def submit(self, call_id: str, task_id: str, job_id: str) -> str:
        """Accept work and return its reference, or break in one of the usual ways."""
        run = self._peek.one("SELECT run FROM job WHERE id = ?", job_id)
        if call_id in self._records:
            self._world.blame(f"R308 call {call_id} was submitted twice")
        for other in self._records.values():
            if (other.task_id, other.run) == (task_id, run) and not other.told_failed:
                self._world.blame(f"R309 task {task_id} was submitted again while call {other.call_id} is not known")
        fate = self._world.random.random()
        if fate < 0.1 and not self._world.calm:
            raise Refused
        if fate < 0.15 and not self._world.calm:
            raise NoAnswer
        record = self._accept(call_id, task_id, run)
        if fate < 0.35 and not self._world.calm:
            raise NoAnswer
        return record.ref

    def _accept(self, call_id: str, task_id: str, run: int) -> Record:
        random = self._world.random
        ref = f"ref-{random.getrandbits(48):012x}"
        outcome = _drawn(random.random(), random.randrange(3))
        if self._world.calm:
            outcome = Outcome("completed", output={"by": "provider"})
        record = Record(call_id, ref, task_id, run, outcome, self._world.clock.now() + random.randrange(60) * 1_000_000)
        self._records[call_id] = self._by_ref[ref] = record
        if random.random() < 0.7:
            self._plan_callbacks(record)
        self._world.say(f"  provider: accepts {call_id} as {ref}: {outcome.status}")
        return record

    def _plan_callbacks(self, record: Record) -> None:
        random = self._world.random
        outcomes = [record.outcome]
        if random.random() < 0.4:
            outcomes.insert(random.choice((0, 1)), Outcome("pending"))
        if random.random() < 0.25:
            failed = record.outcome.status == "failed"
            outcomes.append(Outcome("completed", output={"by": "contradiction"}) if failed else Outcome("failed"))
        for outcome in outcomes:
            self._webhooks += 1
            call_id, ref = random.choice(((record.call_id, None), (None, record.ref), (record.call_id, record.ref)))
            letter = Callback(
                provider=PROVIDER, webhook_id=f"hook-{self._webhooks}", outcome=outcome, ref=ref, call_id=call_id
            )
            self._post.extend([letter] * random.choice((1, 1, 2, 3)))

    # -- as the engine's collector sees it

    def collect(self, call_id: str, ref: str | None) -> Outcome:
        if self._world.mishap(0.08):
            raise NoAnswer
        record = self._by_ref.get(ref) if ref else self._records.get(call_id) if self._looks_up else None
        if record is None:
            return Outcome("absent") if self._looks_up else Outcome("pending", again_in_seconds=30)
        if self._world.clock.now() < record.done_at:
            return Outcome("pending", ref=record.ref)
        self._note(record, record.outcome)
        return _with_ref(record.outcome, record.ref)

    def cancel(self, call_id: str, ref: str | None) -> None:
        record = self._by_ref.get(ref) if ref else self._records.get(call_id)
        if record is not None and self._world.chance(0.5):
            record.outcome = Outcome("failed", code="canceled")
            record.done_at = self._world.clock.now()

    # -- as the network sees it

    def callbacks(self) -> list[Command]:
        """Return callbacks to send now, in any order, and now and then one that is none of our business."""
        random = self._world.random
        sent: list[Command] = []
        for _ in range(min(len(self._post), random.choice((1, 1, 2)))):
            letter = self._post.pop(random.randrange(len(self._post)))
            record = self._records.get(letter.call_id or "") or self._by_ref.get(letter.ref or "")
            if record is not None:
                self._note(record, letter.outcome)
            sent.append(letter)
        if not sent and self._world.mishap(0.2):
            self._webhooks += 1
            ref = f"ref-unknown-{random.randrange(3)}"
            sent.append(
                Callback(provider=PROVIDER, webhook_id=f"hook-{self._webhooks}", outcome=Outcome("failed"), ref=ref)
            )
        return sent

    def _note(self, record: Record, outcome: Outcome) -> None:
        record.told_failed = record.told_failed or outcome.status == "failed"


def _drawn(fate: float, flavour: int) -> Outcome:
    if fate < 0.65:
        return Outcome("completed", output={"by": "provider", "flavour": flavour}, delivered=(100, 60, 100)[flavour])
    return Outcome("failed", message="The model said no.", retryable=(True, False, None)[flavour])


def _with_ref(outcome: Outcome, ref: str) -> Outcome:
    fields: dict[str, Any] = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
    return Outcome(**{**fields, "ref": ref})
