"""The way from a worker to the house. A link carries; it decides nothing, and tries nothing twice.

A link raises a `Refusal` of the house as it is (`LeaseLost` above all); `Unreachable` when there was no answer, or only
"later": every call may then be repeated; `Dismissed` when the house does not know the worker any longer.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from callsheet.core.commands import Made
from callsheet.protocol import (
    Beat,
    Claim,
    Claimed,
    Complete,
    Earlier,
    Fail,
    Given,
    Gone,
    Heartbeaten,
    Registered,
    Reported,
    Requeue,
    Submitted,
    Work,
)

GONE = frozenset({"lease_lost", "lease_not_found", "task_not_found"})
"""What the house says of a lease that is not this worker's."""
Check = Callable[[], None]
"""Called between the pieces of a long transfer; raises what ends it."""


class Link(Protocol):
    """What a worker needs of the house, for one shift. Called from many threads."""

    def register(self, kinds: Sequence[str], concurrency: int) -> Registered:
        """Come to work; again, it is a restart, and what was in hand is another's. `Barred` if it is not let in."""
        ...

    def claim(self, asked: Claim) -> Claimed:
        """Take tasks; if there are none, wait for some. After `stop` it returns at once, with none."""
        ...

    def heartbeat(self, beats: Sequence[Beat], within_seconds: float) -> Heartbeaten:
        """Prolong leases; each has its own answer, in order."""
        ...

    def given(self, work: Work, file_id: str) -> Given:
        """Say what a file of the task is."""
        ...

    def get(self, work: Work, file: Given, into: Path, check: Check) -> None:
        """Write the bytes of a file to a path. What an earlier call left there is gone on with."""
        ...

    def put(self, work: Work, made: Made, body: bytes | Path, check: Check) -> None:
        """Store a file that the task made; the same number again is the same file."""
        ...

    def put_preview(self, work: Work, picture: bytes, media_type: str) -> None:
        """Store the newest preview picture, in place of the one before."""
        ...

    def earlier(self, work: Work) -> list[Earlier]:
        """Return what the completed tasks of earlier stages made, in order."""
        ...

    def submitted(self, told: Submitted) -> Reported:
        """Write down where the work is while the worker waits for it."""
        ...

    def complete(self, told: Complete) -> Reported:
        """Hand in a result; the files were put before."""
        ...

    def fail(self, told: Fail) -> Reported:
        """Report that a try went wrong."""
        ...

    def requeue(self, told: Requeue) -> Reported:
        """Give a task back without using up a try."""
        ...

    def forget(self, work: Work) -> None:
        """Let go of what is kept for a task: it is in hand no longer."""
        ...

    def deregister(self, reason: str) -> Gone:
        """Go away: what is still in hand is given back."""
        ...

    def stop(self) -> None:
        """End claims that wait, now and from now on; the other calls still work."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...
