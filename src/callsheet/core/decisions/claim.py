"""Claims: lease waiting tasks to a worker.

The store selects candidates in fair order; the decision checks the worker and leases those that are still claimable.
"""

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.cascade import accepts_claims
from callsheet.core.decisions.lease import mark_call_unanswered, requeue_task
from callsheet.core.decisions.lease_check import hash_token
from callsheet.core.decisions.transitions import move_job, move_stage, move_task
from callsheet.core.model.clock import SECOND, seconds
from callsheet.core.model.commands import Claim, Lease, LeasedTask, PreviousSubmission
from callsheet.core.model.errors import BadInput, Conflict, Denied, InvalidWorkerToken
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Attempt, Document, Job, Stage, Task, Worker
from callsheet.core.model.workflow_definition import check_range
from callsheet.core.working_set import WorkingSet


def claim(ws: WorkingSet, command: Claim) -> list[LeasedTask]:
    """Lease up to `count` waiting tasks, in fair order."""
    check_range("count", command.count, 1, ws.limits.claim_tasks_max)
    if command.lease_seconds is not None:
        check_range("lease_seconds", command.lease_seconds, 1, ws.limits.lease_seconds_max)
    if not command.kinds or not command.worker_id:
        raise BadInput("invalid_claim", "A claim needs `worker_id` and at least one kind in `kinds`.")
    if ws.retrying and (previous := _find_previous_claim(ws, command)):
        return previous
    most = command.count if command.token_hash is None else free_slots(ws, command)
    candidates = ws.get_fact(facts.CANDIDATE_TASK_IDS, command.kinds)
    leased_tasks: list[LeasedTask] = []
    next_index = ws.get_fact(facts.NEXT_CANDIDATE, command.kinds)
    start = next_index
    while next_index < len(candidates) and len(leased_tasks) < most:
        task = ws.get(Task, candidates[next_index])
        next_index += 1
        if leased := _lease_task(ws, command, task, command.tokens[len(leased_tasks)]):
            leased_tasks.append(leased)
    if next_index != start:
        ws.set_fact(facts.NEXT_CANDIDATE, command.kinds, next_index)
    if leased_tasks and command.token_hash is not None:
        _record_leases(ws, command.worker_id, leased_tasks)
    return leased_tasks


def _record_leases(ws: WorkingSet, worker_id: str, leased_tasks: list[LeasedTask]) -> None:
    """Update the worker's leases for the rest of the batch: a later command may revoke the worker."""
    for fact in (facts.LEASED_TASK_IDS, facts.TASKS_OF_WORKER):
        if ws.has_fact(fact, worker_id):
            new_ids = (leased.lease.task_id for leased in leased_tasks)
            ws.set_fact(fact, worker_id, (*ws.get_fact(fact, worker_id), *new_ids))


def free_slots(ws: WorkingSet, command: Claim) -> int:
    """Return how many more tasks a registered worker may lease, or refuse the claim."""
    worker = ws.find(Worker, command.worker_id)
    if worker is None or worker.token_hash != command.token_hash:
        raise InvalidWorkerToken
    if worker.status == "pending":
        message = f"Worker {worker.id!r} is not approved yet: an operator must approve it before it can claim tasks."
        raise Denied("worker_not_approved", message)
    if worker.draining_at is not None:
        message = f"Worker {worker.id!r} is draining and gets no more tasks: finish the running tasks and deregister."
        raise Conflict("worker_draining", message)
    if not_assigned := set(command.kinds) - set(allowed_kinds(worker)):
        message = f"Worker {worker.id!r} is not assigned to {', '.join(sorted(not_assigned))}: claim other kinds."
        raise Conflict("kind_not_assigned", message)
    held = ws.get_fact(facts.LEASED_TASK_IDS, worker.id)
    if command.held_task_ids is not None and not set(held) <= set(command.held_task_ids):
        claimed_at = ws.now - seconds(command.waited_seconds) if command.waited_seconds else None
        requeue_held_tasks(
            ws,
            worker.id,
            "The worker did not receive the response to its claim.",
            keep_task_ids=command.held_task_ids,
            leased_until=claimed_at,
        )
        held = tuple(key for key in held if _holds_task(ws, worker.id, key))  # keeps leases made in this batch
        ws.set_fact(facts.LEASED_TASK_IDS, worker.id, held)
    if len(held) >= worker.concurrency:
        most = pluralize(worker.concurrency, "task")
        message = f"Worker {worker.id!r} has leased {most}, its registered concurrency: finish one before you claim."
        raise Conflict("worker_full", message)
    return min(command.count, worker.concurrency - len(held))


def requeue_held_tasks(
    ws: WorkingSet, worker_id: str, reason: str, keep_task_ids: Collection[str] = (), leased_until: int | None = None
) -> int:
    """Requeue the tasks that a worker has leased, except `keep_task_ids` and those leased after `leased_until`."""
    requeued = 0
    for key in ws.get_fact(facts.TASKS_OF_WORKER, worker_id):
        task = ws.get(Task, key)
        if key in keep_task_ids or not _holds_task(ws, worker_id, key):
            continue
        if leased_until is not None and ws.get(Attempt, (task.id, task.attempts)).leased_at > leased_until:
            continue
        job = ws.get(Job, task.job_id)
        if not mark_call_unanswered(ws, task):
            requeue_task(ws, job, task, "requeued", reason, "system")
        requeued += 1
    return requeued


