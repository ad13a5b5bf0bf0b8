"""The way from a worker to the house. A link carries; it decides nothing.

Every call is about one task in hand. A link raises a `Refusal` of the house as it is (`LeaseLost` above all), and
`Unreachable` when there was no answer: reports may then be repeated, and are answered the same.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from callsheet.core.commands import Beat, Leased, Made, TaskState


class Said(Struct, frozen=True):
    """What a heartbeat carries up."""

    progress: int | None = None
    message: str | None = None
    preview: int = 0
    """The number of the newest preview picture; 0 is none."""


class Kept(Struct, frozen=True):
    """A file that an earlier task of the same job made."""

    id: str
    name: str
    media_type: str
    bytes: int
    sha256: str


class Earlier(Struct, frozen=True):
    """What a completed task of an earlier stage of the same job made."""

    stage: str
    stage_no: int
    task_no: int
    output: Any
    files: tuple[Kept, ...] = ()


class Link(Protocol):
    """What a worker needs of the house. Called from many threads."""

    def claim(self, kinds: Sequence[str], count: int, wait_seconds: float) -> list[Leased]:
        """Take up to `count` tasks; if there are none, wait for some. After `stop` it returns at once, with none."""
        ...

    def heartbeat(self, beats: Sequence[tuple[Leased, Said]]) -> list[Beat | Exception]:
        """Prolong leases; each has its own answer, or the error that it would have raised alone."""
        ...

    def complete(self, task: Leased, output: Any, files: Sequence[Made], delivered: int) -> TaskState:
        """Hand in a result; the files were put before."""
        ...

    def fail(self, task: Leased, code: str, message: str, *, retryable: bool | None) -> TaskState:
        """Report that a try went wrong."""
        ...

    def requeue(self, task: Leased, reason: str) -> TaskState:
        """Give a task back without using up a try."""
        ...

    def put(self, task: Leased, no: int, body: bytes) -> None:
        """Store the bytes of a file that the task made; files are numbered from 1 on."""
        ...

    def put_preview(self, task: Leased, body: bytes) -> None:
        """Store the newest preview picture, in place of the one before."""
        ...

    def before(self, task: Leased) -> list[Earlier]:
        """Return what the completed tasks of earlier stages made, in order."""
        ...

    def read(self, task: Leased, file: Kept) -> bytes:
        """Return the bytes of a file of the same job."""
        ...

    def stop(self) -> None:
        """End claims that wait, now and from now on; the other calls still work."""
        ...
