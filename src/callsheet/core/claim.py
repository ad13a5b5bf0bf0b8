"""Claims: which of the waiting tasks a worker takes, and whether it may."""

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from callsheet.core.cascade import offers
from callsheet.core.clock import SECOND, seconds
from callsheet.core.commands import Claim, Lease, Leased, Resumed
from callsheet.core.counting import counted
from callsheet.core.errors import BadInput, Conflict, Denied, NotAdmitted
from callsheet.core.holding import hashed
from callsheet.core.lease import answer_lost, give_back
from callsheet.core.moves import move_job, move_stage, move_task
from callsheet.core.recipe import in_range
from callsheet.core.rows import Attempt, Document, Job, Stage, Task, Worker
from callsheet.core.working import WorkingSet


def claim(ws: WorkingSet, command: Claim) -> list[Leased]:
    """Lease the best waiting tasks; the store offers them in order, the rules take those that still stand."""
    in_range("count", command.count, 1, ws.limits.claim_max)
    if command.lease_seconds is not None:
        in_range("lease_seconds", command.lease_seconds, 1, ws.limits.lease_seconds_max)
    if not command.kinds or not command.worker_id:
        raise BadInput("invalid_claim", "A claim names a worker and at least one kind.")
    if ws.again and (own := _claimed_before(ws, command)):
        return own
    most = command.count if command.session is None else places(ws, command)
    offered: tuple[str, ...] = ws.fact("offer", command.kinds)
    taken: list[Leased] = []
    place: int = ws.fact("place", command.kinds)
    start = place
    while place < len(offered) and len(taken) < most:
        task = ws.get(Task, offered[place])
        place += 1
        if leased := _lease(ws, command, task, command.tokens[len(taken)]):
            taken.append(leased)
    if place != start:
        ws.set_fact("place", command.kinds, place)
    if taken and command.session is not None:
        _note(ws, command.worker_id, taken)
    return taken


def _note(ws: WorkingSet, worker_id: str, taken: list[Leased]) -> None:
    """Let the rest of the batch know what a worker holds now: it may be put out in the same one."""
    for fact in ("holds", "held_by"):
        if ws.has(fact, worker_id):
            ws.set_fact(fact, worker_id, (*ws.fact(fact, worker_id), *(leased.lease.task_id for leased in taken)))


def places(ws: WorkingSet, command: Claim) -> int:
    """Return how many tasks a worker of the fleet may take now; refuse one that is not let in."""
    worker = ws.find(Worker, command.worker_id)
    if worker is None or worker.token_hash != command.session:
        raise NotAdmitted
    if worker.status == "pending":
        raise Denied("worker_not_approved", "An operator has not approved this worker yet.")
    if worker.draining_at is not None:
        raise Conflict("worker_draining", "This worker is to finish what it holds and go: it gets no more work.")
    if not set(command.kinds) <= set(kinds_of(worker)):
        raise Conflict("kind_not_assigned", "This worker is not assigned to all of these kinds.")
    held: tuple[str, ...] = ws.fact("holds", worker.id)
    if command.holds is not None and not set(held) <= set(command.holds):
        asked_at = ws.now - seconds(command.waited_seconds) if command.waited_seconds else None
        release(ws, worker.id, "The answer to the claim was lost.", known=command.holds, since=asked_at)
        held = tuple(key for key in held if _holds(ws, worker.id, key))  # and what this very batch leased stays
        ws.set_fact("holds", worker.id, held)
    if len(held) >= worker.concurrency:
        most = counted(worker.concurrency, "task")
        raise Conflict("worker_full", f"This worker holds {most}, which is all that it said it can do at once.")
    return min(command.count, worker.concurrency - len(held))


def release(ws: WorkingSet, worker_id: str, reason: str, known: Collection[str] = (), since: int | None = None) -> int:
    """Give back what a worker holds, without using up a try, but for the tasks it knows of or got since then."""
    released = 0
    for key in ws.fact("held_by", worker_id):
        task = ws.get(Task, key)
        if key in known or not _holds(ws, worker_id, key):
            continue
        if since is not None and ws.get(Attempt, (task.id, task.attempts)).leased_at > since:
            continue
        job = ws.get(Job, task.job_id)
        if not answer_lost(ws, task):
            give_back(ws, job, task, "requeued", reason, "system")
        released += 1
    return released


