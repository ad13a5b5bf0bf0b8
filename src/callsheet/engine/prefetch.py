"""Prefetch: loads the rows and facts that the decisions of a batch need, in lock order.

The order is jobs, their parts, wallets, audit chains. Each query loads the rows of all commands of the batch. A loader
is a generator that yields one query and receives its rows. Consecutive loaders share one round trip.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from callsheet.core import prefetched_facts as facts
from callsheet.core.model.rows import (
    ApiKey,
    Attempt,
    Audit,
    AuditHead,
    Call,
    Cursor,
    Document,
    File,
    Inbox,
    InstallationValue,
    Job,
    JobFile,
    Queue,
    Row,
    Run,
    Stage,
    StorageUsage,
    Task,
    Tenant,
    Wallet,
    Worker,
    Workflow,
)
from callsheet.core.model.workflow_definition import WorkflowDefinition, parse_definition
from callsheet.core.policy.input_schema.validator import InputSchema, compile_input_schema
from callsheet.core.prefetched_facts import Fact, Key, Line, Need, Needs, QueueTail
from callsheet.core.working_set import WorkingSet
from callsheet.engine.candidates import CandidateSelector
from callsheet.store.connection import Connection, NamedQuery, Rows

V = TypeVar("V")
QuerySteps = Generator[NamedQuery, Rows, None]
_LAST_TURNS_MAX = 1_000
"""Tasks that are locked to settle the turns of one line."""


class DefinitionCache:
    """Parsed workflow definitions and their input schemas, by version. A version never changes, so they stay valid."""

    def __init__(self) -> None:
        self._definitions: dict[tuple[str, int], WorkflowDefinition] = {}
        self._input_schemas: dict[tuple[str, int], InputSchema | None] = {}

    def get_definition(self, row: Workflow) -> WorkflowDefinition:
        key = (row.name, row.version)
        if key not in self._definitions:
            self._definitions[key] = parse_definition(row.spec)
        return self._definitions[key]

    def cached(self, key: tuple[str, int]) -> WorkflowDefinition | None:
        return self._definitions.get(key)

    def get_input_schema(self, row: Workflow) -> InputSchema | None:
        key = (row.name, row.version)
        if key not in self._input_schemas:
            schema = self.get_definition(row).input_schema
            self._input_schemas[key] = compile_input_schema(row.name, schema)
        return self._input_schemas[key]


class Prefetch:
    """Fills the working set of one batch."""

    def __init__(
        self, connection: Connection, ws: WorkingSet, definitions: DefinitionCache, selector: CandidateSelector
    ) -> None:
        self._connection = connection
        self._ws = ws
        self._definitions = definitions
        self._selector = selector

    def load(self, needs: Needs) -> None:
        """Load everything that is needed, in lock order."""
        self._add_jobs_of_workers(needs)
        pending: list[QuerySteps] = []
        for need, keys in sorted(needs.keys.items(), key=_position_in_lock_order):
            if isinstance(need, Fact):
                missing = [key for key in keys if not self._ws.has_fact(need, key)]
            else:
                missing = self._ws.not_loaded(need, keys)
            if not missing:
                continue
            if step := _STEPS.get(need):
                self._run_loaders(pending)
                pending = []
                step(self, missing)
            else:
                pending.append(_LOADERS[need](self, missing))
        self._run_loaders(pending)

    def _add_jobs_of_workers(self, needs: Needs) -> None:
        """Add the jobs of the tasks that workers have leased, so that they are locked together with the others."""
        fact = facts.TASKS_OF_WORKER
        keys = [key for key in needs.keys.get(fact, ()) if not self._ws.has_fact(fact, key)]
        if not keys:
            return
        before_jobs = Needs()
        for need in (facts.REFERENCE_LOCK, Worker):
            needs.move(need, before_jobs)
        self.load(before_jobs)
        needs.update(Job, (row[0] for row in self._connection.fetch("jobs_of_workers", ids=keys)))

    def _run_loaders(self, loaders: Iterable[QuerySteps]) -> None:
        """Run the queries of loaders in one round trip. A loader that needs no query yields none."""
        started = [(loader, named_query) for loader in loaders if (named_query := next(loader, None))]
        if not started:
            return
        answers = self._connection.fetch_all([named_query for _, named_query in started])
        for (loader, _), rows in zip(started, answers, strict=True):
            try:
                loader.send(rows)
            except StopIteration:
                continue
            raise AssertionError("a loader must yield at most one query")

    def _set_facts(self, fact: Fact[Any, V], keys: Iterable[Key], values: Mapping[Any, V], default: V) -> None:
        for key in keys:
            self._ws.facts.setdefault((fact, key), values.get(key, default))

    # -- loaders: one query each

    def _load_rows(self, row: type[Row], query: str, keys: list[Key]) -> QuerySteps:
        found = yield query, {"keys" if query in _KEYED_BY_TUPLE else "ids": keys}
        self._ws.load(row, [row(*values) for values in found], keys)

    def _load_grouped(
        self, fact: Fact[str, Any], row: type[Row], query: str, field: str, keys: list[Key]
    ) -> QuerySteps:
        found = [row(*values) for values in (yield query, {"ids": keys})]
        self._ws.load(row, found, ())
        groups: dict[Key, list[str]] = defaultdict(list)
        for one in found:
            groups[getattr(one, field)].append(row.key_of(one))  # type: ignore[arg-type]
        for key in keys:
            self._ws.facts.setdefault((fact, key), tuple(groups.get(key, ())))

    def _job_by_idempotency_key(self, keys: list[Key]) -> QuerySteps:
        """Look up jobs by key, without adding them to the working set: they are not locked."""
        found = [Job(*row) for row in (yield "jobs_by_dedup_key", {"ids": keys})]
        self._set_facts(facts.JOB_BY_IDEMPOTENCY_KEY, keys, {job.dedup_key: job for job in found}, None)

    def _run_exists(self, keys: list[Key]) -> QuerySteps:
        found = yield "runs_by_command", {"keys": keys}
        self._set_facts(facts.RUN_EXISTS, keys, dict.fromkeys(map(tuple, found), True), False)  # noqa: FBT003 - the fact's value

    def _ledger_amount(self, keys: list[Key]) -> QuerySteps:
        found = yield "entries_by_dedup_key", {"ids": keys}
        self._set_facts(facts.LEDGER_AMOUNT, keys, dict(found), None)  # type: ignore[arg-type]

    def _active_job_count(self, keys: list[Key]) -> QuerySteps:
        """Count up to the highest limit, and further: jobs that end in this batch are subtracted from the count."""
        limits = self._ws.limits
        highest = max((tenant.active_jobs_max or 0 for tenant in self._ws.loaded(Tenant)), default=0)
        most = max(highest, limits.active_jobs_max or 0) + limits.batch_commands_max
        found = yield "active_job_counts", {"keys": [(key,) for key in keys], "most": most}
        self._set_facts(facts.ACTIVE_JOB_COUNT, keys, dict(found), 0)  # type: ignore[arg-type]

    def _queue_tail(self, keys: list[Key]) -> QuerySteps:
        rows = yield "queue_tails", {"keys": keys}
        self._set_facts(
            facts.QUEUE_TAIL,
            keys,
            {(q, p, t): QueueTail(head, last) for q, p, t, head, last in rows},
            QueueTail(None, None),
        )

    def _user_tail(self, keys: list[Key]) -> QuerySteps:
        rows = yield "user_tails", {"keys": keys}
        self._set_facts(
            facts.USER_TAIL, keys, {tuple(row[:4]): QueueTail(*row[4:]) for row in rows}, QueueTail(None, None)
        )

    def _queue_count(self, keys: list[Key]) -> QuerySteps:
        found = yield "queues_sharing", {"kinds": [], "workflows": keys, "providers": []}
        self._set_facts(facts.QUEUE_COUNT, keys, Counter(Queue(*row).workflow for row in found), 0)

    def _current_definition(self, keys: list[Key]) -> QuerySteps:
        rows = [Workflow(*values) for values in (yield "current_workflows", {"ids": keys})]
        self._ws.load(Workflow, rows, ())
        found = {row.name: row for row in rows}
        for key in keys:
            row = found.get(str(key))
            self._ws.facts[facts.CURRENT_DEFINITION, key] = self._definitions.get_definition(row) if row else None
            self._ws.facts[facts.CURRENT_VERSION, key] = row.version if row else 0
            schema = self._definitions.get_input_schema(row) if row else None
            self._ws.facts[facts.INPUT_SCHEMA, key] = schema

    def _definition(self, keys: list[Any]) -> QuerySteps:
        if not_loaded := [key for key in keys if self._definitions.cached(key) is None]:
            rows = [Workflow(*values) for values in (yield "workflows", {"keys": not_loaded})]
            self._ws.load(Workflow, rows, ())
            for row in rows:
                self._definitions.get_definition(row)
        for key in keys:
            self._ws.facts[facts.DEFINITION, key] = self._definitions.cached(key)

    def _leased_task_ids(self, keys: list[Key]) -> QuerySteps:
        """Read the ids of the tasks that workers have leased, without locking or loading the tasks."""
        found: dict[Key, list[str]] = defaultdict(list)
        for worker, task in (yield "leased_task_ids", {"ids": keys}):
            found[worker].append(task)
        self._set_facts(facts.LEASED_TASK_IDS, keys, {key: tuple(tasks) for key, tasks in found.items()}, ())

    def _worker_count(self, keys: list[Key]) -> QuerySteps:
        found = yield "worker_count", {}
        self._set_facts(facts.WORKER_COUNT, keys, {}, found[0][0])

    def _api_key_by_secret(self, keys: list[Key]) -> QuerySteps:
        """Look up API keys by the hashes of their secrets."""
        found = [ApiKey(*values) for values in (yield "api_keys_by_hash", {"ids": keys})]
        self._ws.load(ApiKey, found)
        self._set_facts(facts.API_KEY_BY_SECRET, keys, {key.secret_hash: key.id for key in found}, None)

    def _pending_upload_count(self, keys: list[Key]) -> QuerySteps:
        found = yield "pending_upload_counts", {"keys": keys, "most": self._ws.limits.uploads_pending_max}
        self._set_facts(facts.PENDING_UPLOAD_COUNT, keys, {(tenant, user): count for tenant, user, count in found}, 0)

    def _needed_by(self, keys: list[Key]) -> QuerySteps:
        found = yield "files_needed", {"ids": keys}
        self._set_facts(facts.NEEDED_BY, keys, {key: workflow or "" for key, workflow in found}, None)

    def _needed_by_others(self, keys: list[Key]) -> QuerySteps:
        found = yield "files_needed_by_others", {"ids": keys}
        self._set_facts(facts.NEEDED_BY_OTHERS, keys, {key: workflow or "" for key, workflow in found}, None)

    def _document(self, keys: list[Any]) -> QuerySteps:
        found = yield "documents", {"ids": [owner for owner, _ in keys]}
        self._ws.load(Document, [Document(*values) for values in found], keys)

    def _lock_references(self, keys: list[Any]) -> QuerySteps:
        """Lock references, so that a callback and the hand-off of its task run one after the other."""
        yield "lock_refs", {"keys": [(key,) for key in sorted(keys)]}
        self._set_facts(facts.REFERENCE_LOCK, keys, {}, default=True)

    def _lock_tenants(self, keys: list[Any]) -> QuerySteps:
        found = yield "tenants_for_update", {"ids": keys}
        self._ws.load(Tenant, [Tenant(*values) for values in found], keys)
        self._set_facts(facts.TENANT_LOCK, keys, {}, default=True)

    def _call_by_reference(self, keys: list[Any]) -> QuerySteps:
        found = [Call(*values) for values in (yield "calls_by_ref", {"keys": keys})]
        self._set_facts(facts.CALL_BY_REFERENCE, keys, {(call.provider, call.ref): call.id for call in found}, None)
        for call in found:
            self._ws.facts[facts.JOB_OF_CALL, call.id] = call.job_id

    def _job_of_call(self, keys: list[Key]) -> QuerySteps:
        found = [Call(*values) for values in (yield "calls", {"ids": keys})]
        self._set_facts(facts.JOB_OF_CALL, keys, {call.id: call.job_id for call in found}, None)

    # -- steps: several queries, each depending on the rows of the previous one

    def _load_candidates(self, keys: list[Any]) -> None:
        tasks: list[str] = []
        jobs: dict[str, None] = {}
        turns: dict[Line, list[str]] = defaultdict(list)
        for kinds, candidates in self._selector.pick(self._connection, self._ws.limits, sorted(keys)):
            self._ws.facts[facts.CANDIDATE_TASK_IDS, kinds] = tuple(candidate.task for candidate in candidates)
            self._ws.facts[facts.NEXT_CANDIDATE, kinds] = 0
            tasks += (candidate.task for candidate in candidates)
            jobs |= dict.fromkeys(candidate.job for candidate in candidates)
            for candidate in candidates:
                turns[candidate.queue, candidate.priority, candidate.tenant].append(candidate.turn)
        self._ws.facts |= {(facts.HAS_RATE_LIMIT, queue): rated for queue, rated in self._selector.rated.items()}
        self._ws.facts |= {(facts.FIRST_TURNS, line): tuple(ids) for line, ids in turns.items()}
        others = {turn for ids in turns.values() for turn in ids}.difference(tasks)
        self._load_for_lease(tasks, list(jobs), sorted(others))

    def _load_tasks_of_workers(self, keys: list[Key]) -> None:
        """Read the tasks that workers have leased, after their jobs are locked: before, any lease could have ended."""
        self._run_loaders([self._load_grouped(facts.TASKS_OF_WORKER, Task, "tasks_of_workers", "worker_id", keys)])
        tasks: list[Task] = []
        for key in keys:  # the jobs of tasks that were leased in the meantime are not locked: skip these tasks
            held = [self._ws.get(Task, task) for task in self._ws.facts[facts.TASKS_OF_WORKER, key]]
            tasks += (locked := [task for task in held if self._ws.is_loaded(Job, task.job_id)])
            self._ws.facts[facts.TASKS_OF_WORKER, key] = tuple(task.id for task in locked)
        self._load_for_lease([task.id for task in tasks], [task.job_id for task in tasks])

    def load_last_turns(self, counts: Mapping[Line, int]) -> None:
        """Lock and load the tasks with the last turns of each line: as many as were withdrawn, besides these."""
        if not counts:
            return
        found = self._connection.fetch_all(
            (
                "last_turns",
                {"queue": queue, "priority": priority, "tenant": tenant, "count": min(2 * n, _LAST_TURNS_MAX)},
            )
            for (queue, priority, tenant), n in counts.items()
        )
        for line, rows in zip(counts, found, strict=True):
            self._ws.facts[facts.LAST_TURNS, line] = tuple(task for (task,) in rows)
        if not_loaded := self._ws.not_loaded(Task, [task for rows in found for (task,) in rows]):
            self._run_loaders([self._load_rows(Task, "tasks", not_loaded)])

    def _load_for_lease(self, tasks: list[str], jobs: list[str], other_tasks: Sequence[str] = ()) -> None:
        """Load the other rows that leases of these tasks need. Their jobs are already locked."""
        if not tasks:
            return
        loaders = [self._document([(key, "input") for key in (*tasks, *jobs)])]
        if not_loaded := self._ws.not_loaded(Job, jobs):
            loaders.append(self._load_rows(Job, "jobs_unlocked", not_loaded))
        if not_loaded := self._ws.not_loaded(Task, [*tasks, *other_tasks]):
            loaders.append(self._load_rows(Task, "tasks", not_loaded))
        if missing := [key for key in jobs if not self._ws.has_fact(facts.STAGES_OF_JOB, key)]:
            loaders.append(_LOADERS[facts.STAGES_OF_JOB](self, missing))
        self._run_loaders(loaders)


Loader = Callable[[Prefetch, list[Any]], QuerySteps]


def _by_id(row: type[Row], query: str) -> Loader:
    return lambda self, keys: self._load_rows(row, query, keys)


def _grouped(fact: Fact[str, Any], row: type[Row], query: str, field: str) -> Loader:
    return lambda self, keys: self._load_grouped(fact, row, query, field, keys)


_KEYED_BY_TUPLE = frozenset({"workflows", "runs", "attempts", "job_files"})
_BEFORE_STEPS: dict[Need, Loader] = {
    facts.REFERENCE_LOCK: Prefetch._lock_references,  # noqa: SLF001 - a table of this class's own methods
    Worker: _by_id(Worker, "workers"),
    facts.LEASED_TASK_IDS: Prefetch._leased_task_ids,  # noqa: SLF001
    facts.WORKER_COUNT: Prefetch._worker_count,  # noqa: SLF001
    facts.CALL_BY_REFERENCE: Prefetch._call_by_reference,  # noqa: SLF001
    facts.JOB_OF_CALL: Prefetch._job_of_call,  # noqa: SLF001
    Job: _by_id(Job, "jobs"),
}
_STEPS: dict[Need, Callable[[Prefetch, list[Any]], None]] = {
    facts.CANDIDATE_TASK_IDS: Prefetch._load_candidates,  # noqa: SLF001
    facts.TASKS_OF_WORKER: Prefetch._load_tasks_of_workers,  # noqa: SLF001
}
_AFTER_STEPS: dict[Need, Loader] = {
    facts.JOB_BY_IDEMPOTENCY_KEY: Prefetch._job_by_idempotency_key,  # noqa: SLF001
    facts.TENANT_LOCK: Prefetch._lock_tenants,  # noqa: SLF001
    Tenant: _by_id(Tenant, "tenants"),
    facts.CURRENT_DEFINITION: Prefetch._current_definition,  # noqa: SLF001
    facts.DEFINITION: Prefetch._definition,  # noqa: SLF001
    Workflow: _by_id(Workflow, "workflows"),
    Queue: _by_id(Queue, "queues"),
    facts.QUEUE_COUNT: Prefetch._queue_count,  # noqa: SLF001
    Task: _by_id(Task, "tasks"),
    Stage: _by_id(Stage, "stages_by_id"),
    facts.STAGES_OF_JOB: _grouped(facts.STAGES_OF_JOB, Stage, "stages", "job_id"),
    facts.OPEN_TASKS_OF_STAGE: _grouped(facts.OPEN_TASKS_OF_STAGE, Task, "open_tasks", "stage_id"),
    facts.TASKS_OF_STAGE: _grouped(facts.TASKS_OF_STAGE, Task, "tasks_of_stages", "stage_id"),
    Run: _by_id(Run, "runs"),
    facts.RUN_EXISTS: Prefetch._run_exists,  # noqa: SLF001
    Attempt: _by_id(Attempt, "attempts"),
    Document: Prefetch._document,  # noqa: SLF001
    Call: _by_id(Call, "calls"),
    Inbox: _by_id(Inbox, "inbox"),
    facts.WAITING_CALLBACKS: _grouped(facts.WAITING_CALLBACKS, Inbox, "waiting_callbacks", "ref"),
    Cursor: _by_id(Cursor, "cursors"),
    facts.FILE_LINKS_OF_JOB: _grouped(facts.FILE_LINKS_OF_JOB, JobFile, "job_files_of_jobs", "job_id"),
    File: _by_id(File, "files"),
    facts.OUTPUT_FILES_OF_JOB: _grouped(facts.OUTPUT_FILES_OF_JOB, File, "files_of_jobs", "job_id"),
    facts.NEEDED_BY_OTHERS: Prefetch._needed_by_others,  # noqa: SLF001
    JobFile: _by_id(JobFile, "job_files"),
    facts.PENDING_UPLOAD_COUNT: Prefetch._pending_upload_count,  # noqa: SLF001
    facts.NEEDED_BY: Prefetch._needed_by,  # noqa: SLF001
    ApiKey: _by_id(ApiKey, "api_keys"),
    facts.API_KEY_BY_SECRET: Prefetch._api_key_by_secret,  # noqa: SLF001
    InstallationValue: _by_id(InstallationValue, "installation_values"),
    Audit: _by_id(Audit, "audits"),
    facts.LEDGER_AMOUNT: Prefetch._ledger_amount,  # noqa: SLF001
    Wallet: _by_id(Wallet, "wallets"),
    StorageUsage: _by_id(StorageUsage, "storage_usage"),
    facts.ACTIVE_JOB_COUNT: Prefetch._active_job_count,  # noqa: SLF001
    facts.QUEUE_TAIL: Prefetch._queue_tail,  # noqa: SLF001
    facts.USER_TAIL: Prefetch._user_tail,  # noqa: SLF001
    AuditHead: _by_id(AuditHead, "audit_heads"),
}
_LOADERS = _BEFORE_STEPS | _AFTER_STEPS
_LOCK_ORDER: dict[Need, int] = {need: no for no, need in enumerate((*_BEFORE_STEPS, *_STEPS, *_AFTER_STEPS))}


def _position_in_lock_order(item: tuple[Need, set[Any]]) -> int:
    return _LOCK_ORDER[item[0]]
