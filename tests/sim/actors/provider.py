"""A provider: it accepts work and loses answers, and calls back twice, late, contradictorily or never."""

from typing import Any

from callsheet.core.model.commands import Callback, Command, Outcome
from tests.sim.checks.inspector import Inspector
from tests.sim.environment.scenario import PROVIDER
from tests.sim.environment.simulation_context import World


class NoAnswer(Exception):  # noqa: N818 - an event, not an error
    """The provider did not answer; whether it accepted the work is unknown."""


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """The provider refused the work."""


class ProviderJob:
    """Work that the provider has accepted."""

    def __init__(self, call_id: str, ref: str, task_id: str, run: int, outcome: Outcome, done_at: int) -> None:
        self.call_id = call_id
        self.ref = ref
        self.task_id = task_id
        self.run = run
        self.outcome = outcome
        self.done_at = done_at
        self.failure_reported = False


class FakeProvider:
    """A provider that reports work that is submitted twice, or again while the outcome of its call is unknown."""

    def __init__(self, world: World, inspector: Inspector) -> None:
        self._world = world
        self._inspector = inspector
        self._jobs: dict[str, ProviderJob] = {}
        self._by_ref: dict[str, ProviderJob] = {}
        self._pending_callbacks: list[Callback] = []
        self._webhooks = 0
        self._supports_lookup = world.chance(0.8)

    # -- for workers

    def submit(self, call_id: str, task_id: str, job_id: str) -> str:
        """Accept work and return its reference, refuse it, or do not answer."""
        run = self._inspector.one("SELECT run FROM job WHERE id = ?", job_id)
        if call_id in self._jobs:
            self._world.report_failure(f"R308 call {call_id} was submitted twice")
        for other in self._jobs.values():
            if (other.task_id, other.run) == (task_id, run) and not other.failure_reported:
                self._world.report_failure(
                    f"R309 task {task_id} was submitted again while the outcome of call {other.call_id} is unknown"
                )
        roll = self._world.random.random()
        if roll < 0.1 and not self._world.faults_stopped:
            raise Refused
        if roll < 0.15 and not self._world.faults_stopped:
            raise NoAnswer
        job = self._accept(call_id, task_id, run)
        if roll < 0.35 and not self._world.faults_stopped:
            raise NoAnswer
        return job.ref

    def _accept(self, call_id: str, task_id: str, run: int) -> ProviderJob:
        random = self._world.random
        ref = f"ref-{random.getrandbits(48):012x}"
        outcome = _draw_outcome(random.random(), random.randrange(3))
        if self._world.faults_stopped:
            outcome = Outcome("completed", output={"by": "provider"})
        job = ProviderJob(call_id, ref, task_id, run, outcome, self._world.now() + random.randrange(60) * 1_000_000)
        self._jobs[call_id] = self._by_ref[ref] = job
        if random.random() < 0.7:
            self._plan_callbacks(job)
        self._world.log(f"  provider: accepts {call_id} as {ref}: {outcome.status}")
        return job

    def _plan_callbacks(self, job: ProviderJob) -> None:
        random = self._world.random
        outcomes = [job.outcome]
        if random.random() < 0.4:
            outcomes.insert(random.choice((0, 1)), Outcome("pending"))
        if random.random() < 0.25:
            failed = job.outcome.status == "failed"
            outcomes.append(Outcome("completed", output={"by": "contradiction"}) if failed else Outcome("failed"))
        for outcome in outcomes:
            self._webhooks += 1
            call_id, ref = random.choice(((job.call_id, None), (None, job.ref), (job.call_id, job.ref)))
            callback = Callback(
                provider=PROVIDER, webhook_id=f"hook-{self._webhooks}", outcome=outcome, ref=ref, call_id=call_id
            )
            self._pending_callbacks.extend([callback] * random.choice((1, 1, 2, 3)))

    # -- for the collector

    def collect(self, call_id: str, ref: str | None) -> Outcome:
        if self._world.fault_occurs(0.08):
            raise NoAnswer
        job = self._by_ref.get(ref) if ref else self._jobs.get(call_id) if self._supports_lookup else None
        if job is None:
            return Outcome("absent") if self._supports_lookup else Outcome("pending", poll_after_seconds=30)
        if self._world.now() < job.done_at:
            return Outcome("pending", ref=job.ref)
        self._note_reported(job, job.outcome)
        return _with_ref(job.outcome, job.ref)

    def cancel(self, call_id: str, ref: str | None) -> None:
        job = self._by_ref.get(ref) if ref else self._jobs.get(call_id)
        if job is not None and self._world.chance(0.5):
            job.outcome = Outcome("failed", code="canceled")
            job.done_at = self._world.now()

    # -- callbacks

    def callbacks(self) -> list[Command]:
        """Return callbacks to send now, in any order, and sometimes one for an unknown call."""
        random = self._world.random
        sent_callbacks: list[Command] = []
        for _ in range(min(len(self._pending_callbacks), random.choice((1, 1, 2)))):
            callback = self._pending_callbacks.pop(random.randrange(len(self._pending_callbacks)))
            job = self._jobs.get(callback.call_id or "") or self._by_ref.get(callback.ref or "")
            if job is not None:
                self._note_reported(job, callback.outcome)
            sent_callbacks.append(callback)
        if not sent_callbacks and self._world.fault_occurs(0.2):
            self._webhooks += 1
            ref = f"ref-unknown-{random.randrange(3)}"
            sent_callbacks.append(
                Callback(provider=PROVIDER, webhook_id=f"hook-{self._webhooks}", outcome=Outcome("failed"), ref=ref)
            )
        return sent_callbacks

    def _note_reported(self, job: ProviderJob, outcome: Outcome) -> None:
        job.failure_reported = job.failure_reported or outcome.status == "failed"


def _draw_outcome(roll: float, variant: int) -> Outcome:
    if roll < 0.65:
        return Outcome("completed", output={"by": "provider", "variant": variant}, delivered=(100, 60, 100)[variant])
    return Outcome("failed", message="The model failed.", retryable=(True, False, None)[variant])


def _with_ref(outcome: Outcome, ref: str) -> Outcome:
    fields: dict[str, Any] = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
    return Outcome(**{**fields, "ref": ref})
