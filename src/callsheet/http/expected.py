"""How long a job should take, from what others of its workflow took: for a bar where no progress is reported.

The numbers are kept for a while, so that most answers cost nothing and stay the same; a job's tag includes them.
"""

import time

from msgspec import Struct

from callsheet.core import rows
from callsheet.core.clock import SECOND
from callsheet.core.estimate import SAMPLES_MAX, Past
from callsheet.core.order import queue_of
from callsheet.core.recipe import parse
from callsheet.engine.readlane import ReadLane

_KNOWN_MAX = 10_000
_TASKS_MAX = 10_000
"""So many tasks are looked through for the jobs that they are of."""
_Key = tuple[str, int, str]


class Expected(Struct, frozen=True):
    """How long such jobs took from their start to their end: a guess, not a promise."""

    estimate: bool
    seconds_p50: float
    seconds_p90: float
    samples: int


class Expectations:
    """What is expected of each version of a workflow; of one whose jobs bring their own stages, of each job."""

    def __init__(self, reads: ReadLane, scans: ReadLane, keep_seconds: float) -> None:
        self._reads = reads
        self._scans = scans
        self._keep_seconds = keep_seconds
        self._known: dict[_Key, tuple[float, Expected | None]] = {}
        self._inline: set[tuple[str, int]] = set()

    async def of(self, job: rows.Job) -> Expected | None:
        """Return what is expected of a job; None without a basis, and of one that has ended."""
        if job.finished_at is not None:
            return None
        key, now = self._key(job), time.monotonic()
        at, expected = self._known.get(key, (float("-inf"), None))
        if now - at < self._keep_seconds:
            return expected
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
            self._inline.clear()
        self._known[key] = (now, expected)  # whoever else asks meanwhile takes what was known
        expected = await self._looked_up(job)
        if (own := self._key(job)) != key:
            del self._known[key]  # it was of one job, and not of its workflow
        self._known[own] = (now, expected)
        return expected

    def _key(self, job: rows.Job) -> _Key:
        version = (job.workflow, job.workflow_version)
        return (*version, job.id if version in self._inline else "")

    async def _looked_up(self, job: rows.Job) -> Expected | None:
        """Read the newest jobs that ended in the same queue as this one will: that of its last stage."""
        version = (job.workflow, job.workflow_version)
        stages, workflows = await self._reads.fetch_all(
            [("stages_of", {"id": job.id}), ("workflows", {"keys": [version]})]
        )
        if any(parse(rows.Workflow(*row).spec).inline for row in workflows):
            self._inline.add(version)
        if not stages:
            return None
        last = rows.Stage(*stages[-1])
        queue = queue_of(last.kind, job.workflow, last.provider)
        found = await self._scans.fetch(
            "job_durations",
            queue=queue,
            count=SAMPLES_MAX,
            tasks=min(SAMPLES_MAX * max(last.tasks_total, 1), _TASKS_MAX),
        )
        past = Past(row[1] for row in found)
        if not past.enough:
            return None
        return Expected(True, round(past.p50 / SECOND, 3), round(past.p90 / SECOND, 3), past.samples)  # noqa: FBT003 - the label
