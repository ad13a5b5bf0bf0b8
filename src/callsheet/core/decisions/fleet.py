"""The fleet: who is let in to take work, what of it, and what becomes of the work when a worker goes.

A worker's name is its machine's; its token is made anew at every start and kept as a hash. The rules look at the
worker's row in the very transaction that leases, so a revoked one takes nothing from that moment on.

Between a lost connection and the next try somebody else may have decided otherwise about the same worker. So a
command that is tried again looks for its own line in the audit log, and does nothing a second time.
"""

import msgspec
from msgspec.structs import replace

from callsheet.core import facts
from callsheet.core.decisions.claim import allowed_kinds, requeue_held_tasks
from callsheet.core.decisions.submit import check_annotations, encode_bounded, encode_or_none
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
from callsheet.core.working_set import WorkingSet, encode

FLEET = "fleet"
"""The one key under which the fleet is counted, and let in one at a time."""
_LIVE = frozenset({"pending", "approved"})


def register(ws: WorkingSet, command: Register) -> WorkerState:
    """Let a worker in. The same name again is a restart: a new token, and what it held is given back."""
    _check_registration(ws, command)
    existing = ws.find(Worker, command.worker_id)
    if existing is not None and _already_applied(ws, command):
        return _worker_state(existing)
    if existing is not None and existing.status == "revoked":
        raise Denied("worker_revoked", f"The worker {existing.id!r} was revoked: an operator must approve it again.")
    if existing is not None and existing.token_hash == command.token_hash:
        return _worker_state(existing)
    if existing is None or existing.status not in _LIVE:
        _take_worker_slot(ws)
    first = existing or Worker(command.worker_id, ws.now, "gone", None, "[]", None, 1, 0, ws.now, ws.now)
    now = max(ws.now, first.created_at)  # the clock may have been set back
    approved_at = first.approved_at or (now if command.approved and existing is None else None)
    after = replace(
        first, status="approved" if approved_at else "pending", approved_at=approved_at, token_hash=command.token_hash,
        offered=encode(sorted(set(command.kinds))), concurrency=command.concurrency, starts=first.starts + 1,
        started_at=now, last_seen_at=now, draining_at=None, ended_at=None,
        capabilities=encode_or_none(command.capabilities), labels=encode_or_none(command.labels),
    )  # fmt: skip
    ws.put(after)
    return _worker_state(after, requeue_held_tasks(ws, after.id, "The worker was started again.") if existing else 0)


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
        message = f"{pluralize(registered, 'worker', verb='is')} registered and {most} may be: wait, or raise the cap."
        raise Conflict("fleet_full", message, workers=registered, max=most)
    ws.set_fact(facts.WORKER_COUNT, FLEET, registered + 1)


def deregister(ws: WorkingSet, command: Deregister) -> WorkerState:
    """Let a worker go, and give back what it held; it may come again under the same name."""
    worker = ws.find(Worker, command.worker_id)
    if worker is not None and _already_applied(ws, command):
        return _worker_state(worker)
    if worker is None or worker.token_hash != command.session:
        raise InvalidWorkerToken
    reason = (
        redact_error(command.reason, ws.limits.message_chars_max) if command.reason.strip() else "The worker went away."
    )
    return _end_worker(ws, worker, "gone", reason)


def tick_worker(ws: WorkingSet, command: TickWorker) -> WorkerState:
    """Count a worker as gone that was not heard of for long."""
    worker = _get_worker(ws, command.worker_id)
    if worker.status not in _LIVE or worker.last_seen_at + seconds(ws.limits.worker_timeout_seconds) > ws.now:
        return _worker_state(worker)
    return _end_worker(ws, worker, "gone", "The worker was not heard of any more.")


def revoke_worker(ws: WorkingSet, command: RevokeWorker) -> WorkerState:
    """Let a worker in no longer, from this moment on."""
    worker = _get_worker(ws, command.worker_id)
    if worker.status == "revoked" or _already_applied(ws, command):
        return _worker_state(worker)
    return _end_worker(ws, worker, "revoked", "The worker was revoked.")


def _end_worker(ws: WorkingSet, worker: Worker, status: str, reason: str) -> WorkerState:
    approved_at = None if status == "revoked" else worker.approved_at
    after = replace(worker, status=status, token_hash=None, ended_at=ws.now, approved_at=approved_at)
    ws.put(after)
    return _worker_state(after, requeue_held_tasks(ws, worker.id, reason))


def rotate_worker(ws: WorkingSet, command: RotateWorker) -> WorkerState:
    """Give a worker another token; its leases stay its own."""
    worker = _get_worker(ws, command.worker_id)
    if _already_applied(ws, command):
        return _worker_state(worker)
    if worker.status not in _LIVE:
        raise Conflict("worker_ended", f"The worker is {worker.status}: it has no token to change.")
    after = replace(worker, token_hash=command.token_hash)
    ws.put(after)
    return _worker_state(after)


def update_worker(ws: WorkingSet, command: UpdateWorker) -> WorkerState:
    """Approve, drain, assign kinds; what is as it should be changes nothing."""
    worker = after = _get_worker(ws, command.worker_id)
    if _already_applied(ws, command):
        return _worker_state(worker)
    if command.approved is not None:
        after = _set_approval(after, ws.now if command.approved else None)
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
    """Refuse to assign only what a worker does not do: it would be out of work, by a slip of the pen perhaps."""
    offered: list[str] = msgspec.json.decode(worker.offered)
    if kinds and offered and not set(kinds) & set(offered):
        does, not_these = ", ".join(offered), ", ".join(sorted(set(kinds)))
        raise Conflict("kind_not_offered", f"{worker.id} does not do {not_these}; it offers {does}.")


def _set_approval(worker: Worker, at: int | None) -> Worker:
    """Let a worker take work, or no longer; a revoked one may come again."""
    if (worker.approved_at is None) == (at is None) and worker.status != "revoked":
        return worker
    status = "gone" if worker.status in {"gone", "revoked"} else "pending" if at is None else "approved"
    return replace(
        worker, status=worker.status if worker.status == "revoked" and at is None else status, approved_at=at
    )


def record_heartbeats(ws: WorkingSet, command: RecordHeartbeats) -> int:
    """Note when workers were last heard of."""
    updated = 0
    for worker in (ws.find(Worker, key) for key in command.workers):
        if worker is not None and worker.status in _LIVE and worker.last_seen_at < ws.now:
            ws.put(replace(worker, last_seen_at=ws.now))
            updated += 1
    return updated


# -- inside


def _already_applied(ws: WorkingSet, command: Command) -> bool:
    return ws.retrying and ws.find(Audit, command.id) is not None


def _drain_time(ws: WorkingSet, worker: Worker) -> int:
    """Return now, or the moment of its last lease if the clock was set back since: it gets none behind that."""
    leased_tasks = (ws.get(Task, key) for key in ws.get_fact(facts.TASKS_OF_WORKER, worker.id))
    return max([ws.now, *(ws.get(Attempt, (task.id, task.attempts)).leased_at for task in leased_tasks)])


def _get_worker(ws: WorkingSet, key: str) -> Worker:
    worker = ws.find(Worker, key)
    if worker is None:
        raise NotFound("worker", key[:80])
    return worker


def _worker_state(worker: Worker, requeued: int = 0) -> WorkerState:
    return WorkerState(worker.id, worker.status, allowed_kinds(worker), requeued)
