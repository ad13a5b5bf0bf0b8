"""Checks after every commit: the state invariants, and that append-only rows do not change."""

from collections.abc import Iterator
from typing import Any

from callsheet.core.model.clock import SECOND
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.rate_syntax import parse_rate
from callsheet.store import verify
from tests.sim.checks.inspector import Inspector
from tests.sim.checks.policy import TASK_POLICY, PolicyChecks
from tests.sim.checks.user_turns import UserTurns

STATE_INVARIANTS: dict[str, str] = {
    "M1 balance is the sum of the ledger": """
        SELECT w.id FROM wallet w
        WHERE w.balance <> (SELECT coalesce(sum(e.amount), 0) FROM entry e WHERE e.wallet_id = w.id)""",
    "M2 nothing is negative": "SELECT id FROM wallet WHERE balance < 0 OR reserved < 0",
    "M3 reserved is the sum of open reservations": """
        SELECT w.id FROM wallet w WHERE w.reserved <> (
            SELECT coalesce(sum(r.price), 0) FROM job j JOIN run r ON r.job_id = j.id
            WHERE j.wallet_id = w.id AND r.status = 'open')""",
    "M6 an open, priced run has its reservation": """
        SELECT r.job_id, r.no FROM run r WHERE r.price > 0
        AND NOT EXISTS (SELECT 1 FROM entry e WHERE e.job_id = r.job_id AND e.run = r.no AND e.kind = 'reserve'
                        AND e.amount = -r.price)""",
    "M8 an ended, priced run is settled in full": """
        SELECT r.job_id, r.no FROM run r WHERE r.price > 0 AND r.status <> 'open'
        AND r.price <> (SELECT coalesce(sum(e.amount + e.consumed), 0) FROM entry e
                        WHERE e.job_id = r.job_id AND e.run = r.no AND e.kind IN ('consume', 'refund'))""",
    "M9 completed means consumed": """
        SELECT r.job_id, r.no FROM run r WHERE r.price > 0 AND r.status = 'completed'
        AND NOT EXISTS (SELECT 1 FROM entry e WHERE e.job_id = r.job_id AND e.run = r.no AND e.kind = 'consume'
                        AND e.consumed > 0)""",
    "M16 a run is refunded by hand at most once, completely and after its end": """
        SELECT e.job_id, e.run FROM entry e LEFT JOIN run r ON r.job_id = e.job_id AND r.no = e.run
        WHERE e.kind = 'adjust' AND e.job_id IS NOT NULL GROUP BY e.job_id, e.run
        HAVING count(*) > 1 OR max(coalesce(r.status, 'open')) = 'open' OR max(e.amount) <> max(r.consumed)""",
    "S3 active jobs stay within the limit": """
        SELECT t.id FROM tenant t JOIN job j ON j.tenant = t.id AND j.finished_at IS NULL
        WHERE t.active_jobs_max IS NOT NULL GROUP BY t.id, j.wallet_id, t.active_jobs_max
        HAVING count(*) > t.active_jobs_max""",
    "J7 a job is open exactly while its run is": """
        SELECT j.id FROM job j JOIN run r ON r.job_id = j.id AND r.no = j.run
        WHERE (r.status = 'open') <> (j.finished_at IS NULL) OR (r.status <> 'open' AND r.status <> j.status)""",
    "J10 runs are numbered without gaps": "SELECT job_id FROM run GROUP BY job_id HAVING max(no) <> count(*)",
    "G5 an ended job has no live task, stage or call": """
        SELECT j.id FROM job j WHERE j.finished_at IS NOT NULL AND (
            EXISTS (SELECT 1 FROM task t WHERE t.job_id = j.id AND t.finished_at IS NULL)
            OR EXISTS (SELECT 1 FROM stage s WHERE s.job_id = j.id
                       AND s.status NOT IN ('completed', 'failed', 'canceled'))
            OR EXISTS (SELECT 1 FROM call c WHERE c.job_id = j.id AND c.ended_at IS NULL))""",
    "G1 no task runs before the stages before it are completed": """
        SELECT t.id FROM task t JOIN stage s ON s.id = t.stage_id JOIN stage b ON b.job_id = s.job_id AND b.no < s.no
        WHERE (t.status = 'running' OR t.ready = 1) AND b.status <> 'completed'""",
    "G2 the counts of a stage match its tasks": """
        SELECT s.id FROM stage s LEFT JOIN task t ON t.stage_id = s.id GROUP BY s.id
        HAVING s.tasks_total <> count(t.id) OR s.tasks_running <> coalesce(sum(t.status = 'running'), 0)
        OR s.tasks_completed <> coalesce(sum(t.status = 'completed'), 0)
        OR (s.status = 'completed' AND s.tasks_completed <> s.tasks_total)""",
    "G7 attempts and requeues are limited": """
        SELECT id FROM task WHERE attempts_counted > attempts_max OR requeues > requeues_max + 1""",
    "G8 attempts and requeues add up to the leases of the run": """
        SELECT t.id FROM task t JOIN job j ON j.id = t.job_id LEFT JOIN attempt a ON a.task_id = t.id
        WHERE t.finished_at IS NULL GROUP BY t.id
        HAVING t.attempts_counted <> count(*) FILTER (WHERE a.run = j.run AND a.uncounted = 0)
        OR t.requeues <> count(*) FILTER (WHERE a.run = j.run AND a.uncounted = 1)
        OR t.attempts <> count(a.no)""",
    "H25 a lost lease counts as an attempt, a requeue does not": """
        SELECT task_id, no FROM attempt
        WHERE (outcome IN ('lost', 'completed', 'failed') AND uncounted = 1)
        OR (outcome = 'requeued' AND uncounted = 0)""",
    "C4 a task has the limits of its workflow": TASK_POLICY,
    "L2 a task runs exactly while its newest attempt does": """
        SELECT t.id FROM task t LEFT JOIN attempt a ON a.task_id = t.id AND a.no = t.attempts
        WHERE (t.status = 'running') <> (a.no IS NOT NULL AND a.ended_at IS NULL)
        OR (t.token_hash IS NOT NULL AND (t.status <> 'running' OR t.token_hash <> a.token_hash))""",
    "L9 no task of a paused or canceling job is claimable": """
        SELECT t.id FROM task t JOIN job j ON j.id = t.job_id JOIN stage s ON s.id = t.stage_id
        WHERE t.ready = 1 AND (j.status NOT IN ('queued', 'running') OR j.cancel_requested_at IS NOT NULL
        OR s.status NOT IN ('pending', 'running') OR t.status NOT IN ('pending', 'retried'))""",
    "L10 a token belongs to one attempt": "SELECT token_hash FROM attempt GROUP BY token_hash HAVING count(*) > 1",
    "L6 an ended worker has no lease": """
        SELECT t.id, w.id, w.status FROM worker w JOIN task t ON t.worker_id = w.id
        WHERE t.token_hash IS NOT NULL AND w.status IN ('revoked', 'offline')""",
    "L8 a worker has at most its concurrency of leases": """
        SELECT w.id FROM worker w JOIN task t ON t.worker_id = w.id WHERE t.token_hash IS NOT NULL
        GROUP BY w.id, w.concurrency HAVING count(*) > w.concurrency""",
    "A2 a worker has a token exactly while it is active": """
        SELECT id FROM worker WHERE (status IN ('pending', 'approved')) <> (token_hash IS NOT NULL)""",
    "O7 an open job has its files, of its own user": """
        SELECT u.job_id, u.file_id, f.status FROM job_file u JOIN job j ON j.id = u.job_id
        LEFT JOIN file f ON f.id = u.file_id WHERE j.finished_at IS NULL
        AND (f.id IS NULL OR f.status <> 'ready' OR f.tenant <> j.tenant OR f.user_id <> j.user_id)""",
    "V1 a task that can start is claimable or has a due time": """
        SELECT t.id FROM task t JOIN job j ON j.id = t.job_id JOIN stage s ON s.id = t.stage_id
        WHERE j.status IN ('queued', 'running') AND j.cancel_requested_at IS NULL AND s.status IN ('pending', 'running')
        AND t.status IN ('pending', 'retried', 'created') AND t.ready = 0 AND t.due_at IS NULL""",
    "V2 a running task has a due time": """
        SELECT t.id FROM task t LEFT JOIN call c ON c.task_id = t.id AND c.attempt = t.attempts
        WHERE t.status = 'running' AND t.due_at IS NULL AND c.collect_at IS NULL""",
    "V9 an open call belongs to a running task": """
        SELECT c.id FROM call c JOIN task t ON t.id = c.task_id
        WHERE c.ended_at IS NULL AND (t.status <> 'running' OR t.attempts <> c.attempt)""",
    "P3 a reference belongs to one call": """
        SELECT provider, ref FROM call WHERE ref IS NOT NULL GROUP BY provider, ref HAVING count(*) > 1""",
}

