"""How five source APIs show a job: their word for each status, and the moves that their own rules allow.

A view depends on the status and on two facts of the row: whether the job has started (`started_at`), and whether the
scheduled time of the job has passed (`start_at`). A job that is paused before its scheduled time is still shown as
pending. Otherwise the first API would show a move from queued to pending, which it does not allow.
"""

from typing import NamedTuple

from callsheet.core.model.state_machines import NEW


class ObservedStatus(NamedTuple):
    """The facts of a job that a view depends on."""

    status: str = NEW
    started: bool = False
    released: bool = False


class SourceView(NamedTuple):
    """One source API: its words, its moves, and the moves that it shows for one of ours."""

    words: dict[str, str]
    paused: tuple[str, str, str]
    """The word for a paused job: before its scheduled time, before its start, after its start."""
    moves: set[tuple[str, str]]
    through: dict[tuple[str, str], tuple[str, ...]]
    """Statuses shown in between, at the same time, where the source API has no direct move."""
    reopens: bool = False
    """The source API has a retry that opens a terminal job."""

    def word(self, seen: ObservedStatus) -> str:
        if seen.status == "paused":
            return self.paused[2 if seen.started else int(seen.released)]
        return self.words[seen.status]

    def path(self, before: ObservedStatus, after: ObservedStatus) -> list[str]:
        """Return the words that the source API shows when a job moves from one status to another."""
        source, target = self.word(before), self.word(after)
        return [source] if source == target else [source, *self.through.get((source, target), ()), target]


def _moves(table: dict[str, str]) -> set[tuple[str, str]]:
    return {(source, target) for source, targets in table.items() for target in targets.split()}


def _words(*words: str) -> dict[str, str]:
    order = ("pending", "queued", "running", "completed", "failed", "expired", "canceled", "blocked")
    return dict(zip(order, words, strict=True))


FIRST_API = SourceView(
    _words("pending", "queued", "processing", "completed", "failed", "expired", "canceled", "failed"),
    ("pending", "queued", "processing"),
    _moves({  # R10-R22
        "pending": "queued processing failed canceled", "queued": "processing failed canceled",
        "processing": "completed failed canceled expired", "failed": "pending", "expired": "pending",
    }),
    {},
    reopens=True,
)  # fmt: skip
SECOND_API = SourceView(
    _words("queued", "queued", "running", "completed", "failed", "failed", "cancelled", "failed"),
    ("queued", "queued", "running"),
    _moves({"queued": "running cancelled", "running": "completed failed cancelled"}),  # R114
    {("queued", "failed"): ("running",)},  # C23
)
DISPATCH_API = SourceView(
    _words("queued", "queued", "processing", "completed", "failed", "expired", "failed", "failed"),
    ("queued", "queued", "processing"),
    _moves({"queued": "processing failed", "processing": "completed failed expired"}),
    {},
)
LIFECYCLE_API = SourceView(
    _words("pending", "pending", "running", "succeeded", "failed", "failed", "failed", "blocked"),
    ("pending", "pending", "running"),
    _moves({"pending": "running failed", "running": "succeeded failed"}),  # R298: blocked has no moves
    {},
)
TREE_API = SourceView(
    _words("PENDING", "PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "FAILED", "ABORTED", "FAILED"),
    ("PAUSED", "PAUSED", "PAUSED"),
    _moves({  # R379-R386
        "CREATED": "PENDING PAUSED ABORTED", "PENDING": "IN_PROGRESS PAUSED ABORTED",
        "IN_PROGRESS": "COMPLETED FAILED PAUSED ABORTED", "PAUSED": "PENDING ABORTED",
    }),
    {
        ("PENDING", "FAILED"): ("IN_PROGRESS",),  # C23
        ("PAUSED", "IN_PROGRESS"): ("PENDING",),  # R390: resumed, then running
        ("PAUSED", "COMPLETED"): ("PENDING", "IN_PROGRESS"),  # R388: a running task ended the job
        ("PAUSED", "FAILED"): ("PENDING", "IN_PROGRESS"),
    },
)  # fmt: skip
VIEWS = {
    "first API": FIRST_API, "second API": SECOND_API, "dispatch API": DISPATCH_API, "lifecycle API": LIFECYCLE_API,
    "tree API": TREE_API,
}  # fmt: skip


DISPATCH = {
    "created": "queued", "pending": "queued", "retried": "queued", "running": "leased", "completed": "completed",
    "failed": "failed", "canceled": "failed",
}  # fmt: skip
"""The status of a task, as the dispatch API shows it."""
DISPATCH_MOVES = _moves({"queued": "leased failed", "leased": "completed failed queued"})  # R183
