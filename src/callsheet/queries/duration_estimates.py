"""Duration estimates of jobs, from the durations of earlier jobs of the same workflow.

Estimates are cached, so that most reads cost nothing and return the same values. They are part of a job's ETag.
"""

import time

from callsheet.api.jobs import DurationEstimate
from callsheet.core.model import rows
from callsheet.core.model.clock import SECOND
from callsheet.core.model.workflow_definition import parse_definition
from callsheet.core.policy.explanation.duration_estimate import SAMPLES_MAX, PastDurations
from callsheet.core.policy.fair_order import queue_of
from callsheet.engine.reads.facade import Reads

_CACHE_MAX = 10_000
_TASKS_MAX = 10_000
"""Tasks that are read to find the newest completed jobs."""
_Key = tuple[str, int, str]


class DurationEstimates:
    """Estimates for each version of a workflow; for inline workflows, whose jobs define their stages, for each job."""

    def __init__(self, reads: Reads, cache_seconds: float) -> None:
        self._reads = reads
        self._cache_seconds = cache_seconds
        self._cache: dict[_Key, tuple[float, DurationEstimate | None]] = {}
        self._inline_versions: set[tuple[str, int]] = set()

    async def estimate(self, job: rows.Job) -> DurationEstimate | None:
        """Return the estimate of a job; None without enough samples, or if the job has ended."""
        if job.finished_at is not None:
            return None
        key, now = self._key(job), time.monotonic()
        at, duration_estimate = self._cache.get(key, (float("-inf"), None))
        if now - at < self._cache_seconds:
            return duration_estimate
        if len(self._cache) >= _CACHE_MAX:
            self._cache.clear()
            self._inline_versions.clear()
        self._cache[key] = (now, duration_estimate)  # concurrent callers get the previous estimate meanwhile
        duration_estimate = await self._look_up(job)
        if (key_after := self._key(job)) != key:
            del self._cache[key]  # the workflow is inline: the estimate is valid for this job only
        self._cache[key_after] = (now, duration_estimate)
        return duration_estimate

    def _key(self, job: rows.Job) -> _Key:
        version = (job.workflow, job.workflow_version)
        return (*version, job.id if version in self._inline_versions else "")

    async def _look_up(self, job: rows.Job) -> DurationEstimate | None:
        """Read the durations of the newest jobs that completed in the queue of this job's last stage."""
        version = (job.workflow, job.workflow_version)
        stages, workflows = await self._reads.lookup_many(
            [("stages_of", {"id": job.id}), ("workflows", {"keys": [version]})]
        )
        if any(parse_definition(rows.Workflow(*row).spec).inline for row in workflows):
            self._inline_versions.add(version)
        if not stages:
            return None
        last = rows.Stage(*stages[-1])
        queue = queue_of(last.kind, job.workflow, last.provider)
        found = await self._reads.scan(
            "job_durations",
            queue=queue,
            count=SAMPLES_MAX,
            tasks=min(SAMPLES_MAX * max(last.tasks_total, 1), _TASKS_MAX),
        )
        past = PastDurations(row[1] for row in found)
        if not past.has_enough_samples:
            return None
        return DurationEstimate(round(past.p50 / SECOND, 3), round(past.p90 / SECOND, 3), past.samples)
