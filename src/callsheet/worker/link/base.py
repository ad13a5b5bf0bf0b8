"""`Link`: the connection between a worker and its server. A link makes no decisions and does not retry.

Every call may raise:
- a `Refusal` of the server, such as `LeaseLost`;
- `UnreachableError` if there was no response, or one that asks to retry later; the call may then be repeated;
- `InvalidTokenError` if the server no longer accepts the worker's token.
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
"""Error codes of the server for a lease that does not belong to this worker."""
Check = Callable[[], None]
"""Called between the chunks of a transfer; raises to abort it."""


class Link(Protocol):
    """The calls of one worker to its server. Implementations are thread-safe."""

    def register(self, kinds: Sequence[str], concurrency: int, held_task_ids: Sequence[str] = ()) -> Registration:
        """Register the worker. Registering again counts as a restart and ends its leases, except those of held tasks.

        Raises `RegistrationError` if the server rejects the worker.
        """
        ...

    def claim(self, request: Claim) -> ClaimResult:
        """Claim tasks; wait if there are none. After `stop` it returns immediately with an empty result."""
        ...

    def heartbeat(self, heartbeats: Sequence[TaskHeartbeat], timeout_seconds: float) -> HeartbeatResponse:
        """Extend leases. The response has one result per heartbeat, in the same order."""
        ...

    def input_file(self, work: TaskPayload, file_id: str) -> InputFile:
        """Return the metadata and download URL of a file that the task may read."""
        ...

    def download(self, work: TaskPayload, file: InputFile, into: Path, check: Check) -> None:
        """Download a file to a path, resuming a partial download."""
        ...

    def upload(self, work: TaskPayload, output_file: OutputFile, body: bytes | Path, check: Check) -> None:
        """Upload an output file. Uploading the same number again is a retry."""
        ...

    def upload_preview(self, work: TaskPayload, picture: bytes, media_type: str) -> None:
        """Upload a preview image; it replaces the previous one."""
        ...

    def previous_outputs(self, work: TaskPayload) -> list[PreviousOutput]:
        """Return the outputs of the completed tasks of earlier stages, in order."""
        ...

    def record_submission(self, report: ProviderSubmission) -> ReportResult:
        """Record the provider's job id."""
        ...

    def complete(self, report: Complete) -> ReportResult:
        """Complete a task. Its files must have been uploaded."""
        ...

    def fail(self, report: Fail) -> ReportResult:
        """Report a failed attempt."""
        ...

    def requeue(self, report: Requeue) -> ReportResult:
        """Requeue a task; this does not count as an attempt."""
        ...

    def forget(self, work: TaskPayload) -> None:
        """Discard cached data of a task that has ended."""
        ...

    def deregister(self, reason: str) -> Deregistered:
        """Deregister the worker. The server requeues its remaining tasks."""
        ...

    def stop(self) -> None:
        """End waiting claims and make later ones return immediately. Other calls still work."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
