"""The fleet: who is let in to take work, what of it, and what becomes of the work when a worker goes.

A worker's name is its machine's; its token is made anew at every start and kept as a hash. The rules look at the
worker's row in the very transaction that leases, so a revoked one takes nothing from that moment on.

Between a lost connection and the next try somebody else may have decided otherwise about the same worker. So a
command that is tried again looks for its own line in the audit log, and does nothing a second time.
"""

import msgspec
from msgspec.structs import replace

from callsheet.core.claim import kinds_of, release
from callsheet.core.clock import seconds
from callsheet.core.commands import (
    Command,
    Deregister,
    Register,
    RevokeWorker,
    RotateWorker,
    Seen,
    SetWorker,
    TickWorker,
    WorkerState,
)
from callsheet.core.counting import counted
from callsheet.core.errors import Conflict, Denied, NotAdmitted, Unknown
from callsheet.core.recipe import in_range, name_checked
from callsheet.core.redact import clean
from callsheet.core.rows import Attempt, Audit, Task, Worker
from callsheet.core.submit import bounded_json, check_notes, text_or_none
from callsheet.core.working import WorkingSet, encode

FLEET = "fleet"
"""The one key under which the fleet is counted, and let in one at a time."""
_LIVE = frozenset({"pending", "approved"})


def register(ws: WorkingSet, command: Register) -> WorkerState:
    """Let a worker in. The same name again is a restart: a new token, and what it held is given back."""
    _check(ws, command)
    known = ws.find(Worker, command.worker_id)
    if known is not None and _done_before(ws, command):
        return _state(known)
    if known is not None and known.status == "revoked":
        raise Denied("worker_revoked", f"The worker {known.id!r} was revoked: an operator must approve it again.")
    if known is not None and known.token_hash == command.token_hash:
        return _state(known)
    if known is None or known.status not in _LIVE:
        _take_place(ws)
    first = known or Worker(command.worker_id, ws.now, "gone", None, "[]", None, 1, 0, ws.now, ws.now)
    now = max(ws.now, first.created_at)  # the clock may have been set back
    approved_at = first.approved_at or (now if command.approved and known is None else None)
    after = replace(
        first, status="approved" if approved_at else "pending", approved_at=approved_at, token_hash=command.token_hash,
        offered=encode(sorted(set(command.kinds))), concurrency=command.concurrency, starts=first.starts + 1,
        started_at=now, seen_at=now, draining_at=None, ended_at=None,
        capabilities=text_or_none(command.capabilities), labels=text_or_none(command.labels),
    )  # fmt: skip
    ws.put(after)
    return _state(after, release(ws, after.id, "The worker was started again.") if known else 0)


def _check(ws: WorkingSet, command: Register) -> None:
    limits = ws.limits
    name_checked("worker", command.worker_id, limits)
    in_range("the number of kinds", len(command.kinds), 1, limits.kinds_per_worker_max)
    for kind in command.kinds:
        name_checked("kind", kind, limits)
    in_range("concurrency", command.concurrency, 1, limits.worker_concurrency_max)
    check_notes(command.labels, None, None, limits)
    if command.capabilities is not None:
        bounded_json("capabilities", command.capabilities, limits.metadata_bytes_max)


def _take_place(ws: WorkingSet) -> None:
    there: int = ws.fact("fleet", FLEET)
    if there >= ws.limits.workers_max:
        most = ws.limits.workers_max
        said = f"{counted(there, 'worker', verb='is')} registered and {most} may be: wait, or raise the cap."
        raise Conflict("fleet_full", said, workers=there, max=most)
    ws.set_fact("fleet", FLEET, there + 1)


def deregister(ws: WorkingSet, command: Deregister) -> WorkerState:
    """Let a worker go, and give back what it held; it may come again under the same name."""
    worker = ws.find(Worker, command.worker_id)
    if worker is not None and _done_before(ws, command):
        return _state(worker)
    if worker is None or worker.token_hash != command.session:
        raise NotAdmitted
    why = clean(command.reason, ws.limits.message_chars_max) if command.reason.strip() else "The worker went away."
    return _ended(ws, worker, "gone", why)


def tick_worker(ws: WorkingSet, command: TickWorker) -> WorkerState:
    """Count a worker as gone that was not heard of for long."""
    worker = _worker(ws, command.worker_id)
    if worker.status not in _LIVE or worker.seen_at + seconds(ws.limits.worker_silence_seconds) > ws.now:
        return _state(worker)
    return _ended(ws, worker, "gone", "The worker was not heard of any more.")


