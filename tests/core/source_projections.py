"""How the five source systems see a job: their words for each status, and the moves that their own texts allow.

Section 8 of the requirements as data. A view looks at the status and at two things a row tells: whether work began
(`started_at`), and whether a job that was scheduled has had its hour (`start_at`). A job paused before its hour still
shows as waiting for it, or CutX would see it go back from queued to pending.
"""

from typing import NamedTuple

from callsheet.core.model.state_machines import NEW


class ObservedStatus(NamedTuple):
    """What a view looks at."""

    status: str = NEW
    started: bool = False
    released: bool = False


class SourceView(NamedTuple):
    """One source system: its words, its moves, and how one move of ours is shown as several of its own."""

    words: dict[str, str]
    paused: tuple[str, str, str]
    """The word for a paused job: before its hour, before its start, after its start."""
    moves: set[tuple[str, str]]
    through: dict[tuple[str, str], tuple[str, ...]]
    """Statuses shown in between, in the same instant, where the source knows no direct way."""
    reopens: bool = False
    """The source itself has a retry that opens a terminal job."""

    def word(self, seen: ObservedStatus) -> str:
        if seen.status == "paused":
            return self.paused[2 if seen.started else int(seen.released)]
        return self.words[seen.status]

    def path(self, before: ObservedStatus, after: ObservedStatus) -> list[str]:
        """Return what the source's users see when a job goes from one status to another."""
        one, two = self.word(before), self.word(after)
        return [one] if one == two else [one, *self.through.get((one, two), ()), two]


def _moves(table: dict[str, str]) -> set[tuple[str, str]]:
    return {(source, target) for source, targets in table.items() for target in targets.split()}


def _words(*words: str) -> dict[str, str]:
    order = ("pending", "queued", "running", "completed", "failed", "expired", "canceled", "blocked")
    return dict(zip(order, words, strict=True))


CUTX = SourceView(
    _words("pending", "queued", "processing", "completed", "failed", "expired", "canceled", "failed"),
    ("pending", "queued", "processing"),
    _moves({  # R10 to R22
        "pending": "queued processing failed canceled", "queued": "processing failed canceled",
        "processing": "completed failed canceled expired", "failed": "pending", "expired": "pending",
    }),
    {},
    reopens=True,
)  # fmt: skip
MONEYPRINTER = SourceView(
    _words("queued", "queued", "running", "completed", "failed", "failed", "cancelled", "failed"),
    ("queued", "queued", "running"),
    _moves({"queued": "running cancelled", "running": "completed failed cancelled"}),  # R114
    {("queued", "failed"): ("running",)},  # C23
)
ADR = SourceView(
    _words("queued", "queued", "processing", "completed", "failed", "expired", "failed", "failed"),
    ("queued", "queued", "processing"),
    _moves({"queued": "processing failed", "processing": "completed failed expired"}),  # R181, R193, R242, R253, R265
    {},
)
LIFECYCLE = SourceView(
    _words("pending", "pending", "running", "succeeded", "failed", "failed", "failed", "blocked"),
    ("pending", "pending", "running"),
    _moves({"pending": "running failed", "running": "succeeded failed"}),  # R294 to R298; C2: canceled shows as failed
    {},
)
JOBNIK = SourceView(
    _words("PENDING", "PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "FAILED", "ABORTED", "FAILED"),
    ("PAUSED", "PAUSED", "PAUSED"),
    _moves({  # R379 to R386
        "CREATED": "PENDING PAUSED ABORTED", "PENDING": "IN_PROGRESS PAUSED ABORTED",
        "IN_PROGRESS": "COMPLETED FAILED PAUSED ABORTED", "PAUSED": "PENDING ABORTED",
    }),
    {
        ("PENDING", "FAILED"): ("IN_PROGRESS",),  # C23
        ("PAUSED", "IN_PROGRESS"): ("PENDING",),  # R390: resumed, then on with the work
        ("PAUSED", "COMPLETED"): ("PENDING", "IN_PROGRESS"),  # R388: what was in flight ended the job
        ("PAUSED", "FAILED"): ("PENDING", "IN_PROGRESS"),
    },
)  # fmt: skip
VIEWS = {"CutX": CUTX, "MoneyPrinter": MONEYPRINTER, "ADR": ADR, "lifecycle": LIFECYCLE, "Jobnik": JOBNIK}


DISPATCH = {
    "created": "queued", "pending": "queued", "retried": "queued", "running": "leased", "completed": "completed",
    "failed": "failed", "canceled": "failed",
}  # fmt: skip
"""A task, as the dispatch of source 002."""
DISPATCH_MOVES = _moves({"queued": "leased failed", "leased": "completed failed queued"})  # R183, R186, R257; C2
