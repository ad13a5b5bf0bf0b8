"""Loading what decisions want, with set queries, in the one lock order: jobs, what is below them, then wallets.

A loader is a generator that asks once and takes the rows; loaders that follow each other ask in one trip.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from callsheet.core.model.rows import (
    ApiKey,
    Attempt,
    Audit,
    Call,
    Cursor,
    Document,
    File,
    Inbox,
    Job,
    JobFile,
    Queue,
    Row,
    Run,
    Stage,
    Task,
    Tenant,
    Wallet,
    Worker,
    Workflow,
)
from callsheet.core.model.workflow_definition import WorkflowDefinition, parse_definition, validator
from callsheet.core.policy.fair_order import QueueTail
from callsheet.core.working_set import Key, WorkingSet
from callsheet.engine.candidates import CandidateSelector
from callsheet.store.connection import Connection, NamedQuery, Rows

KeySets = Mapping[str, set[Key]]
QuerySteps = Generator[NamedQuery, Rows, None]


class DefinitionCache:
    """Recipes read so far. A version never changes, so what is here stays true."""

    def __init__(self) -> None:
        self._definitions: dict[tuple[str, int], WorkflowDefinition] = {}
        self._validators: dict[tuple[str, int], Any] = {}

    def get_definition(self, row: Workflow) -> WorkflowDefinition:
        key = (row.name, row.version)
        if key not in self._definitions:
            self._definitions[key] = parse_definition(row.spec)
        return self._definitions[key]

    def cached(self, key: tuple[str, int]) -> WorkflowDefinition | None:
        return self._definitions.get(key)

    def validator(self, row: Workflow) -> Any:
        key = (row.name, row.version)
        if key not in self._validators:
            self._validators[key] = validator(self.get_definition(row))
        return self._validators[key]


class Prefetch:
    """Fills one batch's working set."""

    def __init__(
        self, connection: Connection, ws: WorkingSet, definitions: DefinitionCache, selector: CandidateSelector
    ) -> None:
        self._connection = connection
        self._ws = ws
        self._definitions = definitions
        self._selector = selector

    def load(self, key_sets: KeySets) -> None:
        """Load everything wanted, in the one order."""
        key_sets = self._add_jobs_of_workers(key_sets)
        pending: list[QuerySteps] = []
        for name in _ORDER:
            keys = key_sets.get(name)
            if not keys:
                continue
            if row := _ROWS.get(name):
                missing = self._ws.not_loaded(row, keys)
            else:
                missing = [key for key in keys if not self._ws.has_fact(name, key)]
            if missing and name in _STEPS:
                self._run_loaders(pending)
                pending = []
                _STEPS[name](self, missing)
            elif missing:
                pending.append(_LOADERS[name](self, missing))
        self._run_loaders(pending)
        if not_loaded := set(key_sets) - set(_ORDER):
            raise LookupError(f"nobody knows how to load {not_loaded}")

    def _add_jobs_of_workers(self, key_sets: KeySets) -> KeySets:
        """Add the jobs of what workers hold: they are locked with the others, once the workers are, and then read."""
        keys = [key for key in key_sets.get("tasks_of_workers", ()) if not self._ws.has_fact("tasks_of_workers", key)]
        if not keys:
            return key_sets
        self.load({name: key_sets[name] for name in ("ref", "worker") if name in key_sets})
        jobs = {row[0] for row in self._connection.fetch("jobs_of_workers", ids=keys)}
        return {**key_sets, "job": {*key_sets.get("job", ()), *jobs}}

    def _run_loaders(self, loaders: Iterable[QuerySteps]) -> None:
        """Let loaders ask together and give each its rows; one that finds that it knows all does not ask."""
        started = [(loader, named_query) for loader in loaders if (named_query := next(loader, None))]
        if not started:
            return
        answers = self._connection.fetch_all([named_query for _, named_query in started])
        for (loader, _), rows in zip(started, answers, strict=True):
            try:
                loader.send(rows)
            except StopIteration:
                continue
            raise AssertionError("a loader asks once")

    def _set_facts(self, name: str, keys: Iterable[Key], values: Mapping[Key, Any], default: Any) -> None:
        for key in keys:
            self._ws.facts.setdefault((name, key), values.get(key, default))

    # -- loaders: one question each

    def _load_rows(self, row: type[Row], query: str, keys: list[Key]) -> QuerySteps:
        found = yield query, {"keys" if query in _BY_TABLE else "ids": keys}
        self._ws.load(row, [row(*values) for values in found], keys)

    def _load_grouped(self, name: str, row: type[Row], query: str, field: str, keys: list[Key]) -> QuerySteps:
        found = [row(*values) for values in (yield query, {"ids": keys})]
        self._ws.load(row, found, ())
        groups: dict[Key, list[str]] = defaultdict(list)
        for one in found:
            groups[getattr(one, field)].append(row.key_of(one))  # type: ignore[arg-type]
        for key in keys:
            self._ws.facts.setdefault((name, key), tuple(groups.get(key, ())))

    def _idem(self, keys: list[Key]) -> QuerySteps:
        """Look keys up without taking the jobs into the working set: they are not locked."""
        found = [Job(*row) for row in (yield "jobs_by_dedup_key", {"ids": keys})]
        self._set_facts("dedup_key", keys, {job.dedup_key: job for job in found}, None)

    def _run_by_command(self, keys: list[Key]) -> QuerySteps:
        found = yield "runs_by_command", {"keys": keys}
        self._set_facts("run_by_command", keys, dict.fromkeys(map(tuple, found), True), False)  # noqa: FBT003 - whether there is one

    def _entry(self, keys: list[Key]) -> QuerySteps:
        found = yield "entries_by_dedup_key", {"ids": keys}
        self._set_facts("entry", keys, dict(found), None)  # type: ignore[arg-type]

    def _active_job_count(self, keys: list[Key]) -> QuerySteps:
        found = yield "active", {"ids": keys}
        self._set_facts("active", keys, dict(found), 0)  # type: ignore[arg-type]

    def _tail(self, keys: list[Key]) -> QuerySteps:
        rows = yield "queue_tails", {"keys": keys}
        self._set_facts(
            "tail", keys, {(q, p, t): QueueTail(head, last) for q, p, t, head, last in rows}, QueueTail(None, None)
        )

    def _queues(self, keys: list[Key]) -> QuerySteps:
        found = yield "queues_sharing", {"kinds": [], "workflows": keys, "providers": []}
        self._set_facts("queues", keys, Counter(Queue(*row).workflow for row in found), 0)

    def _current_definition(self, keys: list[Key]) -> QuerySteps:
        rows = [Workflow(*values) for values in (yield "current_workflows", {"ids": keys})]
        self._ws.load(Workflow, rows, ())
        found = {row.name: row for row in rows}
        for key in keys:
            row = found.get(str(key))
            self._ws.facts["current_definition", key] = self._definitions.get_definition(row) if row else None
            self._ws.facts["current_version", key] = row.version if row else 0
            self._ws.facts["validator", key] = self._definitions.validator(row) if row else None

    def _definition(self, keys: list[Any]) -> QuerySteps:
        if not_loaded := [key for key in keys if self._definitions.cached(key) is None]:
            rows = [Workflow(*values) for values in (yield "workflows", {"keys": not_loaded})]
            self._ws.load(Workflow, rows, ())
            for row in rows:
                self._definitions.get_definition(row)
        for key in keys:
            self._ws.facts["definition", key] = self._definitions.cached(key)

    def _leases_of_workers(self, keys: list[Key]) -> QuerySteps:
        """Name the tasks in each worker's hand, without locking or loading them."""
        found: dict[Key, list[str]] = defaultdict(list)
        for worker, task in (yield "holds", {"ids": keys}):
            found[worker].append(task)
        self._set_facts("holds", keys, {key: tuple(tasks) for key, tasks in found.items()}, ())

    def _worker_count(self, keys: list[Key]) -> QuerySteps:
        found = yield "fleet", {}
        self._set_facts("fleet", keys, {}, found[0][0])

    def _api_key_of_secret(self, keys: list[Key]) -> QuerySteps:
        """Find the keys that have these secrets."""
        found = [ApiKey(*values) for values in (yield "api_keys_by_hash", {"ids": keys})]
        self._ws.load(ApiKey, found)
        self._set_facts("key_of", keys, {key.secret_hash: key.id for key in found}, None)

    def _pending_upload_count(self, keys: list[Key]) -> QuerySteps:
        found = yield "uploading", {"keys": keys}
        self._set_facts("uploading", keys, {(tenant, user): count for tenant, user, count in found}, 0)

    def _needed(self, keys: list[Key]) -> QuerySteps:
        found = yield "needed", {"ids": keys}
        self._set_facts("needed", keys, {key: workflow or "" for key, workflow in found}, None)

    def _needed_by_others(self, keys: list[Key]) -> QuerySteps:
        found = yield "needed_by_others", {"ids": keys}
        self._set_facts("needed_by_others", keys, {key: workflow or "" for key, workflow in found}, None)

    def _document(self, keys: list[Any]) -> QuerySteps:
        found = yield "documents", {"ids": [owner for owner, _ in keys]}
        self._ws.load(Document, [Document(*values) for values in found], keys)

    def _ref(self, keys: list[Any]) -> QuerySteps:
        """Let one at a time speak of a reference: a callback and the hand-over of its task must not miss each other."""
        yield "lock_refs", {"keys": [(key,) for key in sorted(keys)]}
        self._set_facts("ref", keys, {}, default=True)

    def _call_by_ref(self, keys: list[Any]) -> QuerySteps:
        found = [Call(*values) for values in (yield "calls_by_ref", {"keys": keys})]
        self._set_facts("call_by_ref", keys, {(call.provider, call.ref): call.id for call in found}, None)
        for call in found:
            self._ws.facts["call_link", call.id] = call.job_id

    def _call_link(self, keys: list[Key]) -> QuerySteps:
        found = [Call(*values) for values in (yield "calls", {"ids": keys})]
        self._set_facts("call_link", keys, {call.id: call.job_id for call in found}, None)

    # -- steps: several questions, each after the answer to the one before

    def _load_candidates(self, keys: list[Any]) -> None:
        tasks: list[str] = []
        jobs: dict[str, None] = {}
        for kinds, offer in self._selector.pick(self._connection, self._ws.limits, sorted(keys)):
            self._ws.facts["offer", kinds] = tuple(one.task for one in offer)
            self._ws.facts["place", kinds] = 0
            tasks += (one.task for one in offer)
            jobs |= dict.fromkeys(one.job for one in offer)
        self._ws.facts |= {("rated", queue): rated for queue, rated in self._selector.rated.items()}
        self._load_for_lease(tasks, list(jobs))

    def _load_tasks_of_workers(self, keys: list[Key]) -> None:
        """Read what workers hold, now that its jobs are locked: until that moment any of it may have ended."""
        self._run_loaders([self._load_grouped("tasks_of_workers", Task, "tasks_of_workers", "worker_id", keys)])
        tasks: list[Task] = []
        for key in keys:  # what came into a hand since then is not locked, and not looked at
            held = [self._ws.get(Task, task) for task in self._ws.facts["tasks_of_workers", key]]
            tasks += (locked := [task for task in held if self._ws.is_loaded(Job, task.job_id)])
            self._ws.facts["tasks_of_workers", key] = tuple(task.id for task in locked)
        self._load_for_lease([task.id for task in tasks], [task.job_id for task in tasks])

    def _load_for_lease(self, tasks: list[str], jobs: list[str]) -> None:
        """Load all that leasing needs of tasks whose jobs are already locked."""
        if not tasks:
            return
        loaders = [self._document([(key, "input") for key in (*tasks, *jobs)])]
        if not_loaded := self._ws.not_loaded(Job, jobs):
            loaders.append(self._load_rows(Job, "jobs_unlocked", not_loaded))
        if not_loaded := self._ws.not_loaded(Task, tasks):
            loaders.append(self._load_rows(Task, "tasks", not_loaded))
        if missing := [key for key in jobs if not self._ws.has_fact("stages", key)]:
            loaders.append(_LOADERS["stages"](self, missing))
        self._run_loaders(loaders)