_APPEND_ONLY = {
    "run": ("job_id, no", "SELECT * FROM run WHERE status <> 'open' ORDER BY job_id, no", 2),
    "attempt": ("task_id, no", "SELECT * FROM attempt WHERE ended_at IS NOT NULL ORDER BY task_id, no", 2),
    "api_key": ("id", "SELECT * FROM api_key WHERE revoked_at IS NOT NULL ORDER BY id", 1),
    "entry": ("wallet_id, seq", "SELECT * FROM entry ORDER BY wallet_id, seq", 2),
    "audit": ("id", "SELECT * FROM audit ORDER BY id", 1),
}


class Invariants:
    """The checks of one simulation."""

    def __init__(self, inspector: Inspector, limits: Limits, verify_every: int) -> None:
        self._inspector = inspector
        self.policy = PolicyChecks(inspector)
        self._user_turns = UserTurns(inspector)
        self._limits = limits
        self._verify_every = verify_every
        self._commits = 0
        self._recorded_rows: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {name: {} for name in _APPEND_ONLY}
        self._events: list[tuple[Any, ...]] = []

    def after_commit(self) -> Iterator[str]:
        """Yield the failed checks."""
        for name, query in STATE_INVARIANTS.items():
            if bad := self._inspector.rows(query):
                yield f"{name}: {bad[:3]}"
        yield from self._check_running_limits()
        yield from self._check_rates()
        yield from self._check_worker_and_upload_limits()
        yield from self._user_turns.check()
        yield from self._check_append_only()
        self._commits += 1
        if self._commits % self._verify_every == 0:
            yield from self.run_verify()

    def run_verify(self) -> Iterator[str]:
        """Yield the findings of `callsheet verify`; it is slow and does not run at every commit."""
        for found in verify.check(self._inspector.connection):
            yield f"{found.name} {found.rule} {found.rows[:2]}"

    def _check_running_limits(self) -> Iterator[str]:
        """Yield exceeded limits of running tasks."""
        query = "SELECT count(*) FROM task t JOIN queue q ON q.id = t.queue WHERE t.status = 'running' AND q.{} = ?"
        for kind, limit in self._limits.kind_running_max.items():
            if self._inspector.one(query.format("kind"), kind) > limit:
                yield f"more than {limit} tasks of kind {kind} run"
        for provider, limit in self._limits.provider_running_max.items():
            if self._inspector.one(query.format("provider"), provider) > limit:
                yield f"more than {limit} tasks run at {provider}"
        for workflow, limit in self._inspector.rows(
            "SELECT name, running_max FROM workflow WHERE current = 1 AND running_max IS NOT NULL"
        ):
            if self._inspector.one(query.format("workflow"), workflow) > limit:
                yield f"more than {limit} tasks of {workflow} run"

    def _check_rates(self) -> Iterator[str]:
        """Yield exceeded rates: more starts within the time of a rate than it allows."""
        query = (
            "SELECT a.leased_at FROM attempt a JOIN task t ON t.id = a.task_id WHERE t.kind = ? ORDER BY a.leased_at"
        )
        for kind, text in self._limits.kind_rate_max.items():
            limit, seconds = parse_rate(text) or (0, 0)
            starts = [row[0] for row in self._inspector.rows(query, kind)]
            for first, next_ in zip(starts, starts[limit:], strict=False):
                if next_ - first < seconds * SECOND:
                    yield f"more than {text} tasks of kind {kind} started after {first}"

    def _check_worker_and_upload_limits(self) -> Iterator[str]:
        """Yield exceeded limits of workers (R201) and of open uploads."""
        admitted_count = self._inspector.one("SELECT count(*) FROM worker WHERE status IN ('pending', 'approved')")
        if admitted_count > self._limits.workers_max:
            yield f"R201 {admitted_count} workers are active; the limit is {self._limits.workers_max}"
        limit = self._limits.uploads_pending_max
        for owner in self._inspector.rows(
            "SELECT tenant, user_id FROM file WHERE status = 'uploading' GROUP BY 1, 2 HAVING count(*) > ?", limit
        ):
            yield f"{owner} has more than {limit} open uploads"
        yield from self._check_quotas()

    def _check_quotas(self) -> Iterator[str]:
        """Yield exceeded quotas of tenants and jobs."""
        limits = self._limits
        for usage in self._inspector.rows(
            "SELECT u.* FROM storage_usage u JOIN tenant t ON t.id = u.tenant"
            " WHERE u.stored_bytes + u.pending_bytes > coalesce(t.storage_bytes_max, ?) OR u.pending_bytes > ?",
            limits.storage_bytes_max, limits.pending_bytes_max,
        ):  # fmt: skip
            yield f"O10 {usage} exceeds the quota of the tenant"
        for job in self._inspector.rows(
            "SELECT id, output_bytes, progress_events FROM job WHERE output_bytes > ? OR progress_events > ?",
            limits.file_bytes_per_job_max, limits.progress_events_per_job_max,
        ):  # fmt: skip
            yield f"O11 {job} exceeds the limits of a job"

    def _check_append_only(self) -> Iterator[str]:
        """Yield rows of ended runs, ended attempts and the ledger that have changed (H19, R315, R375, R430)."""
        for name, (_, query, key) in _APPEND_ONLY.items():
            now = {row[:key]: row for row in self._inspector.rows(query)}
            for row_key, before in self._recorded_rows[name].items():
                if now.get(row_key) != before:
                    yield f"H19 the {name} {row_key} was {before} and is {now.get(row_key)}"
            self._recorded_rows[name] = now
        last = self._events[-1][0] if self._events else 0
        new_events = self._inspector.rows("SELECT * FROM event WHERE id > ? ORDER BY id", last)
        self._events.extend(new_events)
        yield from self.policy.check(new_events)

    def events_unchanged(self) -> bool:
        """Return whether the events are the same as when they were written."""
        return self._inspector.rows("SELECT * FROM event ORDER BY id") == self._events