def _holds_task(ws: WorkingSet, worker_id: str, task_id: str) -> bool:
    task = ws.get(Task, task_id)
    return task.token_hash is not None and task.worker_id == worker_id


def allowed_kinds(worker: Worker) -> tuple[str, ...]:
    """Return the kinds that a worker offers and is assigned to; without an assignment, all that it offers."""
    offered: list[str] = msgspec.json.decode(worker.offered)
    if worker.assigned is None:
        return tuple(offered)
    assigned = set(msgspec.json.decode(worker.assigned))
    return tuple(kind for kind in offered if kind in assigned)


def _lease_task(ws: WorkingSet, command: Claim, task: Task, token: str) -> LeasedTask | None:
    job = ws.get(Job, task.job_id)
    stage = ws.get(Stage, task.stage_id)
    if not task.ready or not accepts_claims(job, stage):
        return None
    # The database clock may have been set back after the backoff ended.
    if task.ready_at is not None and task.ready_at > ws.change_time(job):
        job = replace(job, updated_at=task.ready_at)
        ws.put(job)
    now = ws.change_time(job)
    lease_seconds = command.lease_seconds or task.lease_seconds
    lease_expires_at = ws.now + lease_seconds * SECOND
    resumed = _previous_submission(ws, task.id, task.attempts)
    token = _lease_token(token, task.id, task.attempts + 1)
    rate_queue = task.queue if ws.get_fact(facts.HAS_RATE_LIMIT, task.queue) else None
    attempt = Attempt(
        task.id, task.attempts + 1, job.id, job.run, job.tenant, command.worker_id, hash_token(token), now, rate_queue,
        provider=resumed.provider if resumed else None, ref=resumed.ref if resumed else None,
    )  # fmt: skip
    ws.put(attempt)
    ws.leave_queue(task, started=True)
    task = move_task(
        ws, job, task, "lease", "worker", {}, ready=0, ready_at=None, due_at=lease_expires_at,
        lease_expires_at=lease_expires_at,
        token_hash=attempt.token_hash, worker_id=command.worker_id, attempts=attempt.no, has_call=0, progress=0,
        message=None, attempts_counted=task.attempts_counted + 1, started_at=task.started_at or now,
    )  # fmt: skip
    if stage.status == "pending":
        move_stage(ws, job, ws.get(Stage, stage.id), "start", "worker", started_at=stage.started_at or now)
    if job.status == "queued":
        move_job(ws, job, "start", "worker", {}, started_at=now)
    return _leased_task(ws, job, stage, task, token, lease_seconds, resumed)


def _previous_submission(ws: WorkingSet, task_id: str, no: int) -> PreviousSubmission | None:
    """Return the provider job that an interrupted attempt submitted, so that the next attempt can resume it."""
    last = ws.find(Attempt, (task_id, no)) if no else None
    if last is None or last.ref is None or last.provider is None:
        return None
    if last.outcome not in {"lost", "requeued"} and not last.resumable:
        return None
    return PreviousSubmission(last.provider, last.ref)


def _leased_task(
    ws: WorkingSet,
    job: Job,
    stage: Stage,
    task: Task,
    token: str,
    lease_seconds: int,
    resumed: PreviousSubmission | None,
) -> LeasedTask:
    body = ws.find(Document, (task.id, "input")) or ws.find(Document, (job.id, "input"))
    return LeasedTask(
        Lease(job.id, task.id, task.attempts, token), job.tenant, job.workflow, task.kind, stage.name, stage.no,
        task.no, lease_seconds, body.body if body else "null", task.trace or stage.trace or job.trace,
        job.workflow_version,
        resumed,
    )  # fmt: skip


def _lease_token(token: str, task_id: str, attempt: int) -> str:
    """Return a token that is unique per lease: a retried claim may lease other tasks with the same claim tokens."""
    return f"{token}.{task_id}.{attempt}"


def _find_previous_claim(ws: WorkingSet, command: Claim) -> list[LeasedTask]:
    """Return the tasks that an earlier execution of the same claim has leased."""
    held = [
        task for key in ws.get_fact(facts.TASKS_OF_WORKER, command.worker_id) if (task := ws.get(Task, key)).token_hash
    ]
    pairs = ((task, _lease_token(token, task.id, task.attempts)) for token in command.tokens for task in held)
    return [
        _leased_task(
            ws,
            ws.get(Job, t.job_id),
            ws.get(Stage, t.stage_id),
            t,
            token,
            command.lease_seconds or t.lease_seconds,
            _previous_submission(ws, t.id, t.attempts - 1),
        )
        for t, token in pairs
        if t.token_hash == hash_token(token)
    ]
