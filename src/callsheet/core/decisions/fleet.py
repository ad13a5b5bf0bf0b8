"""The fleet: registration, approval, assignment, draining and revocation of workers.

A worker gets a new token at every start; only its hash is stored. A claim checks the worker's row in the same
transaction that leases, so a revoked worker leases nothing more. When a worker ends, its tasks are requeued.

A command that the engine retries after a lost connection looks for its own audit line and is not applied twice:
another command may have changed the same worker in the meantime.
"""

import msgspec
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.claim import allowed_kinds, requeue_held_tasks
from callsheet.core.model.clock import seconds
from callsheet.core.model.commands import (
    Command,
    Deregister,
    RecordHeartbeats,
    Register,
    RevokeWorker,
    RotateWorker,
    TickWorker,
    UpdateWorker,
    WorkerState,
)
from callsheet.core.model.errors import Conflict, Denied, InvalidWorkerToken, NotFound
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Attempt, Audit, Task, Worker
from callsheet.core.model.workflow_definition import check_name, check_range
from callsheet.core.policy.redaction import redact_error
from callsheet.core.policy.request_validation import check_annotations, encode_bounded, encode_or_none
from callsheet.core.working_set import WorkingSet, encode

FLEET = "fleet"
"""The key of the worker count. It is locked, so that registrations are counted one at a time."""
_LIVE = frozenset({"pending", "approved"})


def register(ws: WorkingSet, command: Register) -> WorkerState:
    """Register a worker. A known name is a restart: new token, and tasks that it does not run are requeued."""
    _check_registration(ws, command)
    existing = ws.find(Worker, command.worker_id)
    if existing is not None and _already_applied(ws, command):
        return _worker_state(existing)
    if existing is not None and existing.status == "revoked":
        raise Denied("worker_revoked", f"Worker {existing.id!r} was revoked: an operator must approve it again.")
    if existing is not None and existing.token_hash == command.token_hash:
        return _worker_state(existing)
    if existing is None or existing.status not in _LIVE:
        _take_worker_slot(ws)
    first = existing or Worker(command.worker_id, ws.now, "offline", None, "[]", None, 1, 0, ws.now, ws.now)
    now = ws.change_time(first)
    running = command.held_task_ids[: command.concurrency]
    still_draining = running and first.status in _LIVE and first.draining_at is not None
    approved_at = first.approved_at or (now if command.approved and existing is None else None)
    after = replace(
        first, status="approved" if approved_at else "pending", approved_at=approved_at, token_hash=command.token_hash,
        offered=encode(sorted(set(command.kinds))), concurrency=command.concurrency, starts=first.starts + 1,
        started_at=now, last_seen_at=now, draining_at=_drain_time(ws, first) if still_draining else None, ended_at=None,
        capabilities=encode_or_none(command.capabilities), labels=encode_or_none(command.labels),
    )  # fmt: skip
    ws.put(after)
    requeued = requeue_held_tasks(ws, after.id, "The worker was restarted.", running) if existing else 0
    return _worker_state(after, requeued)


def _check_registration(ws: WorkingSet, command: Register) -> None:
    limits = ws.limits
    check_name("worker", command.worker_id, limits)
    check_range("the number of kinds", len(command.kinds), 1, limits.kinds_per_worker_max)
    for kind in command.kinds:
        check_name("kind", kind, limits)
    check_range("concurrency", command.concurrency, 1, limits.worker_concurrency_max)
    check_annotations(command.labels, None, None, limits)
    if command.capabilities is not None:
        encode_bounded("capabilities", command.capabilities, limits.metadata_bytes_max)


def _take_worker_slot(ws: WorkingSet) -> None:
    registered = ws.get_fact(facts.WORKER_COUNT, FLEET)
    if registered >= ws.limits.workers_max:
        most = ws.limits.workers_max
        message = (
            f"{pluralize(registered, 'worker', verb='is')} registered and {most} are allowed: wait until one leaves, "
            "or raise `workers_max`."
        )
        raise Conflict("fleet_full", message, workers=registered, max=most)
    ws.set_fact(facts.WORKER_COUNT, FLEET, registered + 1)


def deregister(ws: WorkingSet, command: Deregister) -> WorkerState:
    """Deregister a worker and requeue its tasks; it may register again under the same name."""
    worker = ws.find(Worker, command.worker_id)
    if worker is not None and _already_applied(ws, command):
        return _worker_state(worker)
    if worker is None or worker.token_hash != command.token_hash:
        raise InvalidWorkerToken
    reason = (
        redact_error(command.reason, ws.limits.message_chars_max)
        if command.reason.strip()
        else "The worker was shut down."
    )
    return _end_worker(ws, worker, "offline", reason)


