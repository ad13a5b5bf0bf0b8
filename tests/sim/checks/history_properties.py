"""Properties of a whole history, checked at its end against the recorded operations."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from callsheet.core.decisions.job_actions import retry_dedup_key
from callsheet.core.decisions.operator import dedup_key_of as entry_idem_of
from callsheet.core.decisions.submit import dedup_key_of
from callsheet.core.model import commands as c
from callsheet.core.model.errors import Conflict
from callsheet.core.model.state_machines import JOB
from callsheet.core.working_set import encode
from tests.sim.checks.history import Op, digest_of
from tests.sim.checks.inspector import Inspector

Property = Callable[[Sequence[Op], Inspector], Iterator[str]]


def _of_type(ops: Sequence[Op], *kinds: type[c.Command]) -> Iterator[Op]:
    return (op for op in ops if isinstance(op.command, kinds))


def check_submits(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """H1: an accepted submit is stored. H4, H5: a refused or repeated one created no job."""
    jobs = dict(inspector.rows("SELECT id, tenant FROM job"))
    created = {command for (command,) in inspector.rows("SELECT command_id FROM run WHERE no = 1")}
    for op in _of_type(ops, c.Submit):
        if op.succeeded and jobs.get(op.answer.job_id) != op.command.tenant:
            yield f"H1 submit {op.command.id} was answered with {op.answer.job_id}, which is not stored"
        if op.succeeded and not op.answer.replay and op.answer.job_id != op.command.id:
            yield f"H1 submit {op.command.id} was answered with the job {op.answer.job_id} of another submit"
        if (op.refused or (op.succeeded and op.answer.replay)) and (op.command.id in jobs or op.command.id in created):
            yield f"H5 submit {op.command.id} was answered {op.answer!r} and created a job"


def check_idempotency_keys(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """H2: one key has one job. H3: one key has one body; another body is refused."""
    jobs: dict[str, set[str]] = defaultdict(set)
    bodies: dict[str, set[str]] = defaultdict(set)
    for op in _of_type(ops, c.Submit):
        if (name := dedup_key_of(op.command)) and op.succeeded and op.answer.status != "blocked":
            jobs[name].add(op.answer.job_id)
            bodies[name].add(_body(op.command))
    for name, found in jobs.items():
        if len(found) > 1:
            yield f"H2 key {name} created the jobs {sorted(found)}"
        if len(bodies[name]) > 1:
            yield f"H3 key {name} was accepted for the bodies {sorted(bodies[name])}"
    for op in _of_type(ops, c.Submit):
        name = dedup_key_of(op.command)
        reused = isinstance(op.answer, Conflict) and op.answer.code == "idempotency_key_reused"
        if (
            name
            and reused
            and bodies[name] == {_body(op.command)}
            and not _made_by_unanswered_submit(ops, op, inspector)
        ):
            yield f"H3 key {name} was refused for its own body"


def _body(command: c.Submit) -> str:
    parts = (command.workflow, command.input, command.priority, command.start_in_seconds, command.deadline_seconds)
    return encode((*parts, command.stages))


def _made_by_unanswered_submit(ops: Sequence[Op], op: Op, inspector: Inspector) -> bool:
    """Return whether the job of a key was created by a submit that was not answered."""
    creator_id = inspector.one("SELECT id FROM job WHERE dedup_key = ?", dedup_key_of(op.command))
    created = [other for other in _of_type(ops, c.Submit) if other.command.id == creator_id]
    return not created or _body(created[0].command) != _body(op.command)


def check_reports(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """H7, H8, L5: an accepted report is stored with its own attempt; one output is accepted per task."""
    rows = inspector.rows("SELECT task_id, no, outcome, digest FROM attempt")
    attempts = {(task, no): (outcome, digest) for task, no, outcome, digest in rows}
    outcomes: dict[type[c.Command], str] = {c.Complete: "completed", c.Fail: "failed", c.Requeue: "requeued"}
    accepted: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for op in _of_type(ops, *outcomes):
        if not op.succeeded or op.answer.skipped is not None:
            continue
        if isinstance(op.command, c.Requeue) and op.answer.status == "running":
            continue  # the provider may have the work: the call is looked up instead of requeued
        lease = op.command.lease
        outcome, digest = attempts.get((lease.task_id, lease.attempt), (None, None))
        if outcome != outcomes[type(op.command)]:
            yield f"H7 {type(op.command).__name__} of {lease.task_id}/{lease.attempt} was accepted; it is {outcome}"
        if isinstance(op.command, c.Complete):
            accepted[lease.task_id].add((digest_of(op.command), lease.attempt))
            if digest != digest_of(op.command):
                yield f"H8 the accepted output of {lease.task_id}/{lease.attempt} is not the stored one"
    for task, results in accepted.items():
        if len(results) > 1:
            yield f"L5 task {task} has {len(results)} accepted outputs"
    for (task,) in inspector.rows(
        "SELECT task_id FROM attempt WHERE outcome = 'completed' GROUP BY 1 HAVING count(*) > 1"
    ):
        yield f"L5 task {task} was completed twice"


def check_created_rows(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """H18: an accepted retry, credit change, stage or task is stored once; a refused one is not stored."""
    runs = _count_by_key(inspector, "SELECT command_id, count(*) FROM run GROUP BY 1")
    stages = _count_by_key(inspector, "SELECT id, 1 FROM stage")
    entries = _count_by_key(inspector, "SELECT dedup_key, count(*) FROM entry WHERE dedup_key IS NOT NULL GROUP BY 1")
    keyed = _count_by_key(inspector, "SELECT dedup_key, count(*) FROM job WHERE dedup_key IS NOT NULL GROUP BY 1")
    for op in _of_type(ops, c.Retry):
        name = retry_dedup_key(op.command)
        if name is None:
            yield from _check_exists_once(op, runs.get(op.command.id, 0))
        elif op.succeeded:
            yield from _check_exists_once(op, (keyed if op.command.retry_as == "new_job" else runs).get(name, 0))
    yield from _check_repeated_retries(ops)
    for op in _of_type(ops, c.AddStage):
        yield from _check_exists_once(op, stages.get(op.command.id, 0))
    for op in _of_type(ops, c.TopUp, c.Adjust):
        if op.succeeded or not op.command.idempotency_key:
            yield from _check_exists_once(op, entries.get(entry_idem_of(op.command), 0))
    tasks = _count_by_key(inspector, "SELECT id, 1 FROM task")
    for op in _of_type(ops, c.AddTasks):
        if op.succeeded and any(key not in tasks for key in op.answer.task_ids):
            yield f"H1 tasks {op.answer.task_ids} were added and are not stored"


def _check_repeated_retries(ops: Sequence[Op]) -> Iterator[str]:
    """H2: a retry with the key of an accepted one is accepted too, unless the job was deleted."""
    accepted = set()
    for op in _of_type(ops, c.Retry):
        name = (retry_dedup_key(op.command), op.command.retry_as)
        if op.succeeded and name[0] is not None:
            accepted.add(name)
        elif op.refused and name in accepted and op.answer.code not in {"job_not_found", "job_deleted"}:
            yield f"H2 retry {name} was accepted, and then refused ({op.answer.code})"


def _count_by_key(inspector: Inspector, query: str) -> dict[str, int]:
    return {str(name): int(count) for name, count in inspector.rows(query)}


def _check_exists_once(op: Op, found: int) -> Iterator[str]:
    what = f"{type(op.command).__name__} {op.command.id}"
    if op.succeeded and found != 1:
        yield f"H18 {what} was accepted and is stored {found} times"
    if op.refused and found:
        yield f"H18 {what} was refused ({op.answer.code}) and is stored"
    if found > 1:
        yield f"H18 {what} is stored {found} times"


def check_callbacks(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """H12, P4: a callback takes effect once; of contradictory outcomes of a call the first one wins."""
    applied: set[str] = set()
    endings: dict[str, list[str]] = defaultdict(list)
    for op in _of_type(ops, c.Callback, c.ReportOutcome):
        if not op.succeeded:
            continue
        if isinstance(op.command, c.Callback):
            name = f"{op.command.provider}/{op.command.webhook_id}"
            if name in applied and not op.answer.replay:
                yield f"P4 callback {name} was applied twice"
            if not op.answer.replay:
                applied.add(name)
        if op.answer.skipped is None and op.command.outcome.status != "pending":
            endings[_call_of(op, inspector)].append(op.command.outcome.status)
    outcomes = dict(inspector.rows("SELECT id, outcome FROM call"))
    expected_outcomes = {"completed": "completed", "failed": "failed"}
    for call, statuses in endings.items():
        if len(statuses) > 1:
            yield f"H12 call {call} ended {len(statuses)} times: {statuses}"
        elif outcomes.get(call) != expected_outcomes.get(statuses[0], outcomes.get(call)):
            yield f"H12 the outcome of call {call} was {statuses[0]} and is stored as {outcomes.get(call)}"


def _call_of(op: Op, inspector: Inspector) -> str:
    command = op.command
    known = inspector.one("SELECT id FROM call WHERE id = ?", command.call_id or "")
    return str(
        known or inspector.one("SELECT id FROM call WHERE provider = ? AND ref = ?", command.provider, command.ref)
    )


def check_tenant_isolation(ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """H23: no tenant changes a job of another tenant."""
    tenants = dict(inspector.rows("SELECT id, tenant FROM job"))
    for op in ops:
        if (
            isinstance(op.command, c.JobCommand)
            and op.succeeded
            and tenants.get(op.command.job_id) != op.command.tenant
        ):
            yield f"H23 {op.command.tenant} did {type(op.command).__name__} to job {op.command.job_id}"


def check_job_events(_ops: Sequence[Op], inspector: Inspector) -> Iterator[str]:
    """J1-J6, J12, H16, H17, G1: the events of each job, in order, are a legal sequence."""
    stage_of = {task: (stage, no) for task, stage, no in inspector.rows(
        "SELECT t.id, s.id, s.no FROM task t JOIN stage s ON s.id = t.stage_id")}  # fmt: skip
    stage_ids: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for job, no, stage in inspector.rows("SELECT job_id, no, id FROM stage ORDER BY job_id, no"):
        stage_ids[job].append((no, stage))
    job_events: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in inspector.rows(
        "SELECT subject, seq, type, entity_id, source, target, at FROM event ORDER BY subject, seq"
    ):
        job_events[row[0]].append(row[1:])
    for job, status, seq in inspector.rows("SELECT id, status, seq FROM job"):
        yield from JobEventCheck(job, stage_of, stage_ids[job]).read(job_events[job], status, seq)


class JobEventCheck:
    """Checks the events of one job in order."""

    def __init__(self, job: str, stage_of: dict[str, tuple[str, int]], stages: list[tuple[int, str]]) -> None:
        self._job = job
        self._stage_of = stage_of
        self._stages = stages
        self._status: str | None = None
        self._stopping = False
        self._completed: set[str] = set()

    def read(self, events: list[tuple[Any, ...]], status: str, seq: int) -> Iterator[str]:
        numbers = [event[0] for event in events]
        if numbers != list(range(1, seq + 1)):
            yield f"J3 the events of {self._job} are numbered {numbers}, the job is at {seq}"
        times = [event[5] for event in events]
        if times != sorted(times):
            yield f"J4 time goes back in the events of {self._job}"
        for _, type_, entity, source, target, _ in events:
            noun = type_.partition(".")[0]
            if noun == "job":
                yield from self._job_event(type_, source, target)
            elif noun == "stage" and type_ == "stage.completed":
                self._completed.add(entity)
            elif type_ in {"task.leased", "task.progressed"}:
                yield from self._task_event(type_, entity)
        if self._status != status:
            yield f"J5 {self._job} is {status} and its events end with {self._status}"

    def _job_event(self, type_: str, source: str | None, target: str | None) -> Iterator[str]:
        if type_ == "job.cancel_requested":
            self._stopping = True
        if target is None:
            return
        if source != self._status:
            yield f"J2 {self._job} went from {source} to {target} when it was {self._status}"
        if self._status in JOB.terminal and type_ != "job.retried":
            yield f"J6 {self._job} left {self._status} by {type_}"
        if type_ == "job.retried":
            self._stopping = False
        self._status = target

    def _task_event(self, type_: str, task: str) -> Iterator[str]:
        if self._status in JOB.terminal:
            yield f"J12 {type_} of {self._job} after it was {self._status}"
        if type_ != "task.leased":
            return
        if self._status not in {"queued", "running"} or self._stopping:
            yield f"H16 a task of {self._job} was leased while it was {self._status}, {self._stopping=}"
        no = self._stage_of[task][1]
        if early := [n for n, stage in self._stages if n < no and stage not in self._completed]:
            yield f"G1 a task of stage {no} of {self._job} was leased before stages {early} were completed"


PROPERTIES: tuple[Property, ...] = (
    check_submits,
    check_idempotency_keys,
    check_reports,
    check_created_rows,
    check_callbacks,
    check_tenant_isolation,
    check_job_events,
)
