"""What must be true of a whole life: the history properties, judged from the recorded operations at its end."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from callsheet.core import commands as c
from callsheet.core.errors import Conflict
from callsheet.core.life import retry_idem
from callsheet.core.machine import JOB
from callsheet.core.setup import idem_of as posted_as
from callsheet.core.submit import idem_of
from callsheet.core.working import encode
from tests.sim.history import Op, digest_of
from tests.sim.peek import Peek

Property = Callable[[Sequence[Op], Peek], Iterator[str]]


def _of(ops: Sequence[Op], *kinds: type[c.Command]) -> Iterator[Op]:
    return (op for op in ops if isinstance(op.command, kinds))


def submits(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """H1: what was accepted is there. H5: what was refused is not. H4: nothing was made twice."""
    jobs = dict(peek.rows("SELECT id, tenant FROM job"))
    made = {command for (command,) in peek.rows("SELECT command_id FROM run WHERE no = 1")}
    for op in _of(ops, c.Submit):
        if op.done and jobs.get(op.answer.job_id) != op.command.tenant:
            yield f"H1 submit {op.command.id} was answered with {op.answer.job_id}, which is not there"
        if op.done and not op.answer.replay and op.answer.job_id != op.command.id:
            yield f"H1 submit {op.command.id} was answered with another's job {op.answer.job_id}"
        if (op.refused or (op.done and op.answer.replay)) and (op.command.id in jobs or op.command.id in made):
            yield f"H5 submit {op.command.id} was answered {op.answer!r} and made a job all the same"


def keys(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """H2: one key, one job. H3: one key, one body; another is a conflict."""
    jobs: dict[str, set[str]] = defaultdict(set)
    bodies: dict[str, set[str]] = defaultdict(set)
    for op in _of(ops, c.Submit):
        if (name := idem_of(op.command)) and op.done and op.answer.status != "blocked":
            jobs[name].add(op.answer.job_id)
            bodies[name].add(_body(op.command))
    for name, found in jobs.items():
        if len(found) > 1:
            yield f"H2 key {name} gave the jobs {sorted(found)}"
        if len(bodies[name]) > 1:
            yield f"H3 key {name} was taken for the bodies {sorted(bodies[name])}"
    for op in _of(ops, c.Submit):
        name = idem_of(op.command)
        reused = isinstance(op.answer, Conflict) and op.answer.code == "idempotency_key_reused"
        if name and reused and bodies[name] == {_body(op.command)} and not _other_body(ops, op, peek):
            yield f"H3 key {name} was refused for its own body"


def _body(command: c.Submit) -> str:
    parts = (command.workflow, command.input, command.priority, command.start_in_seconds, command.deadline_seconds)
    return encode((*parts, command.stages))


def _other_body(ops: Sequence[Op], op: Op, peek: Peek) -> bool:
    """Say whether the job behind a key was made by a submit that nobody was answered about."""
    maker = peek.one("SELECT id FROM job WHERE idem = ?", idem_of(op.command))
    made = [other for other in _of(ops, c.Submit) if other.command.id == maker]
    return not made or _body(made[0].command) != _body(op.command)


def reports(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """H7, L5: a report that was taken stands under its own lease; one result is accepted per task."""
    rows = peek.rows("SELECT task_id, no, outcome, digest FROM attempt")
    attempts = {(task, no): (outcome, digest) for task, no, outcome, digest in rows}
    outcomes: dict[type[c.Command], str] = {c.Complete: "completed", c.Fail: "failed", c.Requeue: "requeued"}
    accepted: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for op in _of(ops, *outcomes):
        if not op.done or op.answer.skipped is not None:
            continue
        if isinstance(op.command, c.Requeue) and op.answer.status == "running":
            continue  # the provider may have the work: the call is looked up instead of given back
        lease = op.command.lease
        outcome, digest = attempts.get((lease.task_id, lease.attempt), (None, None))
        if outcome != outcomes[type(op.command)]:
            yield f"H7 {type(op.command).__name__} of {lease.task_id}/{lease.attempt} was taken; it is {outcome}"
        if isinstance(op.command, c.Complete):
            accepted[lease.task_id].add((digest_of(op.command), lease.attempt))
            if digest != digest_of(op.command):
                yield f"H8 the result of {lease.task_id}/{lease.attempt} was taken and is not what is stored"
    for task, results in accepted.items():
        if len(results) > 1:
            yield f"L5 task {task} has {len(results)} accepted results"
    for (task,) in peek.rows("SELECT task_id FROM attempt WHERE outcome = 'completed' GROUP BY 1 HAVING count(*) > 1"):
        yield f"L5 task {task} was completed twice"


def makers(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """H18: a retry, a movement of credits, a stage, a task that was accepted is there once; a refused one is not."""
    runs = _counted(peek, "SELECT command_id, count(*) FROM run GROUP BY 1")
    stages = _counted(peek, "SELECT id, 1 FROM stage")
    entries = _counted(peek, "SELECT idem, count(*) FROM entry WHERE idem IS NOT NULL GROUP BY 1")
    keyed = _counted(peek, "SELECT idem, count(*) FROM job WHERE idem IS NOT NULL GROUP BY 1")
    for op in _of(ops, c.Retry):
        name = retry_idem(op.command)
        if name is None:
            yield from _once(op, runs.get(op.command.id, 0))
        elif op.done:
            yield from _once(op, (keyed if op.command.retry_as == "new_job" else runs).get(name, 0))
    for op in _of(ops, c.AddStage):
        yield from _once(op, stages.get(op.command.id, 0))
    for op in _of(ops, c.TopUp, c.Adjust):
        if op.done or not op.command.idempotency_key:
            yield from _once(op, entries.get(posted_as(op.command), 0))
    tasks = _counted(peek, "SELECT id, 1 FROM task")
    for op in _of(ops, c.AddTasks):
        if op.done and any(key not in tasks for key in op.answer.task_ids):
            yield f"H1 tasks {op.answer.task_ids} were added and are not there"


def _counted(peek: Peek, query: str) -> dict[str, int]:
    return {str(name): int(count) for name, count in peek.rows(query)}


def _once(op: Op, found: int) -> Iterator[str]:
    what = f"{type(op.command).__name__} {op.command.id}"
    if op.done and found != 1:
        yield f"H18 {what} was accepted and is there {found} times"
    if op.refused and found:
        yield f"H18 {what} was refused ({op.answer.code}) and is there all the same"
    if found > 1:
        yield f"H18 {what} is there {found} times"


def letters(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """H12, P4: a callback takes effect once; of contradictory endings of a call the first one stands."""
    taken: set[str] = set()
    endings: dict[str, list[str]] = defaultdict(list)
    for op in _of(ops, c.Callback, c.Collected):
        if not op.done:
            continue
        if isinstance(op.command, c.Callback):
            name = f"{op.command.provider}/{op.command.webhook_id}"
            if name in taken and not op.answer.replay:
                yield f"P4 callback {name} was taken twice"
            if not op.answer.replay:
                taken.add(name)
        if op.answer.skipped is None and op.command.outcome.status != "pending":
            endings[_call_of(op, peek)].append(op.command.outcome.status)
    outcomes = dict(peek.rows("SELECT id, outcome FROM call"))
    words = {"completed": "completed", "failed": "failed"}
    for call, said in endings.items():
        if len(said) > 1:
            yield f"H12 call {call} ended {len(said)} times: {said}"
        elif outcomes.get(call) != words.get(said[0], outcomes.get(call)):
            yield f"H12 call {call} was told {said[0]} and is {outcomes.get(call)}"


def _call_of(op: Op, peek: Peek) -> str:
    command = op.command
    known = peek.one("SELECT id FROM call WHERE id = ?", command.call_id or "")
    return str(known or peek.one("SELECT id FROM call WHERE provider = ? AND ref = ?", command.provider, command.ref))


def fenced_tenants(ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """H23: nobody does anything to another tenant's job."""
    tenants = dict(peek.rows("SELECT id, tenant FROM job"))
    for op in ops:
        if isinstance(op.command, c.JobCommand) and op.done and tenants.get(op.command.job_id) != op.command.tenant:
            yield f"H23 {op.command.tenant} did {type(op.command).__name__} to job {op.command.job_id}"


def stories(_ops: Sequence[Op], peek: Peek) -> Iterator[str]:
    """J1 to J6, H16, H17, G1: each job's events, read in order, tell a legal life."""
    stage_of = {task: (stage, no) for task, stage, no in peek.rows(
        "SELECT t.id, s.id, s.no FROM task t JOIN stage s ON s.id = t.stage_id")}  # fmt: skip
    stage_ids: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for job, no, stage in peek.rows("SELECT job_id, no, id FROM stage ORDER BY job_id, no"):
        stage_ids[job].append((no, stage))
    stories: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in peek.rows("SELECT subject, seq, type, entity_id, source, target, at FROM event ORDER BY subject, seq"):
        stories[row[0]].append(row[1:])
    for job, status, seq in peek.rows("SELECT id, status, seq FROM job"):
        yield from Story(job, stage_of, stage_ids[job]).read(stories[job], status, seq)


class Story:
    """One job's life as its events tell it."""

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


PROPERTIES: tuple[Property, ...] = (submits, keys, reports, makers, letters, fenced_tenants, stories)
