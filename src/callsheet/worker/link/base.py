"""The way from a worker to the house. A link carries; it decides nothing, and tries nothing twice.

A link raises a `Refusal` of the house as it is (`LeaseLost` above all); `Unreachable` when there was no answer, or only
"later": every call may then be repeated; `Dismissed` when the house does not know the worker any longer.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from callsheet.api.worker_protocol import (
    Claim,
    ClaimResult,
    Complete,
    Deregistered,
    Fail,
    HeartbeatResponse,
    InputFile,
    PreviousOutput,
    ProviderSubmission,
    Registration,
    ReportResult,
    Requeue,
    TaskHeartbeat,
    TaskPayload,
)
from callsheet.core.model.commands import OutputFile

LOST_LEASE_CODES = frozenset({"lease_lost", "lease_not_found", "task_not_found"})
"""What the house says of a lease that is not this worker's."""
Check = Callable[[], None]
"""Called between the pieces of a long transfer; raises what ends it."""


class Link(Protocol):
    """What a worker needs of the house, for one shift. Called from many threads."""

    def register(self, kinds: Sequence[str], concurrency: int) -> Registration:
        """Come to work; again, it is a restart, and what was in hand is another's. `Barred` if it is not let in."""
        ...

    def claim(self, request: Claim) -> ClaimResult:
        """Take tasks; if there are none, wait for some. After `stop` it returns at once, with none."""
        ...

    def heartbeat(self, heartbeats: Sequence[TaskHeartbeat], timeout_seconds: float) -> HeartbeatResponse:
        """Prolong leases; each has its own answer, in order."""
        ...

    def input_file(self, work: TaskPayload, file_id: str) -> InputFile:
        """Say what a file of the task is."""
        ...

    def download(self, work: TaskPayload, file: InputFile, into: Path, check: Check) -> None:
        """Write the bytes of a file to a path. What an earlier call left there is gone on with."""
        ...

    def upload(self, work: TaskPayload, output_file: OutputFile, body: bytes | Path, check: Check) -> None:
        """Store a file that the task made; the same number again is the same file."""
        ...

    def upload_preview(self, work: TaskPayload, picture: bytes, media_type: str) -> None:
        """Store the newest preview picture, in place of the one before."""
        ...

    def previous_outputs(self, work: TaskPayload) -> list[PreviousOutput]:
        """Return what the completed tasks of earlier stages made, in order."""
        ...

    def record_submission(self, report: ProviderSubmission) -> ReportResult:
        """Write down where the work is while the worker waits for it."""
        ...

    def complete(self, report: Complete) -> ReportResult:
        """Hand in a result; the files were put before."""
        ...

    def fail(self, report: Fail) -> ReportResult:
        """Report that a try went wrong."""
        ...

    def requeue(self, report: Requeue) -> ReportResult:
        """Give a task back without using up a try."""
        ...

    def forget(self, work: TaskPayload) -> None:
        """Let go of what is kept for a task: it is in hand no longer."""
        ...

    def deregister(self, reason: str) -> Deregistered:
        """Go away: what is still in hand is given back."""
        ...

    def stop(self) -> None:
        """End claims that wait, now and from now on; the other calls still work."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...
