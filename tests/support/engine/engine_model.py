"""A reference model of jobs, tasks and wallets, kept in dictionaries, to compare the engine with.

It covers one tenant and workflows without gates and providers; fleet_model.py covers workers. It does not decide which
task is leased first: it returns the tasks that a claim may get, and records those that it got.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from callsheet.core.model.clock import SECOND
from callsheet.core.model.commands import Lease

ENDED = frozenset({"completed", "failed", "canceled", "expired"})
FULL = 100


class ModelRefusal(Exception):  # noqa: N818 - an answer, not an error
    """The model refuses a command with this code."""


class WorkflowModel(NamedTuple):
    """The parts of a workflow that the model needs."""

    name: str
    price: int
    stages: tuple[tuple[str, int], ...]
    attempts_max: int = 2
    requeues_max: int = 2
    lease_seconds: int = 60
    deadline_seconds: int = 1_000
    grace_seconds: int = 30
    wait_seconds: int = 2
    """The backoff after the first failure; it doubles."""
    refund_percent_running: int = FULL
    """The refund of a canceled job that had started."""


@dataclass
class TaskModel:
    """A task, its live lease, and the outcomes of its attempts."""

    id: str
    kind: str
    status: str = "created"
    attempts_counted: int = 0
    requeues: int = 0
    ready_at: int = 0
    expires_at: int = 0
    tokens: list[str] = field(default_factory=list)
    """One per attempt."""
    workers: list[str] = field(default_factory=list)
    """The worker of each attempt."""
    outcomes: list[str] = field(default_factory=list)
    """One per attempt that has ended."""

    @property
    def seen(self) -> tuple[str, int, int, int]:
        return self.status, len(self.tokens), self.attempts_counted, self.requeues

    @property
    def holder(self) -> str | None:
        """The worker that has the lease."""
        return self.workers[-1] if self.status == "running" else None


@dataclass
class JobModel:
    """A job."""

    user: str
    plan: WorkflowModel
    input_value: int
    deadline_at: int
    stages: list[list[TaskModel]]
    status: str = "queued"
    run: int = 1
    stages_completed: int = 0
    """The number of completed stages."""
    started: bool = False
    cancel_at: int | None = None
    deleted: bool = False

    @property
    def live(self) -> bool:
        return self.status not in ENDED

    @property
    def tasks(self) -> list[TaskModel]:
        return [task for stage in self.stages for task in stage]


class Model:
    """All jobs and wallets."""

    def __init__(self, now: int, users: tuple[str, ...], active_jobs_max: int) -> None:
        self.now = now
        self.active_jobs_max = active_jobs_max
        self.jobs: dict[str, JobModel] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.balance = dict.fromkeys(users, 0)
        self.reserved = dict.fromkeys(users, 0)

    # -- users

    def submit(self, user: str, plan: WorkflowModel, input_value: int, key: str | None) -> JobModel | str:
        """Return a new job, or the id of the job that was created with the key."""
        known = self.keys.get((user, key)) if key else None
        if known is not None:
            job = self.jobs[known]
            if (job.plan, job.input_value) != (plan, input_value):
                raise ModelRefusal("idempotency_key_reused")
            if job.deleted:
                raise ModelRefusal("job_deleted")
            return known
        self._reserve(user, plan.price)
        return JobModel(user, plan, input_value, self.now + plan.deadline_seconds * SECOND, [])

    def add_job(self, job_id: str, job: JobModel, key: str | None, task_ids: list[str]) -> None:
        """Store an accepted job under the ids of the engine."""
        ids = iter(task_ids)
        job.stages = [[TaskModel(next(ids), kind) for _ in range(count)] for kind, count in job.plan.stages]
        self.jobs[job_id] = job
        if key:
            self.keys[job.user, key] = job_id
        self._open(job)

    def _reserve(self, user: str, price: int) -> None:
        if sum(job.live for job in self.jobs.values() if job.user == user) >= self.active_jobs_max:
            raise ModelRefusal("too_many_active_jobs")
        if price > self.balance[user]:
            raise ModelRefusal("insufficient_credits")
        self.balance[user] -= price
        self.reserved[user] += price

    def _visible(self, job_id: str) -> JobModel:
        job = self.jobs[job_id]
        if job.deleted:
            raise ModelRefusal("job_not_found")
        return job

    def cancel(self, job_id: str, grace_seconds: int) -> None:
        job = self._visible(job_id)
        if job.status == "canceled":
            return
        if not job.live:
            raise ModelRefusal("illegal_transition")
        at = self.now + grace_seconds * SECOND
        job.cancel_at = at if job.cancel_at is None else min(job.cancel_at, at)
        if grace_seconds == 0 or not any(task.status == "running" for task in job.stages[job.stages_completed]):
            self._finish(job, "canceled")

    def pause(self, job_id: str) -> None:
        job = self._visible(job_id)
        if job.status == "paused":
            return
        if not job.live:
            raise ModelRefusal("illegal_transition")
        if job.cancel_at is not None:
            raise ModelRefusal("cancel_requested")
        job.status = "paused"

    def resume(self, job_id: str) -> None:
        job = self._visible(job_id)
        if not job.live:
            raise ModelRefusal("illegal_transition")
        if job.status == "paused":
            job.status = "running" if job.started else "queued"

    def retry(self, job_id: str) -> None:
        job = self._visible(job_id)
        if job.status not in {"failed", "expired"}:
            raise ModelRefusal("illegal_transition")
        self._reserve(job.user, job.plan.price)
        job.status, job.run, job.started, job.cancel_at = "queued", job.run + 1, False, None
        job.deadline_at = self.now + job.plan.deadline_seconds * SECOND
        for task in job.tasks:
            if task.status != "completed":
                task.status, task.attempts_counted, task.requeues, task.ready_at = "created", 0, 0, 0
        self._open(job)

    def delete(self, job_id: str) -> None:
        job = self.jobs[job_id]
        if job.live:
            self._finish(job, "canceled")
        job.deleted = True

    # -- workers

    def ready(self, *kinds: str) -> set[str]:
        """Return the tasks that a claim may get."""
        return {
            task.id
            for job in self.jobs.values()
            if job.status in {"queued", "running"} and job.cancel_at is None
            for task in job.stages[job.stages_completed]
            if task.kind in kinds and task.status in {"pending", "retried"} and task.ready_at <= self.now
        }

    def lease(self, lease: Lease, worker: str) -> None:
        """Record a lease of a claim."""
        job, task = self.find_task(lease)
        job.status, job.started = "running", True
        task.status, task.attempts_counted = "running", task.attempts_counted + 1
        task.expires_at = self.now + job.plan.lease_seconds * SECOND
        task.tokens.append(lease.token)
        task.workers.append(worker)

    def find_task(self, lease: Lease) -> tuple[JobModel, TaskModel]:
        job = self.jobs[lease.job_id]
        return job, next(task for task in job.tasks if task.id == lease.task_id)

    def holds(self, lease: Lease) -> bool:
        task = self.find_task(lease)[1]
        return task.status == "running" and task.tokens[-1] == lease.token

    def heartbeat(self, lease: Lease, by: str | None = None) -> bool:
        """Return whether the answer asks the worker to stop."""
        job, task = self._check_holder(lease, by)
        if not self.holds(lease):
            if task.outcomes[lease.attempt - 1] != "canceled":
                raise ModelRefusal("lease_lost")
            return True
        task.expires_at = max(task.expires_at, self.now + job.plan.lease_seconds * SECOND)
        return job.cancel_at is not None

    def _check_holder(self, lease: Lease, by: str | None) -> tuple[JobModel, TaskModel]:
        """Refuse a worker that reports with the lease of another one."""
        job, task = self.find_task(lease)
        if by not in {None, task.workers[lease.attempt - 1]}:
            raise ModelRefusal("lease_not_found")
        return job, task

    def report(self, lease: Lease, outcome: str, *, retryable: bool = False, by: str | None = None) -> str:
        """Return the effect of a report: accepted, replay or skipped."""
        job, task = self._check_holder(lease, by)
        if not self.holds(lease):
            ended = task.outcomes[lease.attempt - 1]
            if ended not in {outcome, "canceled"}:
                raise ModelRefusal("lease_lost")
            return "replay" if ended == outcome else "skipped"
        if outcome == "completed":
            task.outcomes.append(outcome)
            task.status = "completed"
            self._cascade(job)
        elif outcome == "requeued":
            self.requeue(job, task)
        else:
            self._end_attempt(job, task, outcome, retrying=retryable and task.attempts_counted < job.plan.attempts_max)
        return "accepted"

    def requeue(self, job: JobModel, task: TaskModel) -> None:
        """Requeue a task: no attempt is counted, but the number of requeues is limited."""
        self._end_attempt(job, task, "requeued", retrying=task.requeues < job.plan.requeues_max, uncounted=True)

    def _end_attempt(
        self, job: JobModel, task: TaskModel, outcome: str, *, retrying: bool, uncounted: bool = False
    ) -> None:
        task.outcomes.append(outcome)
        wait = 0 if uncounted else job.plan.wait_seconds * 2 ** (task.attempts_counted - 1)
        if uncounted:
            task.attempts_counted, task.requeues = task.attempts_counted - 1, task.requeues + 1
        if job.cancel_at is not None:
            task.status = "canceled"
        elif retrying:
            task.status, task.ready_at = "retried", self.now + wait * SECOND
        else:
            task.status = "failed"
        self._cascade(job)

    # -- time and cascades

    def advance(self, seconds: int) -> None:
        """Advance the time and sweep once."""
        self.now += seconds * SECOND
        for job in self.jobs.values():
            if job.live and job.cancel_at is not None and job.cancel_at <= self.now:
                self._finish(job, "canceled")
            elif job.live and job.deadline_at <= self.now:
                self._finish(job, "expired")
        for job in self.jobs.values():
            due = [task for task in job.tasks if task.status == "running" and task.expires_at <= self.now]
            for task in sorted(due, key=lambda task: (task.expires_at, task.id)):
                if task.status == "running":
                    self._end_attempt(job, task, "lost", retrying=task.attempts_counted < job.plan.attempts_max)

    def _open(self, job: JobModel) -> None:
        for task in job.stages[job.stages_completed]:
            if task.status == "created":
                task.status = "pending"

    def _cascade(self, job: JobModel) -> None:
        stage = {task.status for task in job.stages[job.stages_completed]}
        if "failed" in stage:
            self._finish(job, "failed")
            return
        if stage == {"completed"}:
            job.stages_completed += 1
            if job.stages_completed == len(job.stages):
                self._finish(job, "completed")
                return
            stage = {"created"}
        if job.cancel_at is not None and "running" not in stage:
            self._finish(job, "canceled")
        else:
            self._open(job)

    def _finish(self, job: JobModel, ending: str) -> None:
        for task in job.tasks:
            if task.status == "running":
                task.outcomes.append("canceled")
            if task.status not in {"completed", "failed"}:
                task.status = "canceled"
        refund = 0
        if ending != "completed":
            percent = job.plan.refund_percent_running if ending == "canceled" and job.started else FULL
            refund = job.plan.price * percent // FULL
        self.reserved[job.user] -= job.plan.price
        self.balance[job.user] += refund
        job.status = ending