def tick_worker(ws: WorkingSet, command: TickWorker) -> WorkerState:
    """Mark a worker as offline if it has sent no heartbeat for `worker_timeout_seconds`."""
    worker = _get_worker(ws, command.worker_id)
    if worker.status not in _LIVE or worker.last_seen_at + seconds(ws.limits.worker_timeout_seconds) > ws.now:
        return _worker_state(worker)
    return _end_worker(ws, worker, "offline", "The worker stopped sending heartbeats.")


def revoke_worker(ws: WorkingSet, command: RevokeWorker) -> WorkerState:
    """Revoke a worker: its token is invalid at once and its tasks are requeued."""
    worker = _get_worker(ws, command.worker_id)
    if worker.status == "revoked" or _already_applied(ws, command):
        return _worker_state(worker)
    return _end_worker(ws, worker, "revoked", "The worker was revoked.")


def _end_worker(ws: WorkingSet, worker: Worker, status: str, reason: str) -> WorkerState:
    approved_at = None if status == "revoked" else worker.approved_at
    after = replace(worker, status=status, token_hash=None, ended_at=ws.change_time(worker), approved_at=approved_at)
    ws.put(after)
    return _worker_state(after, requeue_held_tasks(ws, worker.id, reason))


def rotate_worker(ws: WorkingSet, command: RotateWorker) -> WorkerState:
    """Replace the token of a worker; it keeps its leases."""
    worker = _get_worker(ws, command.worker_id)
    if _already_applied(ws, command):
        return _worker_state(worker)
    if worker.status not in _LIVE:
        message = f"Worker {worker.id!r} is {worker.status} and has no token: register it again to get one."
        raise Conflict("worker_ended", message)
    after = replace(worker, token_hash=command.token_hash)
    ws.put(after)
    return _worker_state(after)


def update_worker(ws: WorkingSet, command: UpdateWorker) -> WorkerState:
    """Approve or drain a worker, or assign its kinds; a request without a difference changes nothing."""
    worker = after = _get_worker(ws, command.worker_id)
    if _already_applied(ws, command):
        return _worker_state(worker)
    if command.approved is not None:
        after = _set_approval(after, ws.change_time(worker) if command.approved else None)
    if command.draining is not None and command.draining != (after.draining_at is not None):
        after = replace(after, draining_at=_drain_time(ws, worker) if command.draining else None)
    if command.kinds is not None:
        check_range("the number of kinds", len(command.kinds), 0, ws.limits.kinds_per_worker_max)
        for kind in command.kinds:
            check_name("kind", kind, ws.limits)
        _check_offered(worker, command.kinds)
        after = replace(after, assigned=encode(sorted(set(command.kinds))) if command.kinds else None)
    if after != worker:
        ws.put(after)
    return _worker_state(after)


def _check_offered(worker: Worker, kinds: tuple[str, ...]) -> None:
    """Refuse an assignment that leaves the worker without any kind: it is most likely a typing error."""
    offered: list[str] = msgspec.json.decode(worker.offered)
    if kinds and offered and not set(kinds) & set(offered):
        requested = ", ".join(sorted(set(kinds)))
        message = f"Worker {worker.id!r} does not offer {requested}: assign at least one of {', '.join(offered)}."
        raise Conflict("kind_not_offered", message)


def _set_approval(worker: Worker, at: int | None) -> Worker:
    """Set or remove the approval. Approving a revoked worker lets it register again."""
    if (worker.approved_at is None) == (at is None) and worker.status != "revoked":
        return worker
    status = "offline" if worker.status in {"offline", "revoked"} else "pending" if at is None else "approved"
    return replace(
        worker, status=worker.status if worker.status == "revoked" and at is None else status, approved_at=at
    )


def record_heartbeats(ws: WorkingSet, command: RecordHeartbeats) -> int:
    """Update `last_seen_at` of workers that sent heartbeats, and return how many changed."""
    updated = 0
    for worker in (ws.find(Worker, key) for key in command.workers):
        if worker is not None and worker.status in _LIVE and worker.last_seen_at < ws.now:
            ws.put(replace(worker, last_seen_at=ws.change_time(worker)))
            updated += 1
    return updated


def _already_applied(ws: WorkingSet, command: Command) -> bool:
    return ws.retrying and ws.find(Audit, command.id) is not None


def _drain_time(ws: WorkingSet, worker: Worker) -> int:
    """Return the time at which a worker begins to drain, not before its newest lease."""
    leased_tasks = (ws.get(Task, key) for key in ws.get_fact(facts.TASKS_OF_WORKER, worker.id))
    return ws.change_time(worker, *(ws.get(Attempt, (task.id, task.attempts)) for task in leased_tasks))


def _get_worker(ws: WorkingSet, key: str) -> Worker:
    worker = ws.find(Worker, key)
    if worker is None:
        raise NotFound("worker", key[:80])
    return worker


def _worker_state(worker: Worker, requeued: int = 0) -> WorkerState:
    return WorkerState(worker.id, worker.status, allowed_kinds(worker), requeued)
