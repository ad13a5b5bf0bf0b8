"""An in-memory store for the tests of the core. It is as strict about rows as the databases are.

Commands run as in the engine: a command is decided against a working set, decided again if a row was not loaded, and
its changes are stored at the end of the batch. Rows that are loaded in the middle of a batch come from the store. So a
test fails if a decision forgets what its own batch changed. The invariants are checked after every batch.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import msgspec

from callsheet.comfyui.graph_rules_implementation import COMFYUI_GRAPH_RULES
from callsheet.core import prefetched_facts as facts
from callsheet.core.command_registry import COMMANDS
from callsheet.core.decisions.audit import chain_lines, chain_needs
from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.errors import Refusal
from callsheet.core.model.ids import uuid7
from callsheet.core.model.rows import (
    ROWS,
    ApiKey,
    Call,
    Document,
    Event,
    File,
    Inbox,
    Job,
    JobFile,
    LedgerEntry,
    Queue,
    Row,
    Run,
    Stage,
    Task,
    Wallet,
    Worker,
    Workflow,
    WorkflowFile,
)
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition, parse_definition
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.fair_order import settle_turns, withdrawn_counts
from callsheet.core.policy.input_schema.validator import compile_input_schema
from callsheet.core.prefetched_facts import Fact, Key, Need, Needs
from callsheet.core.working_set import NotLoaded, WorkingSet
from tests.core import invariants, waiting_tasks
from tests.core.invariants import key_of
from tests.support.engine.time_stamps import find_backdated

R = TypeVar("R", bound=Row)
ROUNDS_MAX = 64
START = 1_700_000_000 * SECOND
DRAW = WorkflowDefinition(name="draw", price=10, stages=[StageSpec(name="draw", kind="draw")])


class CoreHarness:
    """The stored rows and the current time."""

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
        """Decide commands in one batch; each result is an answer or the refusal."""
        ws = WorkingSet(self.now, self.limits, graph_rules=COMFYUI_GRAPH_RULES, retrying=retrying)
        prepared = [self._prepare(command) for command in many]
        demand = sum(command.count for command in prepared if isinstance(command, c.Claim))
        loader = _Loader(self, ws, demand)
        self._prefetch(loader, ws, prepared)
        results: list[Any] = [None] * len(prepared)
        waiting = list(range(len(prepared)))
        for _ in range(ROUNDS_MAX):
            rest, missing = list[int](), list[NotLoaded]()
            for index in waiting:
                command = prepared[index]
                ws.begin()
                try:
                    results[index] = COMMANDS[type(command)].decide(ws, command)
                except NotLoaded as miss:
                    ws.undo()
                    rest.append(index)
                    missing.append(miss)
                except Refusal as refusal:
                    ws.undo()
                    results[index] = refusal
            for want in missing:
                loader.load(want.need, want.key)
            if not rest:
                loader.settle_turns()
                assert list(find_backdated(ws)) == []
                loader.load_all(chain_needs(ws))
                chain_lines(ws)
                self._store(ws)
                return results
            waiting = rest
        raise AssertionError(f"decisions of {many} still miss rows after {ROUNDS_MAX} rounds")

    def do(self, command: c.Command) -> Any:
        """Decide one command."""
        result = self.batch(command)[0]
        if isinstance(result, Exception):
            raise result
        return result

    def expect_refusal(self, command: c.Command) -> Refusal:
        """Decide a command that must be refused, check that no row changed, and return the refusal."""
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
        """Send a tick for every job and task that is due, as the sweeper does."""
        for job in list(self.all(Job)):
            if job.due_at is not None and job.due_at <= self.now:
                self.do(c.TickJob(job_id=job.id))
        for task in list(self.all(Task)):
            if task.due_at is not None and task.due_at <= self.now:
                self.do(c.TickTask(job_id=task.job_id, task_id=task.id))

    # -- shortcuts

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

    # -- stored rows

    def all(self, row: type[R]) -> Collection[R]:
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

    # -- internals

    def _prepare(self, command: c.Command) -> c.Command:
        if isinstance(command, c.Claim) and not command.tokens:
            tokens = tuple(f"token-{self.new_id()}" for _ in range(max(command.count, 1)))
            command = msgspec.structs.replace(command, tokens=tokens)
        return command if command.id else msgspec.structs.replace(command, id=self.new_id())

    def _prefetch(self, loader: "_Loader", ws: WorkingSet, prepared: list[c.Command]) -> None:
        needs = Needs()
        for command in prepared:
            COMMANDS[type(command)].add_needs(command, needs)
        loader.load_all(needs)
        needs = Needs()
        for command in prepared:
            if add_follow_up_needs := COMMANDS[type(command)].add_follow_up_needs:
                add_follow_up_needs(ws, command, needs)
        loader.load_all(needs)

    def _store(self, ws: WorkingSet) -> None:
        for row, new, changed in ws.writes():
            table = self.rows[row]
            for added in new:
                assert key_of(added) not in table, f"{row.TABLE} {key_of(added)} exists already"
                table[key_of(added)] = added
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
    """Loads the rows and facts that a decision needs, from the stored rows only."""

    def __init__(self, harness: CoreHarness, ws: WorkingSet, demand: int) -> None:
        self.harness = harness
        self.ws = ws
        self.demand = demand

    def load_all(self, needs: Needs) -> None:
        """Load what a decision is known to need, without locks."""
        for need, keys in needs.keys.items():
            for key in keys:
                self.load(need, key)

    def settle_turns(self) -> None:
        for line in withdrawn_counts(self.ws.queue_exits):
            last = waiting_tasks.in_turn(self.harness.all(Task), line)
            self.ws.load(Task, last)
            self.ws.facts[facts.LAST_TURNS, line] = tuple(task.id for task in last)
        settle_turns(self.ws)

    def load(self, need: Need, key: Any) -> None:
        if not isinstance(need, Fact):
            found = self.harness.rows[need].get(key)
            self.ws.load(need, [found] if found else [], [key])
        elif need in facts.CURRENT_WORKFLOW_FACTS:
            self._workflow(key)
        elif need not in _LOCKS and (need, key) not in self.ws.facts:
            self.ws.facts[need, key] = _FACT_LOADERS[need](self, key)

    def _group(self, row: type[R], keep: Any) -> list[str]:
        found = sorted((r for r in self.harness.all(row) if keep(r)), key=lambda r: getattr(r, "no", 0))
        self.ws.load(row, found)
        return [r.id for r in found]  # type: ignore[attr-defined]

    def _workflow(self, name: str) -> None:
        row = next((w for w in self.harness.all(Workflow) if w.name == name and w.current), None)
        definition = parse_definition(row.spec) if row else None
        if row:
            self.ws.load(Workflow, [row])
        self.ws.facts[facts.CURRENT_DEFINITION, name] = definition
        self.ws.facts[facts.CURRENT_VERSION, name] = row.version if row else 0
        self.ws.facts[facts.INPUT_SCHEMA, name] = (
            compile_input_schema(name, definition.input_schema) if definition else None
        )

    def _definition(self, key: Key) -> WorkflowDefinition | None:
        row = self.harness.rows[Workflow].get(key)
        return parse_definition(row.spec) if isinstance(row, Workflow) else None

    def _leased_task_ids(self, key: str) -> tuple[str, ...]:
        return tuple(t.id for t in self.harness.all(Task) if t.worker_id == key and t.token_hash is not None)

    def _worker_count(self, _key: str) -> int:
        return sum(w.status in {"pending", "approved"} for w in self.harness.all(Worker))

    def _job_by_idempotency_key(self, key: str) -> Job | None:
        return next((job for job in self.harness.all(Job) if job.dedup_key == key), None)

    def _ledger_amount(self, key: str) -> int | None:
        return next((e.amount for e in self.harness.all(LedgerEntry) if e.dedup_key == key), None)

    def _queue_count(self, key: str) -> int:
        return sum(queue.workflow == key for queue in self.harness.all(Queue))

    def _active_job_count(self, key: str) -> int:
        return sum(1 for j in self.harness.all(Job) if j.wallet_id == key and j.finished_at is None)

    def _api_key_by_secret(self, key: str) -> str | None:
        found = next((k for k in self.harness.all(ApiKey) if k.secret_hash == key), None)
        self.ws.load(ApiKey, [found] if found else [])
        return found.id if found else None

    def _pending_upload_count(self, key: tuple[str, str]) -> int:
        files = self.harness.all(File)
        return sum(1 for f in files if (f.tenant, f.user_id) == key and f.job_id is None and f.status == "uploading")

    def _file_links(self, key: str) -> tuple[Key, ...]:
        return tuple(JobFile.key_of(use) for use in self.harness.all(JobFile) if use.job_id == key)

    def _output_files(self, key: str) -> tuple[str, ...]:
        return tuple(file.id for file in self.harness.all(File) if file.job_id == key)

    def _needed_by_others(self, key: str) -> str | None:
        creator = self.harness.get(File, key).job_id
        others = {use.job_id for use in self.harness.all(JobFile) if use.file_id == key} - {creator}
        return self._needed_by_workflow(key) or self._needed_by_open_job(others)

    def _needed_by(self, key: str) -> str | None:
        jobs = {u.job_id for u in self.harness.all(JobFile) if u.file_id == key}
        jobs |= {f.job_id for f in self.harness.all(File) if f.id == key and f.job_id is not None}
        return self._needed_by_workflow(key) or self._needed_by_open_job(jobs)

    def _needed_by_open_job(self, jobs: Iterable[str]) -> str | None:
        return "" if any(self.harness.job(job_id).finished_at is None for job_id in jobs) else None

    def _needed_by_workflow(self, key: str) -> str | None:
        """Return the workflow that refers to a file, if its version is current or has an open job."""
        used_by_jobs = {
            (job.workflow, job.workflow_version) for job in self.harness.all(Job) if job.finished_at is None
        }
        for use in self.harness.all(WorkflowFile):
            version = self.harness.get(Workflow, (use.workflow, use.version))
            if use.file_id == key and (version.current or (use.workflow, use.version) in used_by_jobs):
                return use.workflow
        return None

    def _stages(self, key: str) -> list[str]:
        return self._group(Stage, lambda s: s.job_id == key)

    def _tasks(self, key: str) -> list[str]:
        return self._group(Task, lambda t: t.stage_id == key)

    def _open_tasks(self, key: str) -> list[str]:
        return self._group(Task, lambda t: t.stage_id == key and t.finished_at is None)

    def _tasks_of_worker(self, key: str) -> list[str]:
        return self._group(Task, lambda t: t.worker_id == key and t.status == "running")

    def _waiting_callbacks(self, key: str) -> list[str]:
        return self._group(Inbox, lambda i: i.ref == key and i.status == "waiting")

    def _job_of_call(self, key: str) -> str | None:
        return next((call.job_id for call in self.harness.all(Call) if call.id == key), None)

    def _call_by_reference(self, key: tuple[str, str]) -> str | None:
        return next((call.id for call in self.harness.all(Call) if (call.provider, call.ref) == key), None)

    def _candidates(self, kinds: tuple[str, ...]) -> tuple[str, ...]:
        offered, turns = waiting_tasks.pick_candidates(self.harness.all(Task), kinds, self.demand)
        self.ws.facts[facts.NEXT_CANDIDATE, kinds] = 0
        self.ws.facts |= {(facts.FIRST_TURNS, line): own for line, own in turns.items()}
        self.ws.load(Task, [self.harness.get(Task, key) for own in turns.values() for key in own])
        self.ws.facts |= {(facts.HAS_RATE_LIMIT, task.queue): False for task in offered}
        self.ws.load(Task, offered)
        for task in offered:
            job = self.harness.job(task.job_id)
            for need, key in (
                (Job, job.id), (Stage, task.stage_id), (Run, (job.id, job.run)),
                (Document, (task.id, "input")), (Document, (job.id, "input")),
            ):  # fmt: skip
                self.load(need, key)
        return tuple(t.id for t in offered)


_LOCKS = (facts.REFERENCE_LOCK, facts.TENANT_LOCK)
_FACT_LOADERS: dict[Fact[Any, Any], Callable[[_Loader, Any], Any]] = {
    facts.DEFINITION: _Loader._definition,  # noqa: SLF001
    facts.LEASED_TASK_IDS: _Loader._leased_task_ids,  # noqa: SLF001
    facts.WORKER_COUNT: _Loader._worker_count,  # noqa: SLF001
    facts.JOB_BY_IDEMPOTENCY_KEY: _Loader._job_by_idempotency_key,  # noqa: SLF001
    facts.LEDGER_AMOUNT: _Loader._ledger_amount,  # noqa: SLF001
    facts.QUEUE_COUNT: _Loader._queue_count,  # noqa: SLF001
    facts.ACTIVE_JOB_COUNT: _Loader._active_job_count,  # noqa: SLF001
    facts.API_KEY_BY_SECRET: _Loader._api_key_by_secret,  # noqa: SLF001
    facts.PENDING_UPLOAD_COUNT: _Loader._pending_upload_count,  # noqa: SLF001
    facts.FILE_LINKS_OF_JOB: _Loader._file_links,  # noqa: SLF001
    facts.OUTPUT_FILES_OF_JOB: _Loader._output_files,  # noqa: SLF001
    facts.NEEDED_BY_OTHERS: _Loader._needed_by_others,  # noqa: SLF001
    facts.NEEDED_BY: _Loader._needed_by,  # noqa: SLF001
    facts.QUEUE_TAIL: lambda self, key: waiting_tasks.queue_tail(self.harness.all(Task), key),
    facts.USER_TAIL: lambda self, key: waiting_tasks.user_tail(self.harness.all(Task), key),
    facts.STAGES_OF_JOB: _Loader._stages,  # noqa: SLF001
    facts.TASKS_OF_STAGE: _Loader._tasks,  # noqa: SLF001
    facts.OPEN_TASKS_OF_STAGE: _Loader._open_tasks,  # noqa: SLF001
    facts.TASKS_OF_WORKER: _Loader._tasks_of_worker,  # noqa: SLF001
    facts.WAITING_CALLBACKS: _Loader._waiting_callbacks,  # noqa: SLF001
    facts.JOB_OF_CALL: _Loader._job_of_call,  # noqa: SLF001
    facts.CALL_BY_REFERENCE: _Loader._call_by_reference,  # noqa: SLF001
    facts.CANDIDATE_TASK_IDS: _Loader._candidates,  # noqa: SLF001
}