def _holds(ws: WorkingSet, worker_id: str, task_id: str) -> bool:
    task = ws.get(Task, task_id)
    return task.token_hash is not None and task.worker_id == worker_id


def kinds_of(worker: Worker) -> tuple[str, ...]:
    """Return what a worker may take: what it offers, as far as it is assigned."""
    offered: list[str] = msgspec.json.decode(worker.offered)
    if worker.assigned is None:
        return tuple(offered)
    assigned = set(msgspec.json.decode(worker.assigned))
    return tuple(kind for kind in offered if kind in assigned)


def _lease(ws: WorkingSet, command: Claim, task: Task, token: str) -> Leased | None:
    job = ws.get(Job, task.job_id)
    stage = ws.get(Stage, task.stage_id)
    if not task.ready or not offers(job, stage):
        return None
    if task.ready_at is not None and task.ready_at > ws.at(job):  # the clock was set back after the wait was over
        job = replace(job, updated_at=task.ready_at)
        ws.put(job)
    now = ws.at(job)
    lasting = command.lease_seconds or task.lease_seconds
    expires = ws.now + lasting * SECOND
    resumed = _resumed(ws, task.id, task.attempts)
    token = _of_lease(token, task.id, task.attempts + 1)
    rated = task.queue if ws.fact("rated", task.queue) else None
    attempt = Attempt(
        task.id, task.attempts + 1, job.id, job.run, job.tenant, command.worker_id, hashed(token), now, rated,
        provider=resumed.provider if resumed else None, ref=resumed.ref if resumed else None,
    )  # fmt: skip
    ws.put(attempt)
    task = move_task(
        ws, job, task, "lease", "worker", {}, ready=0, ready_at=None, due_at=expires, lease_expires_at=expires,
        token_hash=attempt.token_hash, worker_id=command.worker_id, attempts=attempt.no, called=0, progress=0,
        message=None, attempts_charged=task.attempts_charged + 1, started_at=task.started_at or now,
    )  # fmt: skip
    if stage.status == "pending":
        move_stage(ws, job, ws.get(Stage, stage.id), "start", "worker", started_at=stage.started_at or now)
    if job.status == "queued":
        move_job(ws, job, "start", "worker", {}, started_at=now)
    return _leased(ws, job, stage, task, token, lasting, resumed)


def _resumed(ws: WorkingSet, task_id: str, no: int) -> Resumed | None:
    """Return what a try before left at somebody else's machine, if it was cut short."""
    last = ws.find(Attempt, (task_id, no)) if no else None
    if last is None or last.ref is None or last.provider is None:
        return None
    if last.outcome not in {"lost", "requeued"} and not last.resume:
        return None
    return Resumed(last.provider, last.ref)


def _leased(
    ws: WorkingSet, job: Job, stage: Stage, task: Task, token: str, lasting: int, resumed: Resumed | None
) -> Leased:
    body = ws.find(Document, (task.id, "input")) or ws.find(Document, (job.id, "input"))
    return Leased(
        Lease(job.id, task.id, task.attempts, token), job.tenant, job.workflow, task.kind, stage.name, stage.no,
        task.no, lasting, body.body if body else "null", task.trace or stage.trace or job.trace, job.workflow_version,
        resumed,
    )  # fmt: skip


def _of_lease(token: str, task_id: str, attempt: int) -> str:
    """Return the token of one lease: a claim that is tried again may lease something else, and no two have the same."""
    return f"{token}.{task_id}.{attempt}"


def _claimed_before(ws: WorkingSet, command: Claim) -> list[Leased]:
    """Find what this very claim had leased before its answer was lost."""
    mine = [task for key in ws.fact("held_by", command.worker_id) if (task := ws.get(Task, key)).token_hash]
    pairs = ((task, _of_lease(token, task.id, task.attempts)) for token in command.tokens for task in mine)
    return [
        _leased(
            ws,
            ws.get(Job, t.job_id),
            ws.get(Stage, t.stage_id),
            t,
            token,
            command.lease_seconds or t.lease_seconds,
            _resumed(ws, t.id, t.attempts - 1),
        )
        for t, token in pairs
        if t.token_hash == hashed(token)
    ]