Loader = Callable[[Prefetch, list[Any]], QuerySteps]


def _by_id(row: type[Row], query: str) -> Loader:
    return lambda self, keys: self._load_rows(row, query, keys)


def _group(name: str, row: type[Row], query: str, field: str) -> Loader:
    return lambda self, keys: self._load_grouped(name, row, query, field, keys)


_BY_TABLE = frozenset({"workflows", "runs", "attempts", "uses"})
_ROWS: dict[str, type[Row]] = {
    "job": Job, "stage": Stage, "task": Task, "run": Run, "attempt": Attempt, "document": Document, "call": Call,
    "inbox": Inbox, "cursor": Cursor, "api_key": ApiKey, "file": File, "job_file": JobFile, "worker": Worker,
    "audit": Audit,
    "queue": Queue, "tenant": Tenant, "tenant_for_update": Tenant, "wallet": Wallet, "workflow": Workflow,
}  # fmt: skip
_BEFORE_STEPS: dict[str, Loader] = {
    "ref": Prefetch._ref,  # noqa: SLF001 - as above
    "worker": _by_id(Worker, "workers"),
    "holds": Prefetch._leases_of_workers,  # noqa: SLF001
    "fleet": Prefetch._worker_count,  # noqa: SLF001
    "call_by_ref": Prefetch._call_by_ref,  # noqa: SLF001
    "call_link": Prefetch._call_link,  # noqa: SLF001
    "job": _by_id(Job, "jobs"),
}
_STEPS: dict[str, Callable[[Prefetch, list[Any]], None]] = {
    "offer": Prefetch._load_candidates,  # noqa: SLF001 - as above
    "tasks_of_workers": Prefetch._load_tasks_of_workers,  # noqa: SLF001
}
_AFTER_STEPS: dict[str, Loader] = {
    "dedup_key": Prefetch._idem,  # noqa: SLF001
    "tenant_for_update": _by_id(Tenant, "tenants_for_update"),
    "tenant": _by_id(Tenant, "tenants"),
    "current_definition": Prefetch._current_definition,  # noqa: SLF001
    "definition": Prefetch._definition,  # noqa: SLF001
    "workflow": _by_id(Workflow, "workflows"),
    "queue": _by_id(Queue, "queues"),
    "queues": Prefetch._queues,  # noqa: SLF001
    "task": _by_id(Task, "tasks"),
    "stage": _by_id(Stage, "stages_by_id"),
    "stages": _group("stages", Stage, "stages", "job_id"),
    "open_tasks": _group("open_tasks", Task, "open_tasks", "stage_id"),
    "tasks": _group("tasks", Task, "tasks_of_stages", "stage_id"),
    "run": _by_id(Run, "runs"),
    "run_by_command": Prefetch._run_by_command,  # noqa: SLF001
    "attempt": _by_id(Attempt, "attempts"),
    "document": Prefetch._document,  # noqa: SLF001
    "call": _by_id(Call, "calls"),
    "inbox": _by_id(Inbox, "inbox"),
    "held_callbacks": _group("held_callbacks", Inbox, "held_callbacks", "ref"),
    "cursor": _by_id(Cursor, "cursors"),
    "used": _group("used", JobFile, "file_uses_of_jobs", "job_id"),
    "file": _by_id(File, "files"),
    "files_of": _group("files_of", File, "files_of_jobs", "job_id"),
    "needed_by_others": Prefetch._needed_by_others,  # noqa: SLF001
    "job_file": _by_id(JobFile, "uses"),
    "uploading": Prefetch._pending_upload_count,  # noqa: SLF001
    "needed": Prefetch._needed,  # noqa: SLF001
    "api_key": _by_id(ApiKey, "api_keys"),
    "key_of": Prefetch._api_key_of_secret,  # noqa: SLF001
    "audit": _by_id(Audit, "audits"),
    "entry": Prefetch._entry,  # noqa: SLF001
    "wallet": _by_id(Wallet, "wallets"),
    "active": Prefetch._active_job_count,  # noqa: SLF001
    "tail": Prefetch._tail,  # noqa: SLF001
}
_LOADERS = _BEFORE_STEPS | _AFTER_STEPS
_ORDER = (*_BEFORE_STEPS, *_STEPS, *_AFTER_STEPS)
