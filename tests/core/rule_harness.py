"""A world in dictionaries: the store of the core's tests, as strict about rows as the databases are.

Commands run as the engine runs them: decided against a working set, asked again when something is missing, written
at the end of the batch. What is loaded in the middle of a batch comes from the store, as it does in the engine, so
a rule that forgets what its own batch did is found out here. After every batch the books are checked.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.errors import Refusal
from callsheet.core.model.ids import uuid7
from callsheet.core.model.rows import (
    ROWS,
    ApiKey,
    Call,
    Event,
    File,
    Inbox,
    Job,
    JobFile,
    LedgerEntry,
    Queue,
    Row,
    Stage,
    Task,
    Wallet,
    Worker,
    Workflow,
    WorkflowFile,
)
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition, parse_definition, validator
from callsheet.core.policy.fair_order import QueueTail
from callsheet.core.policy.limits import Limits
from callsheet.core.registry import COMMANDS
from callsheet.core.working_set import Key, NotLoaded, WorkingSet
from tests.core import invariants
from tests.core.invariants import key_of

R = TypeVar("R", bound=Row)
ROUNDS_MAX = 64
START = 1_700_000_000 * SECOND
DRAW = WorkflowDefinition(name="draw", price=10, stages=[StageSpec(name="draw", kind="draw")])
_BY_TABLE = {row.TABLE: row for row in ROWS if row is not LedgerEntry}
_WORKFLOW_WANTS = ("current_definition", "current_version", "validator")


class CoreHarness:
    """Everything that is stored, and the time."""

    def __init__(
        self, *definitions: WorkflowDefinition, initial_credits: int = 1_000, limits: Limits | None = None
    ) -> None:
        self.now = START
        self.limits = limits or Limits()
        self.rows: dict[type[Row], dict[Key, Row]] = {row: {} for row in ROWS}
        self.purged_job_ids: list[str] = []
        self._id_count = 0
        self.do(c.PutTenant(tenant="acme"))
        for definition in definitions:
            self.do(c.PutWorkflow(definition=definition))
        if initial_credits:
            self.do(c.TopUp(tenant="acme", user="ann", amount=initial_credits, idempotency_key="first"))

    # -- commands

    def new_id(self) -> str:
        self._id_count += 1
        return uuid7(self.now // 1_000, self._id_count * 0x9E3779B97F4A7C15 % 2**74)

    def batch(self, *many: c.Command, retrying: bool = False) -> list[Any]:
        """Decide commands in one batch; each result is an answer or the exception it would have raised."""
        ws = WorkingSet(self.now, self.limits, retrying=retrying)
        prepared = [self._prepare(command) for command in many]
        demand = sum(command.count for command in prepared if isinstance(command, c.Claim))
        loader = _Loader(self, ws, demand)
        self._prefetch(loader, ws, prepared)
        results: list[Any] = [None] * len(prepared)
        waiting = list(range(len(prepared)))
        for _ in range(ROUNDS_MAX):
            rest: list[int] = []
            missing: list[NotLoaded] = []
            for place in waiting:
                command = prepared[place]
                ws.begin()
                try:
                    results[place] = COMMANDS[type(command)].decide(ws, command)
                except NotLoaded as miss:
                    ws.undo()
                    rest.append(place)
                    missing.append(miss)
                except Refusal as refusal:
                    ws.undo()
                    results[place] = refusal
            for want in missing:
                loader.load(want.want, want.key)
            if not rest:
                self._store(ws)
                return results
            waiting = rest
        raise AssertionError(f"decisions of {many} still miss something after {ROUNDS_MAX} rounds")

    def do(self, command: c.Command) -> Any:
        """Decide one command."""
        result = self.batch(command)[0]
        if isinstance(result, Exception):
            raise result
        return result

    def expect_refusal(self, command: c.Command) -> Refusal:
        """Decide a command that must be refused, and see that nothing changed."""
        before = self.snapshot()
        result = self.batch(command)[0]
        assert isinstance(result, Refusal), f"{command} was not refused: {result}"
        assert self.snapshot() == before
        return result

    def snapshot(self) -> dict[type[Row], dict[Key, Row]]:
        return {row: dict(found) for row, found in self.rows.items()}

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def tick(self) -> None:
        """Let the clock look at everything whose moment has come, as the sweeper does."""
        for job in list(self.all(Job)):
            if job.due_at is not None and job.due_at <= self.now:
                self.do(c.TickJob(job_id=job.id))
        for task in list(self.all(Task)):
            if task.due_at is not None and task.due_at <= self.now:
                self.do(c.TickTask(job_id=task.job_id, task_id=task.id))

    # -- short ways

    def submit(self, workflow: str = "draw", **more: Any) -> str:
        answer: c.SubmitResult = self.do(c.Submit(**{"tenant": "acme", "user": "ann", "workflow": workflow, **more}))
        return answer.job_id

    def claim(self, count: int = 1, kinds: tuple[str, ...] = ("draw",), worker: str = "w1") -> list[c.LeasedTask]:
        leased: list[c.LeasedTask] = self.do(c.Claim(worker_id=worker, kinds=kinds, count=count))
        return leased

    def lease(self, **more: Any) -> c.Lease:
        [leased] = self.claim(**more)
        return leased.lease

    def started(self, workflow: str = "draw", **more: Any) -> tuple[str, c.Lease]:
        job_id = self.submit(workflow, **more)
        return job_id, self.lease()

    # -- looking

    def all(self, row: type[R]) -> Iterable[R]:
        return self.rows[row].values()  # type: ignore[return-value]

    def get(self, row: type[R], key: Key) -> R:
        return self.rows[row][key]  # type: ignore[return-value]

    def job(self, job_id: str) -> Job:
        return self.get(Job, job_id)

    def stages(self, job_id: str) -> list[Stage]:
        return sorted((s for s in self.all(Stage) if s.job_id == job_id), key=lambda s: s.no)

    def tasks(self, job_id: str) -> list[Task]:
        order = {stage.id: stage.no for stage in self.stages(job_id)}
        return sorted((t for t in self.all(Task) if t.job_id == job_id), key=lambda t: (order[t.stage_id], t.no))

    def events(self, job_id: str) -> list[Event]:
        return sorted((e for e in self.all(Event) if e.subject == job_id), key=lambda e: e.seq)

    def event_types(self, job_id: str) -> list[str]:
        return [event.type for event in self.events(job_id)]

    def wallet(self, user: str = "ann") -> Wallet:
        return self.get(Wallet, f"acme/{user}")

    def ledger(self, job_id: str) -> list[tuple[str, int, int]]:
        return [(e.kind, e.amount, e.consumed) for e in self.all(LedgerEntry) if e.job_id == job_id]

    # -- inside

    def _prepare(self, command: c.Command) -> c.Command:
        if isinstance(command, c.Claim) and not command.tokens:
            tokens = tuple(f"token-{self.new_id()}" for _ in range(max(command.count, 1)))
            command = msgspec.structs.replace(command, tokens=tokens)
        return command if command.id else msgspec.structs.replace(command, id=self.new_id())

    def _prefetch(self, loader: "_Loader", ws: WorkingSet, prepared: list[c.Command]) -> None:
        key_sets: dict[str, set[Key]] = defaultdict(set)
        for command in prepared:
            COMMANDS[type(command)].key_sets(command, key_sets)
        loader.load_all(key_sets)
        key_sets.clear()
        for command in prepared:
            if dependents := COMMANDS[type(command)].dependents:
                dependents(ws, command, key_sets)
        loader.load_all(key_sets)

    def _store(self, ws: WorkingSet) -> None:
        for row, new, changed in ws.writes():
            table = self.rows[row]
            for made in new:
                assert key_of(made) not in table, f"{row.TABLE} {key_of(made)} is there already"
                table[key_of(made)] = made
            for after in changed:
                before = table[key_of(after)]
                assert row.FIXED_COLUMNS, f"{row.TABLE} is append-only"
                fixed = row.__struct_fields__[: row.FIXED_COLUMNS]
                assert all(getattr(before, f) == getattr(after, f) for f in fixed), f"{row.TABLE} changed in {fixed}"
                invariants.assert_evidence_unchanged(before, after)
                table[key_of(after)] = after
        self.purged_job_ids += ws.purged_job_ids
        invariants.assert_invariants(self.rows)


class _Loader:
    """Loads what a decision misses, from the stored rows only."""

    def __init__(self, harness: CoreHarness, ws: WorkingSet, demand: int) -> None:
        self.harness = harness
        self.ws = ws
        self.demand = demand

    def load_all(self, key_sets: dict[str, set[Key]]) -> None:
        """Load what a decision is known to need. Locks and other such wants mean nothing here."""
        for want, keys in key_sets.items():
            if want not in _BY_TABLE and want not in _WORKFLOW_WANTS and not hasattr(self, f"_{want}"):
                continue
            for key in keys:
                self.load(want, key)

    def load(self, want: str, key: Any) -> None:
        if row := _BY_TABLE.get(want):
            found = self.harness.rows[row].get(key)
            self.ws.load(row, [found] if found else [], [key])
        elif want in _WORKFLOW_WANTS:
            self._workflow(key)
        elif (want, key) not in self.ws.facts:
            self.ws.facts[want, key] = getattr(self, f"_{want}")(key)

    def _group(self, row: type[R], keep: Any) -> list[str]:
        found = sorted((r for r in self.harness.all(row) if keep(r)), key=lambda r: getattr(r, "no", 0))
        self.ws.load(row, found)
        return [r.id for r in found]  # type: ignore[attr-defined]

    def _workflow(self, name: str) -> None:
        row = next((w for w in self.harness.all(Workflow) if w.name == name and w.current), None)
        definition = parse_definition(row.spec) if row else None
        if row:
            self.ws.load(Workflow, [row])
        self.ws.facts["current_definition", name] = definition
        self.ws.facts["current_version", name] = row.version if row else 0
        self.ws.facts["validator", name] = validator(definition) if definition else None

    def _definition(self, key: Key) -> WorkflowDefinition | None:
        row = self.harness.rows[Workflow].get(key)
        return parse_definition(row.spec) if isinstance(row, Workflow) else None

    def _holds(self, key: str) -> tuple[str, ...]:
        return tuple(t.id for t in self.harness.all(Task) if t.worker_id == key and t.token_hash is not None)

    def _fleet(self, _key: str) -> int:
        return sum(w.status in {"pending", "approved"} for w in self.harness.all(Worker))

    def _dedup_key(self, key: str) -> Job | None:
        return next((job for job in self.harness.all(Job) if job.dedup_key == key), None)

    def _entry(self, key: str) -> int | None:
        return next((e.amount for e in self.harness.all(LedgerEntry) if e.dedup_key == key), None)

    def _queues(self, key: str) -> int:
        return sum(queue.workflow == key for queue in self.harness.all(Queue))

    def _active(self, key: str) -> int:
        return sum(1 for j in self.harness.all(Job) if j.wallet_id == key and j.finished_at is None)

    def _key_of(self, key: str) -> str | None:
        found = next((k for k in self.harness.all(ApiKey) if k.secret_hash == key), None)
        self.ws.load(ApiKey, [found] if found else [])
        return found.id if found else None

    def _uploading(self, key: tuple[str, str]) -> int:
        files = self.harness.all(File)
        return sum(1 for f in files if (f.tenant, f.user_id) == key and f.job_id is None and f.status == "uploading")

    def _used(self, key: str) -> tuple[Key, ...]:
        return tuple(JobFile.key_of(use) for use in self.harness.all(JobFile) if use.job_id == key)

    def _files_of(self, key: str) -> tuple[str, ...]:
        return tuple(file.id for file in self.harness.all(File) if file.job_id == key)

    def _needed_by_others(self, key: str) -> str | None:
        maker = self.harness.get(File, key).job_id
        others = {use.job_id for use in self.harness.all(JobFile) if use.file_id == key} - {maker}
        return self._named(key) or self._of_open(others)

    def _needed(self, key: str) -> str | None:
        jobs = {u.job_id for u in self.harness.all(JobFile) if u.file_id == key}
        jobs |= {f.job_id for f in self.harness.all(File) if f.id == key and f.job_id is not None}
        return self._named(key) or self._of_open(jobs)

    def _of_open(self, jobs: Iterable[str]) -> str | None:
        return "" if any(self.harness.job(job_id).finished_at is None for job_id in jobs) else None

    def _named(self, key: str) -> str | None:
        """Return a workflow whose current version names a file, or one that open jobs are of."""
        of_jobs = {(job.workflow, job.workflow_version) for job in self.harness.all(Job) if job.finished_at is None}
        for use in self.harness.all(WorkflowFile):
            version = self.harness.get(Workflow, (use.workflow, use.version))
            if use.file_id == key and (version.current or (use.workflow, use.version) in of_jobs):
                return use.workflow
        return None

    def _tail(self, key: tuple[str, int, str]) -> QueueTail:
        queue, priority, tenant = key
        ready = [t for t in self.harness.all(Task) if t.ready and (t.queue, t.priority) == (queue, priority)]
        mine = [t.rank for t in ready if t.tenant == tenant]
        return QueueTail(min((t.rank for t in ready), default=None), max(mine, default=None))

    def _stages(self, key: str) -> list[str]:
        return self._group(Stage, lambda s: s.job_id == key)

    def _tasks(self, key: str) -> list[str]:
        return self._group(Task, lambda t: t.stage_id == key)

    def _open_tasks(self, key: str) -> list[str]:
        return self._group(Task, lambda t: t.stage_id == key and t.finished_at is None)

    def _tasks_of_workers(self, key: str) -> list[str]:
        return self._group(Task, lambda t: t.worker_id == key and t.status == "running")

    def _held_callbacks(self, key: str) -> list[str]:
        return self._group(Inbox, lambda i: i.ref == key and i.status == "held")

    def _call_link(self, key: str) -> str | None:
        return next((call.job_id for call in self.harness.all(Call) if call.id == key), None)

    def _call_by_ref(self, key: tuple[str, str]) -> str | None:
        return next((call.id for call in self.harness.all(Call) if (call.provider, call.ref) == key), None)

    def _offer(self, kinds: tuple[str, ...]) -> tuple[str, ...]:
        ready = [t for t in self.harness.all(Task) if t.ready and t.kind in kinds]
        ready.sort(key=lambda t: (-t.priority, t.rank, t.id))
        self.ws.facts["place", kinds] = 0
        offered = ready[: self.demand]
        self.ws.facts |= {("rated", task.queue): False for task in offered}
        self.ws.load(Task, offered)
        for task in offered:
            job = self.harness.job(task.job_id)
            self.load_all({"job": {job.id}, "stage": {task.stage_id}, "run": {(job.id, job.run)}})
            self.load_all({"document": {(task.id, "input"), (job.id, "input")}})
        return tuple(t.id for t in offered)