def revoke_worker(ws: WorkingSet, command: RevokeWorker) -> WorkerState:
    """Let a worker in no longer, from this moment on."""
    worker = _worker(ws, command.worker_id)
    if worker.status == "revoked" or _done_before(ws, command):
        return _state(worker)
    return _ended(ws, worker, "revoked", "The worker was revoked.")


def _ended(ws: WorkingSet, worker: Worker, status: str, reason: str) -> WorkerState:
    approved_at = None if status == "revoked" else worker.approved_at
    after = replace(worker, status=status, token_hash=None, ended_at=ws.now, approved_at=approved_at)
    ws.put(after)
    return _state(after, release(ws, worker.id, reason))


def rotate_worker(ws: WorkingSet, command: RotateWorker) -> WorkerState:
    """Give a worker another token; its leases stay its own."""
    worker = _worker(ws, command.worker_id)
    if _done_before(ws, command):
        return _state(worker)
    if worker.status not in _LIVE:
        raise Conflict("worker_ended", f"The worker is {worker.status}: it has no token to change.")
    after = replace(worker, token_hash=command.token_hash)
    ws.put(after)
    return _state(after)


def set_worker(ws: WorkingSet, command: SetWorker) -> WorkerState:
    """Approve, drain, assign kinds; what is as it should be changes nothing."""
    worker = after = _worker(ws, command.worker_id)
    if _done_before(ws, command):
        return _state(worker)
    if command.approved is not None:
        after = _approved(after, ws.now if command.approved else None)
    if command.draining is not None and command.draining != (after.draining_at is not None):
        after = replace(after, draining_at=_after_its_leases(ws, worker) if command.draining else None)
    if command.kinds is not None:
        in_range("the number of kinds", len(command.kinds), 0, ws.limits.kinds_per_worker_max)
        for kind in command.kinds:
            name_checked("kind", kind, ws.limits)
        _check_offered(worker, command.kinds)
        after = replace(after, assigned=encode(sorted(set(command.kinds))) if command.kinds else None)
    if after != worker:
        ws.put(after)
    return _state(after)


def _check_offered(worker: Worker, kinds: tuple[str, ...]) -> None:
    """Refuse to assign only what a worker does not do: it would be out of work, by a slip of the pen perhaps."""
    offered: list[str] = msgspec.json.decode(worker.offered)
    if kinds and offered and not set(kinds) & set(offered):
        does, not_these = ", ".join(offered), ", ".join(sorted(set(kinds)))
        raise Conflict("kind_not_offered", f"{worker.id} does not do {not_these}; it offers {does}.")


def _approved(worker: Worker, at: int | None) -> Worker:
    """Let a worker take work, or no longer; a revoked one may come again."""
    if (worker.approved_at is None) == (at is None) and worker.status != "revoked":
        return worker
    status = "gone" if worker.status in {"gone", "revoked"} else "pending" if at is None else "approved"
    return replace(
        worker, status=worker.status if worker.status == "revoked" and at is None else status, approved_at=at
    )


def seen(ws: WorkingSet, command: Seen) -> int:
    """Note when workers were last heard of."""
    noted = 0
    for worker in (ws.find(Worker, key) for key in command.workers):
        if worker is not None and worker.status in _LIVE and worker.seen_at < ws.now:
            ws.put(replace(worker, seen_at=ws.now))
            noted += 1
    return noted


# -- inside


def _done_before(ws: WorkingSet, command: Command) -> bool:
    return ws.again and ws.find(Audit, command.id) is not None


def _after_its_leases(ws: WorkingSet, worker: Worker) -> int:
    """Return now, or the moment of its last lease if the clock was set back since: it gets none behind that."""
    held = (ws.get(Task, key) for key in ws.fact("held_by", worker.id))
    return max([ws.now, *(ws.get(Attempt, (task.id, task.attempts)).leased_at for task in held)])


def _worker(ws: WorkingSet, key: str) -> Worker:
    worker = ws.find(Worker, key)
    if worker is None:
        raise Unknown("worker", key[:80])
    return worker


def _state(worker: Worker, requeued: int = 0) -> WorkerState:
    return WorkerState(worker.id, worker.status, kinds_of(worker), requeued)
