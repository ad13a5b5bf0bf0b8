"""A fake provider: it accepts calls, returns the outcomes that a test prepared, and records every call."""

from callsheet.core.model.commands import HandOff, Lease, Outcome, RecordIntent, TaskState
from callsheet.engine.loops.provider_collector import Collector
from tests.support.engine.engine_harness import EngineHarness, stage

NAME = "cloud"
PENDING = Outcome("pending")
DONE = Outcome("completed", output={"url": "result"})
FAILED = Outcome("failed", code="nsfw", message="Refused by the model.", retryable=False)
UNKNOWN_CALL = Outcome("absent")


class FakeProvider:
    """The recorded calls in order, and the prepared answers; the last answer is repeated."""

    def __init__(self, *answers: Outcome | Exception) -> None:
        self.answers = list(answers) or [PENDING]
        self.accepted: list[str] = []
        self.collect_calls: list[tuple[str, str | None]] = []
        self.canceled: list[str] = []

    def accept(self, call_id: str) -> str:
        """Accept a call, as a provider's API does, and return its reference."""
        self.accepted.append(call_id)
        return f"ref-{len(self.accepted)}-{call_id}"

    def collect(self, call_id: str, ref: str | None) -> Outcome:
        self.collect_calls.append((call_id, ref))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self, call_id: str, ref: str | None) -> None:  # noqa: ARG002 - the protocol's signature
        self.canceled.append(call_id)


class SubmittedCall:
    """A task at the provider: its lease, its call and its reference."""

    def __init__(self, lease: Lease, call_id: str, ref: str) -> None:
        self.lease = lease
        self.job_id = lease.job_id
        self.call_id = call_id
        self.ref = ref


def clip_workflow(harness: EngineHarness, **definition: object) -> None:
    """Store `clip`: 7 credits, rendered at the provider, collected every 10 seconds for at most 10 minutes."""
    fields = {"price": 7, "provider_deadline_seconds": 600, "collect_seconds": 10, "lease_seconds": 60}
    harness.workflow("clip", stages=[stage("render", provider=NAME)], **(fields | definition))


def record_intent(harness: EngineHarness, lease: Lease) -> str:
    call_id: str = harness.do(RecordIntent(lease=lease, provider=NAME)).call_id
    return call_id


def submit_to_provider(harness: EngineHarness, provider: FakeProvider) -> SubmittedCall:
    """Claim a clip, record the call, submit it, and hand the task off."""
    lease = harness.claim_one("render")
    call_id = record_intent(harness, lease)
    ref = provider.accept(call_id)
    harness.do(HandOff(lease=lease, ref=ref))
    return SubmittedCall(lease, call_id, ref)


def hand_off(harness: EngineHarness, lease: Lease, ref: str) -> TaskState:
    state: TaskState = harness.do(HandOff(lease=lease, ref=ref))
    return state


def collect(harness: EngineHarness, provider: FakeProvider, after_seconds: float = 10) -> int:
    """Advance the time and run a collector once; return how many calls it polled."""
    harness.advance(after_seconds)
    return Collector(harness.engine, {NAME: provider}).run_once(harness.reads.now())
